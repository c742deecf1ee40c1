"""Byte tokenizer: the bytes of UTF-8."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Annotated, ClassVar, final

from paribus import Range, Tokenizer, TokenizerTraits, Vocabulary
from paribus_text.reserved_tokens import (
    display,
    display_names,
    pack_state,
    reserve_tokens,
    unpack_state,
    vocabulary_too_small,
)
from paribus_text.tokenizer_json import library_json, numbered_tokens

BYTES = 256
BLANKS = frozenset(b" \t\n\r\v\f")  # a word starts with the whitespace before it, as in byte-pair encoding


@final
class Bytes(Tokenizer):
    """Byte tokenizer: "ByT5" (Xue et al. 2021, https://arxiv.org/abs/2105.13626).

    It needs no training and encodes every text. Ids 0-255 are the bytes; special tokens and sentinels follow.
    """

    traits: ClassVar[TokenizerTraits] = {
        "provides": ["pad", "cls", "sep", "mask", "bos", "eos", "sentinels"],
        "fixed": True,
    }

    def __init__(
        self,
        *,
        sentinels: Annotated[int, "number of sentinel tokens, which stand for removed spans", Range(0, 4096)] = 32,
    ) -> None:
        self._vocabulary = _vocabulary(sentinels)

    def train(self, texts: Iterable[str], size: int | None) -> None:
        minimum = self._vocabulary.size
        if size is not None and size < minimum:
            raise vocabulary_too_small(
                "bytes", size, minimum, f"256 are bytes, and {minimum - BYTES} special tokens and sentinels"
            )

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode("utf-8", "surrogatepass")) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        special = display_names(self._vocabulary)
        pieces: list[str] = []
        run = bytearray()
        for token in (*ids, None):
            if token is not None and 0 <= token < BYTES:
                run.append(token)
                continue
            pieces.append(_text(bytes(run)))
            run.clear()
            if token is not None:
                pieces.append(display(special, token))
        return "".join(pieces)

    def tokenizer_json(self) -> str | None:
        from tokenizers import decoders, models, pre_tokenizers

        tokens = {letter: byte for byte, letter in enumerate(_letters())}
        model = models.BPE({**tokens, **numbered_tokens(self._vocabulary, (), BYTES)}, [])
        return library_json(
            self._vocabulary,
            model,
            pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            decoder=decoders.ByteLevel(),
        )

    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    def state(self) -> bytes:
        return pack_state("bytes", {"sentinels": len(self._vocabulary.sentinels)})

    def load(self, state: bytes) -> None:
        with unpack_state("bytes", state) as content:
            self._vocabulary = _vocabulary(int(content["sentinels"]))


def _vocabulary(sentinels: int) -> Vocabulary:
    return reserve_tokens(BYTES, sentinels)._replace(word_starts=BLANKS)


def _letters() -> Iterator[str]:
    """Yield the letter of each byte in the alphabet of GPT-2: itself if it is visible, otherwise a later letter."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    later = count(BYTES)
    yield from (chr(byte if byte in visible else next(later)) for byte in range(BYTES))


def _text(run: bytes) -> str:
    """The text of bytes; those that are no UTF-8 are display as \\xff."""
    try:
        return run.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return run.decode("utf-8", "backslashreplace")

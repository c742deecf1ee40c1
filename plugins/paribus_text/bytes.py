"""Every byte of the text's UTF-8 is a token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar, final

from paribus import Range, Tokenizer, Traits, Vocabulary
from paribus_text.reserved import names, packed, reserved, shown, too_small, unpacked

BYTES = 256
BLANKS = frozenset(b" \t\n\r\v\f")  # a word begins with the blank before it, as it does for byte pairs


@final
class Bytes(Tokenizer):
    """The bytes of a text's UTF-8: nothing to learn, and nothing that it cannot write.

    ByT5 (https://arxiv.org/abs/2105.13626). Ids 0-255 are the bytes themselves, the specials and sentinels follow.
    """

    traits: ClassVar[Traits] = {"provides": ["pad", "cls", "sep", "mask", "bos", "eos", "sentinels"]}

    def __init__(self, *, sentinels: Annotated[int, "ids that stand for removed spans", Range(0, 4096)] = 32) -> None:
        self._vocabulary = _vocabulary(sentinels)

    def train(self, texts: Iterable[str], size: int | None) -> None:
        least = self._vocabulary.size
        if size is not None and size < least:
            raise too_small("bytes", size, least, f"it has 256 bytes and {least - BYTES} specials and sentinels")

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(text.encode("utf-8", "surrogatepass")) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        special = names(self._vocabulary)
        pieces: list[str] = []
        run = bytearray()
        for token in (*ids, None):
            if token is not None and 0 <= token < BYTES:
                run.append(token)
                continue
            pieces.append(_text(bytes(run)))
            run.clear()
            if token is not None:
                pieces.append(shown(special, token))
        return "".join(pieces)

    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    def state(self) -> bytes:
        return packed("bytes", {"sentinels": len(self._vocabulary.sentinels)})

    def load(self, state: bytes) -> None:
        with unpacked("bytes", state) as learned:
            self._vocabulary = _vocabulary(int(learned["sentinels"]))


def _vocabulary(sentinels: int) -> Vocabulary:
    return reserved(BYTES, sentinels)._replace(word_starts=BLANKS)


def _text(run: bytes) -> str:
    """The text of bytes; those that are no UTF-8 are shown as \\xff."""
    try:
        return run.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return run.decode("utf-8", "backslashreplace")

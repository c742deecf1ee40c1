"""Byte-level byte-pair encoding (BPE) tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, final

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

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library
    from tokenizers import models

BYTES = 256
BLANKS = frozenset("ĠĊĉčċČ")  # whitespace as it is written in a piece
DEFAULT_PIECES = 50_000
MINIMUM_COUNT = 2  # of a pair that is merged


@final
class BytePair(Tokenizer):
    """Byte-level byte-pair encoding, as in GPT-2: merges stay within words, and a space belongs to the next word.

    Sennrich et al. 2015 (https://arxiv.org/abs/1508.07909); on bytes: Radford et al. 2019, "Language Models are
    Unsupervised Multitask Learners". It encodes every text.
    """

    traits: ClassVar[TokenizerTraits] = {"provides": ["pad", "cls", "sep", "mask", "bos", "eos", "sentinels"]}

    def __init__(
        self,
        *,
        sentinels: Annotated[int, "number of sentinel tokens, which stand for removed spans", Range(0, 4096)] = 32,
    ) -> None:
        self._sentinels = sentinels
        self._first = self._reserved.size  # id of the first piece
        self._pieces: tuple[str, ...] = ()
        self._merges: tuple[tuple[str, str], ...] = ()
        self._library: Library | None = None

    def train(self, texts: Iterable[str], size: int | None) -> None:
        from tokenizers import models, pre_tokenizers, trainers

        minimum = self._reserved.size + BYTES
        if size is not None and size < minimum:
            raise vocabulary_too_small(
                "bpe", size, minimum, f"256 are bytes, and {minimum - BYTES} special tokens and sentinels"
            )
        library = _library(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=DEFAULT_PIECES if size is None else size - self._reserved.size,
            min_frequency=MINIMUM_COUNT,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        library.train_from_iterator(texts, trainer)
        model = json.loads(library.to_str())["model"]
        pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
        self._set_pieces(pieces, [_pair(merge) for merge in model["merges"]])

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        assert self._library is not None, "train the tokenizer or load its state first"
        return [encoding.ids for encoding in self._library.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        from tokenizers import decoders

        first, level = self._first, decoders.ByteLevel()
        if not ids or (min(ids) >= first and max(ids) < first + len(self._pieces)):  # nothing but text
            return level.decode([self._pieces[token - first] for token in ids])
        special = display_names(self._reserved)
        text = ""
        run: list[str] = []
        for token in (*ids, None):
            if token is not None and first <= token < first + len(self._pieces):
                run.append(self._pieces[token - first])
                continue
            text += level.decode(run) + ("" if token is None else display(special, token))
            run = []
        return text

    def piece(self, token: int) -> str:
        place = token - self._first
        return self._pieces[place] if 0 <= place < len(self._pieces) else self.decode([token])

    def tokenizer_json(self) -> str | None:
        from tokenizers import decoders, models, pre_tokenizers, processors

        model = models.BPE(numbered_tokens(self._reserved, self._pieces, self._first), list(self._merges))
        return library_json(
            self._reserved,
            model,
            pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False),
            post_processor=processors.ByteLevel(),  # offsets without the space before a word
            decoder=decoders.ByteLevel(),
        )

    def vocabulary(self) -> Vocabulary:
        first = self._first
        word_starts = frozenset(first + number for number, piece in enumerate(self._pieces) if piece[0] in BLANKS)
        return self._reserved._replace(size=first + len(self._pieces), word_starts=word_starts)

    def state(self) -> bytes:
        merges = [list(merge) for merge in self._merges]
        return pack_state("bpe", {"sentinels": self._sentinels, "pieces": list(self._pieces), "merges": merges})

    def load(self, state: bytes) -> None:
        with unpack_state("bpe", state) as content:
            self._sentinels = int(content["sentinels"])
            self._first = self._reserved.size
            self._set_pieces([str(piece) for piece in content["pieces"]], [_pair(merge) for merge in content["merges"]])

    @property
    def _reserved(self) -> Vocabulary:
        return reserve_tokens(0, self._sentinels)

    def _set_pieces(self, pieces: Iterable[str], merges: Iterable[tuple[str, str]]) -> None:
        from tokenizers import models

        self._pieces, self._merges = tuple(pieces), tuple(merges)
        numbered = {piece: self._first + place for place, piece in enumerate(self._pieces)}
        self._library = _library(models.BPE(numbered, list(self._merges)))


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    """Return a merge as two pieces; before its version 0.20 the library wrote them in one text."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _library(model: models.Model) -> Library:
    from tokenizers import Tokenizer as Library
    from tokenizers import pre_tokenizers

    library = Library(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return library

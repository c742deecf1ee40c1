"""Bytes, and the pairs of them that come together most often, and the pairs of those."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, final

from paribus import Range, Tokenizer, Traits, Vocabulary
from paribus_text.reserved import names, packed, reserved, shown, too_small, unpacked

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library
    from tokenizers import models

BYTES = 256
BLANKS = frozenset("ĠĊĉčċČ")  # how a space, and what else is blank, is written in a piece
MOST = 50_000  # pieces, where the spec does not say
RARE = 2  # a pair seen less often is not made one


@final
class BytePair(Tokenizer):
    """GPT-2's tokenizer: byte-level pair encoding, within words, the space a part of the word behind it.

    Sennrich et al. 2015 (https://arxiv.org/abs/1508.07909); on bytes: Radford et al. 2019, "Language Models are
    Unsupervised Multitask Learners". No text is unknown to it.
    """

    traits: ClassVar[Traits] = {"provides": ["pad", "cls", "sep", "mask", "bos", "eos", "sentinels"]}

    def __init__(self, *, sentinels: Annotated[int, "ids that stand for removed spans", Range(0, 4096)] = 32) -> None:
        self._sentinels = sentinels
        self._pieces: tuple[str, ...] = ()
        self._merges: tuple[tuple[str, str], ...] = ()
        self._library: Library | None = None

    def train(self, texts: Iterable[str], size: int | None) -> None:
        from tokenizers import models, pre_tokenizers, trainers

        least = self._reserved.size + BYTES
        if size is not None and size < least:
            raise too_small("bpe", size, least, f"it has 256 bytes and {least - BYTES} specials and sentinels")
        library = _library(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=MOST if size is None else size - self._reserved.size,
            min_frequency=RARE,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        library.train_from_iterator(texts, trainer)
        learned = json.loads(library.to_str())["model"]
        pieces = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
        self._become(pieces, [_pair(merge) for merge in learned["merges"]])

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        assert self._library is not None, "train it, or load a state, before it is asked to encode"
        return [found.ids for found in self._library.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        from tokenizers import decoders

        special = names(self._reserved)
        first = self._reserved.size
        level = decoders.ByteLevel()
        text = ""
        run: list[str] = []
        for token in (*ids, None):
            if token is not None and first <= token < first + len(self._pieces):
                run.append(self._pieces[token - first])
                continue
            text += level.decode(run) + ("" if token is None else shown(special, token))
            run = []
        return text

    def piece(self, token: int) -> str:
        place = token - self._reserved.size
        return self._pieces[place] if 0 <= place < len(self._pieces) else self.decode([token])

    def vocabulary(self) -> Vocabulary:
        first = self._reserved.size
        begins = frozenset(first + at for at, piece in enumerate(self._pieces) if piece[0] in BLANKS)
        return self._reserved._replace(size=first + len(self._pieces), word_starts=begins)

    def state(self) -> bytes:
        merges = [list(merge) for merge in self._merges]
        return packed("bpe", {"sentinels": self._sentinels, "pieces": list(self._pieces), "merges": merges})

    def load(self, state: bytes) -> None:
        with unpacked("bpe", state) as learned:
            self._sentinels = int(learned["sentinels"])
            self._become([str(piece) for piece in learned["pieces"]], [_pair(merge) for merge in learned["merges"]])

    @property
    def _reserved(self) -> Vocabulary:
        return reserved(0, self._sentinels)

    def _become(self, pieces: Iterable[str], merges: Iterable[tuple[str, str]]) -> None:
        from tokenizers import models

        self._pieces, self._merges = tuple(pieces), tuple(merges)
        numbered = {piece: self._reserved.size + place for place, piece in enumerate(self._pieces)}
        self._library = _library(models.BPE(numbered, list(self._merges)))


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    """A merge as two pieces; before its version 0.20 the library wrote them in one text."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _library(model: models.Model) -> Library:
    from tokenizers import Tokenizer as Library
    from tokenizers import pre_tokenizers

    library = Library(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return library

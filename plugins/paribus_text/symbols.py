"""Word tokenizer: splits at whitespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
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
from paribus_text.tokenizer_json import SPACE, library_json, numbered_tokens


@final
class Symbols(Tokenizer):
    """Word tokenizer, which splits at whitespace: for tasks whose symbols are words, and as a word-level baseline.

    The vocabulary holds the most frequent words of the training split; every other word is `unk`.
    """

    traits: ClassVar[TokenizerTraits] = {
        "provides": ["pad", "unk", "cls", "sep", "mask", "bos", "eos", "sentinels"],
        "lossy": True,
    }

    def __init__(
        self,
        *,
        sentinels: Annotated[int, "number of sentinel tokens, which stand for removed spans", Range(0, 4096)] = 32,
    ) -> None:
        self._sentinels = sentinels
        self._set_words(())

    def train(self, texts: Iterable[str], size: int | None) -> None:
        minimum = self._reserved.size + 1
        if size is not None and size < minimum:
            raise vocabulary_too_small("symbols", size, minimum, f"{minimum - 1} are special tokens and sentinels")
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text.split())
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        self._set_words(sorted(ranked[: None if size is None else size - self._reserved.size]))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        unknown = self._reserved.specials["unk"]
        return [[self._numbered.get(word, unknown) for word in text.split()] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        words, special, first = self._words, display_names(self._reserved), self._reserved.size
        word_ids = range(first, first + len(words))
        return " ".join(words[token - first] if token in word_ids else display(special, token) for token in ids)

    def tokenizer_json(self) -> str | None:
        from tokenizers import Regex, models, pre_tokenizers

        tokens = numbered_tokens(self._reserved, self._words, self._reserved.size)
        unknown = display_names(self._reserved)[self._reserved.specials["unk"]]
        pre_tokenizer = pre_tokenizers.Split(Regex(f"{SPACE}+"), "removed")
        return library_json(self._reserved, models.WordLevel(tokens, unknown), pre_tokenizer=pre_tokenizer)

    def vocabulary(self) -> Vocabulary:
        size = self._reserved.size + len(self._words)
        return self._reserved._replace(size=size, word_starts=frozenset(range(self._reserved.size, size)))

    def state(self) -> bytes:
        return pack_state("symbols", {"words": list(self._words), "sentinels": self._sentinels})

    def load(self, state: bytes) -> None:
        with unpack_state("symbols", state) as content:
            self._sentinels = int(content["sentinels"])
            self._set_words([str(word) for word in content["words"]])

    def _set_words(self, words: Iterable[str]) -> None:
        self._reserved = reserve_tokens(0, self._sentinels, unknown=True)
        self._words = tuple(words)
        self._numbered = {word: self._reserved.size + place for place, word in enumerate(self._words)}

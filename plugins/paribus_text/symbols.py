"""Every word is a token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar, final

from paribus import Range, Tokenizer, Traits, Vocabulary
from paribus_text.reserved import names, packed, reserved, shown, too_small, unpacked


@final
class Symbols(Tokenizer):
    """What stands between spaces is a token: for tasks whose symbols are words, and as the word-level baseline of text.

    Those of the training split are known, the most frequent ones where there is no room for all; another is `unk`.
    """

    traits: ClassVar[Traits] = {"provides": ["pad", "unk", "cls", "sep", "mask", "bos", "eos", "sentinels"]}

    def __init__(self, *, sentinels: Annotated[int, "ids that stand for removed spans", Range(0, 4096)] = 32) -> None:
        self._sentinels = sentinels
        self._become(())

    def train(self, texts: Iterable[str], size: int | None) -> None:
        least = self._reserved.size + 1
        if size is not None and size < least:
            raise too_small("symbols", size, least, f"it has {least - 1} specials and sentinels")
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text.split())
        known = sorted(counts, key=lambda word: (-counts[word], word))
        self._become(sorted(known[: None if size is None else size - self._reserved.size]))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        unknown = self._reserved.specials["unk"]
        return [[self._numbered.get(word, unknown) for word in text.split()] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        words, special, first = self._words, names(self._reserved), self._reserved.size
        known = range(first, first + len(words))
        return " ".join(words[token - first] if token in known else shown(special, token) for token in ids)

    def vocabulary(self) -> Vocabulary:
        size = self._reserved.size + len(self._words)
        return self._reserved._replace(size=size, word_starts=frozenset(range(self._reserved.size, size)))

    def state(self) -> bytes:
        return packed("symbols", {"words": list(self._words), "sentinels": self._sentinels})

    def load(self, state: bytes) -> None:
        with unpacked("symbols", state) as learned:
            self._sentinels = int(learned["sentinels"])
            self._become([str(word) for word in learned["words"]])

    def _become(self, words: Iterable[str]) -> None:
        self._reserved = reserved(0, self._sentinels, unknown=True)
        self._words = tuple(words)
        self._numbered = {word: self._reserved.size + place for place, word in enumerate(self._words)}

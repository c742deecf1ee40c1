"""Tokenizer: frequent character n-grams of words, with bytes for everything else."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar, Final, final

from paribus import Range, Tokenizer, TokenizerTraits, Vocabulary

SPECIALS: Final = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
FIRST_BYTE: Final = len(SPECIALS)
FIRST_PIECE: Final = FIRST_BYTE + 256
WORD: Final = re.compile(r"\s?\S+|\s+", re.DOTALL)


@final
class NgramTokenizer(Tokenizer):
    """Word-piece tokenizer of frequent n-grams, longest match first, with a fallback to bytes: any text is restored."""

    traits: ClassVar[TokenizerTraits] = {"provides": list(SPECIALS)}

    def __init__(
        self,
        *,
        longest: Annotated[int, "characters of the longest piece", Range(1)] = 4,
        at_least: Annotated[int, "occurrences of a piece in the training text", Range(1)] = 2,
    ) -> None:
        self.longest, self.at_least = longest, at_least
        self._set([])

    def train(self, texts: Iterable[str], size: int | None) -> None:
        words = Counter(word for text in texts for word in WORD.findall(text))
        grams: Counter[str] = Counter()
        for word, times in words.items():
            for begin in range(len(word)):
                for end in range(begin + 1, min(begin + self.longest, len(word)) + 1):
                    grams[word[begin:end]] += times
        pieces = [gram for gram, times in grams.items() if times >= self.at_least]
        pieces.sort(key=lambda gram: (-grams[gram] * len(gram), gram))
        self._set(pieces if size is None else pieces[: max(0, size - FIRST_PIECE)])

    def _set(self, pieces: Sequence[str]) -> None:
        self._pieces = list(pieces)
        self._ids = {piece: index for index, piece in enumerate(pieces, start=FIRST_PIECE)}
        self._reach = max(map(len, pieces), default=1)
        self._cache: dict[str, list[int]] = {}

    def _word(self, word: str) -> list[int]:
        ids: list[int] = []
        begin = 0
        while begin < len(word):
            for end in range(min(len(word), begin + self._reach), begin, -1):
                if (piece := self._ids.get(word[begin:end])) is not None:
                    ids.append(piece)
                    begin = end
                    break
            else:
                ids.extend(FIRST_BYTE + byte for byte in word[begin].encode())
                begin += 1
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        result = []
        for text in texts:
            ids: list[int] = []
            for word in WORD.findall(text):
                if word not in self._cache:
                    self._cache[word] = self._word(word)
                ids.extend(self._cache[word])
            result.append(ids)
        return result

    def decode(self, ids: Sequence[int]) -> str:
        parts: list[bytes] = []
        for token in ids:
            if token < FIRST_BYTE:
                parts.append(f"<{SPECIALS[token]}>".encode())
            elif token < FIRST_PIECE:
                parts.append(bytes([token - FIRST_BYTE]))
            else:
                parts.append(self._pieces[token - FIRST_PIECE].encode())
        return b"".join(parts).decode("utf-8", "replace")

    def piece(self, token: int) -> str:
        return f"<byte {token - FIRST_BYTE}>" if FIRST_BYTE <= token < FIRST_PIECE else self.decode([token])

    def vocabulary(self) -> Vocabulary:
        specials = {name: index for index, name in enumerate(SPECIALS)}
        return Vocabulary(FIRST_PIECE + len(self._pieces), specials)

    def state(self) -> bytes:
        return json.dumps(self._pieces).encode()

    def load(self, state: bytes) -> None:
        self._set(json.loads(state))

"""Pieces of words, each with its odds, and the likeliest way to cut a word into them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, final

from paribus import Range, Tokenizer, Traits, Vocabulary
from paribus_text.expectation import learned
from paribus_text.reserved import names, packed, reserved, shown, too_small, unpacked

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

BLANK = "▁"  # stands for the space that a word begins with
BYTES = 256
MOST = 8_000  # pieces, where the spec does not say
UNKNOWN = " "  # no text gives it to the library, which is shown no spaces
_WORDS = re.compile(r" ?\S+|\s")
_SPACES = " \t\n\r\v\f"


@final
class Unigram(Tokenizer):
    """SentencePiece's: words are cut into the pieces whose odds have the largest product, the space a part of the word
    behind it: "Subword Regularization" (Kudo 2018), "SentencePiece" (Kudo & Richardson 2018).

    With `fallback` no text is unknown to it, and any comes back to the letter.
    """

    traits: ClassVar[Traits] = {"provides": ["pad", "unk", "cls", "sep", "mask", "bos", "eos", "sentinels"]}

    def __init__(
        self,
        *,
        lowercase: Annotated[bool, "fold case (ALBERT: yes)"] = False,
        compose: Annotated[bool, "fold characters into those that look alike, by NFKC (SentencePiece: yes)"] = False,
        fallback: Annotated[bool, "spell letters that it does not know by their bytes, and not as `unk`"] = True,
        sentinels: Annotated[int, "ids that stand for removed spans (T5: 100)", Range(0, 4096)] = 32,
    ) -> None:
        self._lowercase = lowercase
        self._compose = compose
        self._fallback = fallback
        self._sentinels = sentinels
        self._pieces: tuple[tuple[str, float], ...] = ()
        self._numbers: dict[str, int] = {}
        self._library: Library | None = None

    def train(self, texts: Iterable[str], size: int | None) -> None:
        least = self._first + 2
        if size is not None and size < least:
            parts = "the specials, the sentinels, " + ("256 bytes " if self._fallback else "") + "and a letter"
            raise too_small("unigram", size, least, f"{parts} take more")
        room = MOST if size is None else size - self._first
        words: Counter[str] = Counter()
        for text in texts:
            words.update(_WORDS.findall(self._normal(text)))
        words = Counter({word.replace(" ", BLANK): count for word, count in words.items() if BLANK not in word})
        counts: Counter[str] = Counter()
        for word, count in words.items():
            for letter in word:
                counts[letter] += count
        by_count = sorted(counts, key=lambda letter: (-counts[letter], letter))
        self._become(learned(words, sorted(by_count[: max(1, room // 2)]), room))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        cut = [_WORDS.findall(self._normal(text)) for text in texts]
        words = list(dict.fromkeys(word for found in cut for word in found))
        ids = dict(zip(words, self._cut(words), strict=True))
        return [[token for word in found for token in ids[word]] for found in cut]

    def decode(self, ids: Sequence[int]) -> str:
        special = names(self._reserved)
        text, run = "", bytearray()
        for token in (*ids, None):
            if token is not None and self._reserved.size <= token < self._first:
                run.append(token - self._reserved.size)
                continue
            text += run.decode("utf-8", "backslashreplace")
            run.clear()
            if token is not None and self._first <= token < self._first + len(self._pieces):
                text += self._pieces[token - self._first][0].replace(BLANK, " ")
            elif token is not None:
                text += shown(special, token)
        return text

    def piece(self, token: int) -> str:
        spelled = token - self._reserved.size
        return f"<byte {spelled}>" if 0 <= spelled < self._first - self._reserved.size else self.decode([token])

    def vocabulary(self) -> Vocabulary:
        begins = frozenset(number for piece, number in self._numbers.items() if piece[0] in (BLANK, *_SPACES))
        return self._reserved._replace(size=self._first + len(self._pieces), word_starts=begins)

    def state(self) -> bytes:
        options = {"lowercase": self._lowercase, "compose": self._compose, "fallback": self._fallback}
        pieces = [list(piece) for piece in self._pieces]
        return packed("unigram", {**options, "sentinels": self._sentinels, "pieces": pieces})

    def load(self, state: bytes) -> None:
        with unpacked("unigram", state) as kept:
            self._lowercase, self._compose = bool(kept["lowercase"]), bool(kept["compose"])
            self._fallback, self._sentinels = bool(kept["fallback"]), int(kept["sentinels"])
            self._become([(str(piece), float(odds)) for piece, odds in kept["pieces"]])

    @property
    def _reserved(self) -> Vocabulary:
        return reserved(0, self._sentinels, unknown=True)

    @property
    def _first(self) -> int:
        """The id of the first piece: bytes stand before it."""
        return self._reserved.size + (BYTES if self._fallback else 0)

    def _become(self, pieces: Iterable[tuple[str, float]]) -> None:
        from tokenizers import Tokenizer as Library
        from tokenizers import models

        self._pieces = tuple(pieces)
        self._numbers = {piece: self._first + place for place, (piece, _) in enumerate(self._pieces)}
        self._library = Library(models.Unigram([(UNKNOWN, 0.0), *self._pieces], unk_id=0, byte_fallback=False))

    def _normal(self, text: str) -> str:
        text = unicodedata.normalize("NFKC", text) if self._compose else text
        return text.lower() if self._lowercase else text

    def _cut(self, words: Sequence[str]) -> Iterator[list[int]]:
        assert self._library is not None, "train it, or load a state, before it is asked to encode"
        shift = self._first - 1  # the library numbers the unknown 0
        written = [word.replace(" ", BLANK) for word in words]
        for word, text, found in zip(words, written, self._library.encode_batch_fast(written), strict=True):
            if BLANK in word:  # the text's own, and not a space
                yield [token for letter in word for token in self._spelled(letter)]
            elif 0 in found.ids:
                cut = self._library.encode(text)
                yield [
                    token
                    for number, (start, end) in zip(cut.ids, cut.offsets, strict=True)
                    for token in ([number + shift] if number else self._unknown(text[start:end].replace(BLANK, " ")))
                ]
            else:
                yield [number + shift for number in found.ids]

    def _spelled(self, letter: str) -> list[int]:
        """One letter: as it is known, or as one that is not."""
        known = None if letter == BLANK else self._numbers.get(letter.replace(" ", BLANK))
        return self._unknown(letter) if known is None else [known]

    def _unknown(self, text: str) -> list[int]:
        if not self._fallback:
            return [self._reserved.specials["unk"]]
        return [self._reserved.size + byte for byte in text.encode()]

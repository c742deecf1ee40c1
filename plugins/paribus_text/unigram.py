"""Unigram tokenizer: splits each word into its most probable pieces."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
from paribus_text.tokenizer_json import SPACE, WORD, library_json, numbered_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

BLANK = "▁"  # stands for the space before a word
BYTES = 256
DEFAULT_PIECES = 8_000
UNKNOWN = " "  # no text produces it: the library gets no spaces
_WORDS = re.compile(r" ?\S+|\s")
# A sigma at the end of a word has a lower case of its own, which `str.lower` writes and the library does not.
FINAL_SIGMA = r"(?<=\p{Cased}|\p{Cased}\p{Case_Ignorable})Σ(?!\p{Case_Ignorable}*\p{Cased})"
_SPACES = " \t\n\r\v\f"


@final
class Unigram(Tokenizer):
    """Unigram language model tokenizer: words are split into the pieces with the largest product of probabilities,
    and a space belongs to the next word. "Subword Regularization" (Kudo 2018), "SentencePiece" (Kudo &
    Richardson 2018).

    With `byte_fallback` it encodes every text, and decoding restores it exactly.
    """

    traits: ClassVar[TokenizerTraits] = {"provides": ["pad", "unk", "cls", "sep", "mask", "bos", "eos", "sentinels"]}

    def __init__(
        self,
        *,
        lowercase: Annotated[bool, "fold case (ALBERT: yes)"] = False,
        nfkc: Annotated[bool, "normalize characters by NFKC (SentencePiece: yes)"] = False,
        byte_fallback: Annotated[bool, "encode unknown characters as bytes, not as `unk`"] = True,
        sentinels: Annotated[
            int, "number of sentinel tokens, which stand for removed spans (T5: 100)", Range(0, 4096)
        ] = 32,
    ) -> None:
        self._lowercase = lowercase
        self._nfkc = nfkc
        self._byte_fallback = byte_fallback
        self._sentinels = sentinels
        self._pieces: tuple[tuple[str, float], ...] = ()
        self._numbers: dict[str, int] = {}
        self._library: Library | None = None

    def train(self, texts: Iterable[str], size: int | None) -> None:
        from paribus_text.unigram_training import train_unigram  # it imports numpy

        minimum = self._first + 2
        if size is not None and size < minimum:
            parts = "special tokens, sentinels, " + ("256 bytes " if self._byte_fallback else "") + "and a letter"
            raise vocabulary_too_small("unigram", size, minimum, f"{parts} take more")
        room = DEFAULT_PIECES if size is None else size - self._first
        words: Counter[str] = Counter()
        for text in texts:
            words.update(_WORDS.findall(self._normalize(text)))
        words = Counter({word.replace(" ", BLANK): count for word, count in words.items() if BLANK not in word})
        counts: Counter[str] = Counter()
        for word, count in words.items():
            for letter in word:
                counts[letter] += count
        by_count = sorted(counts, key=lambda letter: (-counts[letter], letter))
        self._set_pieces(train_unigram(words, sorted(by_count[: max(1, room // 2)]), room))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        split_texts = [_WORDS.findall(self._normalize(text)) for text in texts]
        words = list(dict.fromkeys(word for text_words in split_texts for word in text_words))
        ids = dict(zip(words, self._encode_words(words), strict=True))
        return [[token for word in text_words for token in ids[word]] for text_words in split_texts]

    def decode(self, ids: Sequence[int]) -> str:
        special = display_names(self._reserved)
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
                text += display(special, token)
        return text

    def piece(self, token: int) -> str:
        byte = token - self._reserved.size
        return f"<byte {byte}>" if 0 <= byte < self._first - self._reserved.size else self.decode([token])

    def tokenizer_json(self) -> str | None:
        """Return the `tokenizer.json` with the same ids, except in words that contain `▁` itself: their other letters
        may be joined.
        """
        from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

        unreachable = (
            10 * min((score for _, score in self._pieces), default=0.0) - 10
        )  # less than any split into letters
        reserved = (*numbered_tokens(self._reserved, (), 0), *(f"<0x{byte:02X}>" for byte in range(BYTES)))[
            : self._first
        ]
        pieces = [(piece.replace(BLANK, " "), score) for piece, score in self._pieces]
        tokens = [*((name, unreachable) for name in reserved), *pieces]
        steps: list[normalizers.Normalizer] = [normalizers.NFKC()] if self._nfkc else []
        steps += [normalizers.Replace(Regex(FINAL_SIGMA), "ς"), normalizers.Lowercase()] if self._lowercase else []
        return library_json(
            self._reserved,
            models.Unigram(tokens, self._reserved.specials["unk"], self._byte_fallback),
            normalizer=normalizers.Sequence(steps),
            pre_tokenizer=pre_tokenizers.Split(Regex(f" ?{WORD}+|{SPACE}"), "isolated"),
            decoder=decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]),
        )

    def vocabulary(self) -> Vocabulary:
        word_starts = frozenset(number for piece, number in self._numbers.items() if piece[0] in (BLANK, *_SPACES))
        return self._reserved._replace(size=self._first + len(self._pieces), word_starts=word_starts)

    def state(self) -> bytes:
        options = {"lowercase": self._lowercase, "compose": self._nfkc, "fallback": self._byte_fallback}
        pieces = [list(piece) for piece in self._pieces]
        return pack_state("unigram", {**options, "sentinels": self._sentinels, "pieces": pieces})

    def load(self, state: bytes) -> None:
        with unpack_state("unigram", state) as content:
            self._lowercase, self._nfkc = bool(content["lowercase"]), bool(content["compose"])
            self._byte_fallback, self._sentinels = bool(content["fallback"]), int(content["sentinels"])
            self._set_pieces([(str(piece), float(log_probability)) for piece, log_probability in content["pieces"]])

    @property
    def _reserved(self) -> Vocabulary:
        return reserve_tokens(0, self._sentinels, unknown=True)

    @property
    def _first(self) -> int:
        """Id of the first piece, which follows the bytes."""
        return self._reserved.size + (BYTES if self._byte_fallback else 0)

    def _set_pieces(self, pieces: Iterable[tuple[str, float]]) -> None:
        from tokenizers import Tokenizer as Library
        from tokenizers import models

        self._pieces = tuple(pieces)
        self._numbers = {piece: self._first + place for place, (piece, _) in enumerate(self._pieces)}
        self._library = Library(models.Unigram([(UNKNOWN, 0.0), *self._pieces], unk_id=0, byte_fallback=False))

    def _normalize(self, text: str) -> str:
        text = unicodedata.normalize("NFKC", text) if self._nfkc else text
        return text.lower() if self._lowercase else text

    def _encode_words(self, words: Sequence[str]) -> Iterator[list[int]]:
        assert self._library is not None, "train the tokenizer or load its state first"
        shift = self._first - 1  # the library numbers the unknown 0
        marked = [word.replace(" ", BLANK) for word in words]
        for word, text, encoding in zip(words, marked, self._library.encode_batch_fast(marked), strict=True):
            if BLANK in word:  # in the text itself, not for a space
                yield [token for letter in word for token in self._encode_letter(letter)]
            elif 0 in encoding.ids:
                exact = self._library.encode(text)
                yield [
                    token
                    for number, (start, end) in zip(exact.ids, exact.offsets, strict=True)
                    for token in ([number + shift] if number else self._unknown(text[start:end].replace(BLANK, " ")))
                ]
            else:
                yield [number + shift for number in encoding.ids]

    def _encode_letter(self, letter: str) -> list[int]:
        number = None if letter == BLANK else self._numbers.get(letter.replace(" ", BLANK))
        return self._unknown(letter) if number is None else [number]

    def _unknown(self, text: str) -> list[int]:
        if not self._byte_fallback:
            return [self._reserved.specials["unk"]]
        return [self._reserved.size + byte for byte in text.encode()]

"""Character tokenizer with a fallback to bytes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar, Final, final

from paribus import DataError, Problem, Range, SpecError, Tokenizer, TokenizerTraits, Vocabulary, hookimpl

SPECIALS: Final = ("pad", "cls", "sep", "mask", "bos", "eos")
BYTES: Final = 256
BLANKS: Final = " \t\n\r\v\f"  # a word starts with the white space before it


@final
class CharacterBytes(Tokenizer):
    """Character tokenizer with byte fallback, as in the character coverage of "SentencePiece" (Kudo & Richardson 2018).

    The most frequent characters of the training split have a token each; every other character is the tokens of its
    bytes in UTF-8, so any text is restored. Ids are special tokens, sentinels, 256 bytes, and characters in the order
    of their code points.
    """

    traits: ClassVar[TokenizerTraits] = {"provides": [*SPECIALS, "sentinels"]}

    def __init__(
        self,
        *,
        minimum: Annotated[int, "occurrences that a character needs for a token of its own", Range(1)] = 2,
        sentinels: Annotated[int, "number of sentinel tokens, which stand for removed spans", Range(0, 4096)] = 32,
    ) -> None:
        self._minimum = minimum
        self._set_vocabulary(sentinels, ())

    def train(self, texts: Iterable[str], size: int | None) -> None:
        taken = self._first + BYTES
        if size is not None and size < taken:
            message = f"character-bytes needs {taken:,} ids for bytes, special tokens and sentinels, got {size:,}"
            raise SpecError(Problem(code="vocabulary-too-small", path="dims.vocabulary", message=message))
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text)
        frequent = [character for character, count in counts.items() if count >= self._minimum]
        frequent.sort(key=lambda character: (-counts[character], character))
        self._set_vocabulary(self._sentinels, sorted(frequent if size is None else frequent[: size - taken]))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[token for character in text for token in self._tokens(character)] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        pieces: list[str] = []
        run = bytearray()
        for token in ids:
            if self._first <= token < self._first + BYTES:
                run.append(token - self._first)
                continue
            pieces += [text_of(run), self._names.get(token, f"<no token {token}>")]
            run.clear()
        return "".join([*pieces, text_of(run)])

    def piece(self, token: int) -> str:
        byte = token - self._first
        return f"<byte {byte:02x}>" if 0 <= byte < BYTES else self.decode([token])

    def vocabulary(self) -> Vocabulary:
        specials = {name: number for number, name in enumerate(SPECIALS)}
        starts = {self._first + ord(blank) for blank in BLANKS}
        starts |= {self._ids[blank] for blank in BLANKS if blank in self._ids}
        sentinels = tuple(range(len(SPECIALS), self._first))
        return Vocabulary(self._first + BYTES + len(self._ids), specials, sentinels, frozenset(starts))

    def state(self) -> bytes:
        return json.dumps({"sentinels": self._sentinels, "characters": list(self._ids)}).encode()

    def load(self, state: bytes) -> None:
        try:
            content = json.loads(state)
            self._set_vocabulary(int(content["sentinels"]), [str(character) for character in content["characters"]])
        except (ValueError, KeyError, TypeError) as error:
            message = f"invalid state of the tokenizer `character-bytes`: {error}"
            raise DataError(Problem(code="tokenizer-state", path="tokenizer", message=message)) from error

    def _set_vocabulary(self, sentinels: int, characters: Iterable[str]) -> None:
        self._sentinels = sentinels
        self._first = len(SPECIALS) + sentinels  # id of byte 0
        self._ids = {character: self._first + BYTES + place for place, character in enumerate(characters)}
        self._names = {number: f"<{name}>" for number, name in enumerate(SPECIALS)}
        self._names |= {len(SPECIALS) + place: f"<sentinel {place}>" for place in range(sentinels)}
        self._names |= {token: character for character, token in self._ids.items()}
        self._spelled: dict[str, tuple[int, ...]] = {}  # tokens of rare characters that were met before

    def _tokens(self, character: str) -> tuple[int, ...]:
        if character in self._ids:
            return (self._ids[character],)
        if character not in self._spelled:
            bytes_ = character.encode("utf-8", "surrogatepass")
            self._spelled[character] = tuple(self._first + byte for byte in bytes_)
        return self._spelled[character]


def text_of(run: bytearray) -> str:
    """Return the text of bytes; those that are no UTF-8 are written as \\xff."""
    try:
        return run.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return run.decode("utf-8", "backslashreplace")


@hookimpl
def tokenizer() -> Mapping[str, type[Tokenizer]]:
    return {"character-bytes": CharacterBytes}

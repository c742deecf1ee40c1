"""Tokenizer of token ids: the vocabulary of a corpus that is tokenized already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar, final

from paribus import DataError, Example, Problem, Range, SpecError, Tokenizer, TokenizerTraits, Vocabulary
from paribus_text.reserved_tokens import display_names, pack_state, unpack_state, vocabulary_too_small

SPECIALS = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
Special = Annotated[int | None, "id of this special token; null: none", Range(0)]


@final
class TokenIds(Tokenizer):
    """Token ids, written as numbers: a vocabulary for the corpus `tokens`, where its tokenizer is not at hand.

    With its `tokenizer.json`, the tokenizer `file` reads and shows text instead. Special tokens have their ids in the
    corpus; `eos`, without which `sep`, is the token between documents.
    """

    traits: ClassVar[TokenizerTraits] = {
        "provides": list(SPECIALS),
        "provides_if": {name: name for name in SPECIALS},
        "modality": "ids",
        "fixed": True,
    }

    def __init__(
        self,
        *,
        size: Annotated[int, "number of ids, special tokens included", Range(1), Example(512)],
        pad: Special = None,
        unk: Special = None,
        cls: Special = None,
        sep: Special = None,
        mask: Special = None,
        bos: Special = None,
        eos: Special = None,
    ) -> None:
        specials = dict(zip(SPECIALS, (pad, unk, cls, sep, mask, bos, eos), strict=True))
        given = {name: token for name, token in specials.items() if token is not None}
        outside = {name: token for name, token in given.items() if token >= size}
        if outside:
            message = f"the id is {next(iter(outside.values())):,}, of a vocabulary of {size:,}"
            path = f"tokenizer.{next(iter(outside))}"
            raise SpecError(
                Problem(code="out-of-range", path=path, message=message, valid=f"an id from 0 to {size - 1:,}")
            )
        self._vocabulary = Vocabulary(size, given)

    def train(self, texts: Iterable[str], size: int | None) -> None:
        minimum = self._vocabulary.size
        if size is not None and size < minimum:
            raise vocabulary_too_small("ids", size, minimum, f"its `size` is {minimum:,}")

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self._id(word) for word in text.split()] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        special = display_names(self._vocabulary)
        return "".join(special.get(token, f" {token}") for token in ids)

    def vocabulary(self) -> Vocabulary:
        return self._vocabulary

    def state(self) -> bytes:
        return pack_state("ids", {"size": self._vocabulary.size, "specials": dict(self._vocabulary.specials)})

    def load(self, state: bytes) -> None:
        with unpack_state("ids", state) as content:
            specials = {str(name): int(token) for name, token in content["specials"].items()}
            self._vocabulary = Vocabulary(int(content["size"]), specials)

    def _id(self, word: str) -> int:
        size = self._vocabulary.size
        if word.isascii() and word.isdigit() and int(word) < size:
            return int(word)
        message = f"the tokenizer `ids` reads numbers of tokens, got {word[:40]!r}"
        valid = f"numbers from 0 to {size - 1:,}; the tokenizer `file` with a tokenizer.json reads text"
        raise DataError(Problem(code="not-an-id", path="tokenizer", message=message, valid=valid))

"""The slot `tokenizer`: text to ids and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

from paribus.slots.component import Component, Traits


class Vocabulary(NamedTuple):
    """What the rest of the system knows of a tokenizer."""

    size: int
    specials: Mapping[str, int]  # pad, cls, sep, mask, unk, bos, eos: those that it has
    sentinels: tuple[int, ...] = ()  # ids that stand for removed spans, in the order in which they are used
    word_starts: frozenset[int] | None = None  # ids that a word begins with; None: the tokenizer cannot tell

    @property
    def reserved(self) -> frozenset[int]:
        """Ids that are none of the text's: never corrupted, never drawn as a random token."""
        return frozenset(self.specials.values()) | frozenset(self.sentinels)


class TokenizerTraits(Traits, total=False):
    """Traits of a tokenizer."""

    provides: list[str]  # special tokens that it has: mask, sentinels, …
    modality: Literal["text", "images"]  # documents that it reads; default: text


class Tokenizer(Component, ABC):
    """Turns text into ids. Trained on the training split only; what it learned is `state`, which is data, not code."""

    traits: ClassVar[TokenizerTraits] = {}

    @abstractmethod
    def train(self, texts: Iterable[str], size: int | None) -> None:
        """Learns a vocabulary of at most `size` from `texts`; a tokenizer with nothing to learn does nothing."""

    def external_fingerprint(self) -> str:
        """A hash of what decides what it learns besides the corpus and its options, such as a file; else nothing."""
        return ""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without specials around them."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; specials are shown by name in angle brackets."""

    def piece(self, token: int) -> str:
        """What an id stands for, told apart from all others: by it, another tokenizer of this kind has it as well."""
        return self.decode([token])

    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """Sizes and specials; valid once trained."""

    @abstractmethod
    def state(self) -> bytes:
        """What `train` learned, for `load`; its sha256 is the tokenizer's fingerprint."""

    @abstractmethod
    def load(self, state: bytes) -> None:
        """Becomes the tokenizer that gave `state`."""

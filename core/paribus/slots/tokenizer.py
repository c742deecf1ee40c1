"""Slot `tokenizer`: text to token ids and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

from paribus.slots.component import Component, Traits


class Vocabulary(NamedTuple):
    """Size and special tokens of a tokenizer."""

    size: int  # number of ids, special tokens included
    specials: Mapping[str, int]  # id of each special token: pad, cls, sep, mask, unk, bos, eos
    sentinels: tuple[int, ...] = ()  # ids that replace removed spans, in the order of their use
    word_starts: frozenset[int] | None = None  # ids that start a word; None: unknown

    @property
    def end_token(self) -> int | None:
        """Id that ends a document, if the tokenizer has one."""
        return self.specials.get("eos", self.specials.get("sep"))

    @property
    def reserved(self) -> frozenset[int]:
        """Ids that are not corrupted and not drawn as random tokens.

        Encoded text has none of them except `unk`; a corpus of ids may have any.
        """
        return frozenset(self.specials.values()) | frozenset(self.sentinels)


class TokenizerTraits(Traits, total=False):
    """Traits of a tokenizer."""

    provides: list[str]  # special tokens that it has: mask, sentinels, …
    provides_if: dict[str, str]  # special token -> option without which the tokenizer does not have it
    modality: Literal["text", "images", "ids"]  # documents that it reads; default: text
    fixed: bool  # `train` reads no text, so that it has a vocabulary for a corpus of ids; default: False
    lossy: bool  # with its default options, decoding may change a text, such as its spaces or case; default: False


class Tokenizer(Component, ABC):
    """Tokenizer: text to token ids and back.

    It is trained on the training split only; `state` is what it learned, as data.
    """

    traits: ClassVar[TokenizerTraits] = {}

    @abstractmethod
    def train(self, texts: Iterable[str], size: int | None) -> None:
        """Learn a vocabulary of at most `size` tokens from `texts`. Does nothing for a fixed vocabulary."""

    def external_fingerprint(self) -> str:
        """Return a hash of the inputs of `train` besides corpus and options, such as a file, or ""."""
        return ""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens around them."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; special tokens appear as their name in angle brackets."""

    def piece(self, token: int) -> str:
        """Return a string that identifies the token, so that tokens of two tokenizers of this kind can be matched.

        Two tokens never have the same piece. `decode` of one token is the default: override it if that is not unique,
        as of single bytes, most of which are no text.
        """
        return self.decode([token])

    def tokenizer_json(self) -> str | None:
        """Return the `tokenizer.json` of Hugging Face's `tokenizers` that gives the same ids, or None."""
        return None

    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """Return the size and the special tokens; valid after `train` or `load`."""

    @abstractmethod
    def state(self) -> bytes:
        """Return what `train` learned and the options that ids depend on. Its sha256 is the fingerprint."""

    @abstractmethod
    def load(self, state: bytes) -> None:
        """Restore the tokenizer from a `state`, also that of a tokenizer with other options."""

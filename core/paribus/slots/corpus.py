"""Slot `corpus`: documents and their split into training and validation.

An image is a document as well: each pixel value is one character, so that tokenizers and objectives read images as
text. `Tokens` are encoded documents, the input of the data side of an objective. Nothing here imports torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias

from paribus.slots.component import Component, Traits

if TYPE_CHECKING:
    from typing import Any

    import numpy as np

Split = Literal["train", "val"]  # part of a corpus, for training or for validation

Ints: TypeAlias = "np.ndarray[tuple[int], np.dtype[Any]]"  # a string, since commands without data import no numpy
Floats: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.float64]]"
Pixels: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]"  # values of images, 0 to 255


class TokenShard(NamedTuple):
    """Token ids of one file, or of a part of it."""

    name: str  # for errors: a path
    ids: Ints  # may be memory-mapped
    rows: Ints | None = None  # first id of each row, and the end, if the shard has rows


class TokenShards(NamedTuple):
    """Token ids of one split, and how they are divided into documents.

    `end`: after each end token; `start`: before each token that starts a document, which is bos or else the end token.
    A document may continue in the next shard, but a row always ends one. `whole`: rows are documents, or shards
    without rows.
    """

    shards: Sequence[TokenShard]  # in order
    bounds: Literal["end", "start", "whole"] = "whole"  # of documents


class Document(NamedTuple):
    """Document: a text as sentences in order (joined by a space), or a pair of texts.

    `labels` holds its annotations; the corpus declares their kind in the trait `provides`: `labels`, one whole number,
    the class; `scores`, one number; `tags`, a whole number for each sentence, each of which is a word; `answers`, the
    first and the last sentence of each accepted answer in the target, of which the first is trained on, -1 and -1 if
    there is no answer. After -3 may follow a number for each sentence of the target, which is then a word or a
    punctuation mark, by which texts of answers are compared: equal for words that are equal without case and
    punctuation, 1 for a word of which nothing is left, 2 for a, an and the; negative without a space before it.
    `choices`: the number of the right one of the sentences of the target, from 0.
    """

    name: str  # for errors: a path and a line, a topic
    sentences: tuple[str, ...]  # in order
    target: tuple[str, ...] = ()  # sentences of the target side of a pair
    language: str = ""  # language of the sentences, if the corpus has several
    labels: tuple[float, ...] = ()  # annotations, of the kind that the corpus declares
    target_language: str = ""  # language of the target side, if the corpus has several

    @property
    def text(self) -> str:
        """Sentences joined by spaces."""
        return " ".join(self.sentences)


class CorpusTraits(Traits, total=False):
    """Traits of a corpus."""

    provides: list[
        str
    ]  # sentences, documents, pairs, labels, scores, tags, answers, choices; `longer`: `longer_documents`
    provides_if: dict[
        str, str
    ]  # content -> option without which it has none (null or false), or `option=a|b`: only with these values
    document_facts: dict[
        str, int | str
    ]  # name -> number that describes its documents, or the option that has it; `a|b`: the first of these that is set
    modality: Literal["text", "images", "ids"]  # documents that it has; ids: `token_shards`; default: text


class Corpus(Component, ABC):
    """Corpus: documents in a fixed order, split by document. A corpus imports no torch."""

    traits: ClassVar[CorpusTraits] = {}

    @abstractmethod
    def documents(self, split: Split) -> Iterator[Document]:
        """Return the documents of a split, always in the same order. The two splits share no document."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return the sha256 of everything that decides what `documents` returns: contents, not paths or times."""

    def quick_fingerprint(self) -> str | None:
        """Return a cheap proxy of `fingerprint` for a large corpus, such as the sizes and times of its files.

        As long as it is unchanged, the fingerprint is not computed again. None: `fingerprint` is cheap, or there is no
        proxy.
        """
        return None

    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes that labels or tags number, in order, if they have names."""
        return ()

    def longer_documents(self, times: int) -> Iterator[Document]:
        """Return validation documents `times` as long as the documents of the splits.

        Called only for a corpus that generates its documents and declares `provides: longer`; others use more text.
        """
        raise NotImplementedError

    def token_shards(self, split: Split) -> TokenShards:
        """Return the token ids of a split, which are read where they are and not encoded.

        Called only for a corpus that declares `modality: ids`. It writes the same ids as numbers in `documents`.
        """
        raise NotImplementedError

    def skipped_inputs(self) -> dict[str, int]:
        """Return the number of skipped inputs by reason; reported before training starts."""
        return {}


PIXEL_VALUES: Final = 256
FIRST: Final = 0x2800  # first of the 256 Braille patterns: one character per value, and none is white space


def image_document(name: str, pixels: Pixels, label: int) -> Document:
    """Return the document of an image, (height, width, channels), of the class `label`.

    One character per value, line by line, the channels of a pixel together.
    """
    return Document(name, (pixels_to_text(pixels.reshape(-1)),), labels=(label,))


def pixels_to_text(values: Pixels) -> str:
    """Return (N,) values as N characters."""
    import numpy as np

    return (values.astype("<u2") + np.uint16(FIRST)).tobytes().decode("utf-16-le")


def text_to_pixels(text: str) -> Ints:
    """Return the values of characters; a value below 0 or above 255 is not a pixel."""
    import numpy as np

    return np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2").astype(np.int64) - FIRST


class Labels(NamedTuple):
    """Labels of documents: document d has values[documents[d] : documents[d + 1]]."""

    values: Floats  # of all documents in order
    documents: Ints  # first value of each document, and the end
    names: tuple[str, ...] = ()  # of the classes that the values number, if they have names


class Tokens(Protocol):
    """Encoded documents of one split.

    `ids` is flat; sentence i is ids[sentences[i] : sentences[i + 1]]; document d has the sentences documents[d] up to,
    not including, documents[d + 1].
    """

    ids: Ints  # of all documents in order; index or `take` them, since they may be in several files
    sentences: Ints  # first id of each sentence, and the end
    documents: Ints  # first sentence of each document, and the end
    languages: Ints | None  # language of each document, as an index of `Encoded.languages`, if the corpus has them
    targets: Tokens | None  # target side of a corpus of pairs, document by document
    labels: Labels | None  # if the corpus has labels


def labels_of(tokens: Tokens, index: Ints | None = None) -> Ints:
    """Return the class of each document, or of the documents at `index`, (B,), of a corpus with labels."""
    import numpy as np

    assert tokens.labels is not None, "expected a corpus with labels"
    values = tokens.labels.values if index is None else tokens.labels.values[index]
    return np.asarray(values).astype(np.int64)

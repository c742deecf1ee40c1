"""The token store: a corpus encoded once, memory-mapped by every trial that reads it.

An entry of the cache is a folder named by all that decided its contents. Its data file is named by its own sha256, and
`meta.json`, written last and sealed, points at it: two processes that build at once do not disturb each other, and an
entry that was cut, edited or damaged is seen and built anew.
"""

from __future__ import annotations

import inspect
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from paribus.durable import (
    DamagedError,
    Json,
    damaged,
    digest,
    digest_json,
    make_folder,
    read_json,
    write_bytes,
    write_json,
)
from paribus.errors import DataError, Problem, StoreError
from paribus.slots.corpus import Corpus
from paribus.slots.tokenizer import Tokenizer, Vocabulary
from paribus.slots.tokens import Ints, Labels, Tokens
from paribus.train.encoding import SPLITS, Made, Progress, encode, shared

__all__ = ["Encoded", "Progress", "Side", "encoded", "shared", "unigram_nats"]

FORMAT: Final = 3
_ALIGNED: Final = 8

_log = logging.getLogger("paribus")


@final
@dataclass
class Side:
    """The ids of one split, as `Tokens` has them.

    A document's ids are those of its sentences one after the other; the space between two belongs to the later one.
    """

    ids: Ints
    sentences: Ints
    documents: Ints
    targets: Tokens | None = None
    languages: Ints | None = None
    labels: Labels | None = None


@final
@dataclass(frozen=True)
class Encoded:
    """A corpus as ids, and the tokenizer that made them."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    train: Tokens
    val: Tokens
    fingerprint: str  # of the corpus
    tokenizer_fingerprint: str
    dropped: Mapping[str, int]  # how many inputs were left out, by reason
    overlap: int  # documents of the validation split whose text the training split has as well
    languages: tuple[str, ...] = ()  # by their numbers, where there is more than one
    classes: tuple[str, ...] = ()  # by their numbers, where they have names

    def show(self, tokens: Tokens, rows: slice) -> str:
        """The text of some ids, for whoever wonders what a model was fed."""
        return self.tokenizer.decode([int(token) for token in tokens.ids[rows]])


def encoded(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    spec: Json,
    size: int | None,
    cache: Path,
    learned: bytes | None = None,
    allow_overlap: bool = False,
    progress: Progress = lambda what, done: None,
) -> Encoded:
    """The corpus as ids, from the cache or built into it.

    `tokenizer` comes untrained and leaves trained, on the training split and to at most `size` ids. `spec` is what the
    user wrote of corpus and tokenizer: with the corpus' fingerprint, the tokenizer's code and `size` it names the
    entry. `learned` is a tokenizer's state that is kept: nothing is learned of this corpus then.
    """
    fingerprint = corpus.fingerprint()
    kept: list[Json] = [] if learned is None else [digest(learned)]
    folder = cache / digest_json([FORMAT, fingerprint, spec, _code(tokenizer), size, *kept])
    entry = _found(folder)
    if entry is None:
        made = encode(corpus, tokenizer, size, progress, learned)
        if corpus.fingerprint() != fingerprint:
            raise _changed()
        _write(folder, tokenizer.state(), made)
        entry = _opened(folder)
    meta, data = entry
    if meta["overlap"] and not allow_overlap:
        raise _overlapping(meta["overlap"], meta["held"])
    state = data[: meta["state"]].tobytes()
    tokenizer.load(state)
    train, val = (_side(meta["sides"], data, split) for split in SPLITS)
    return Encoded(
        tokenizer,
        tokenizer.vocabulary(),
        train,
        val,
        fingerprint,
        digest(state),
        meta["dropped"],
        meta["overlap"],
        tuple(meta["languages"]),
        tuple(meta["classes"]),
    )


def unigram_nats(train: Tokens, val: Tokens, size: int) -> float:
    """Nats a token of the validation split under the training split's frequencies, one added to each of `size` ids."""
    counts = np.bincount(train.ids, minlength=size) + 1.0
    asked = np.bincount(val.ids, minlength=size)
    return float(-(asked @ np.log(counts / counts.sum())) / asked.sum())


def _code(tokenizer: Tokenizer) -> str:
    """The tokenizer's class, with the files of its folder.

    A notebook's class has none, and is never taken for one of another time.
    """
    kind = type(tokenizer)
    name = f"{kind.__module__}.{kind.__qualname__}"
    try:
        files = sorted(Path(inspect.getfile(kind)).parent.glob("*.py"))
        sources: list[Json] = [[file.name, digest(file.read_bytes().replace(b"\r\n", b"\n"))] for file in files]
    except (OSError, TypeError):
        sources = []
    return f"{name} {digest_json(sources) if sources else secrets.token_hex(32)}"


# --- entries ---


def _found(folder: Path) -> tuple[dict[str, Any], Ints] | None:
    """An entry, where there is one and it is whole."""
    try:
        return _opened(folder)
    except DamagedError as error:
        _log.warning("%s; it is built anew", error)
    except StoreError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
    return None


def _opened(folder: Path) -> tuple[dict[str, Any], Ints]:
    """An entry's meta data, and its data file mapped and held against its hash."""
    meta = read_json(folder / "meta.json")
    path = folder / f"{meta['data']}.tokens"
    try:
        data = np.asarray(np.memmap(path, np.uint8, "r"))
    except (OSError, ValueError) as error:  # numpy refuses an empty file by a ValueError
        raise damaged(path, str(error)) from error
    if digest(data.data) != meta["data"]:
        raise damaged(path, "it does not have the hash that its name says")
    return meta, data


def _side(sides: Mapping[str, Any], data: Ints, name: str) -> Side:
    ids, sentences, documents, languages, labels, labelled = (
        data[start : start + length * np.dtype(kind).itemsize].view(kind) for kind, start, length in sides[name]
    )
    targets = f"{name} targets"
    other = _side(sides, data, targets) if targets in sides else None
    told = Labels(labels, labelled) if len(labelled) else None
    return Side(ids, sentences, documents, other, languages if len(languages) else None, told)


def _write(folder: Path, state: bytes, made: Made) -> None:
    chunks: list[bytes | memoryview] = []
    end = 0

    def put(chunk: bytes | memoryview) -> int:
        nonlocal end
        padding = bytes(-len(chunk) % _ALIGNED)
        chunks.extend((chunk, padding))
        start, end = end, end + len(chunk) + len(padding)
        return start

    put(state)
    sides: dict[str, Json] = {
        name: [[array.dtype.str, put(array.data.cast("B")), len(array)] for array in arrays]
        for name, arrays in made.sides.items()
    }
    data = digest(*chunks)
    said: dict[str, Json] = {"dropped": made.dropped, "overlap": made.overlap, "held": made.held}
    said |= {"languages": list(made.languages), "classes": list(made.classes)}
    make_folder(folder)
    write_bytes(folder / f"{data}.tokens", *chunks)
    write_json(folder / "meta.json", {**said, "data": data, "state": len(state), "sides": sides})


# --- what can be wrong ---


def _changed() -> DataError:
    what = "the corpus changed while it was read"
    return DataError(Problem(code="corpus-changed", path="corpus", what=what, valid="files that nobody writes to"))


def _overlapping(number: int, held: int) -> DataError:
    what = f"{number:,} of {held:,} validation documents ({number / held:.1%}) are in the training split as well"
    valid = "none, or allow_overlap to be validated on what was trained on"
    return DataError(Problem(code="overlap", path="corpus", what=what, valid=valid))

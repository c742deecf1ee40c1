"""The token store: a corpus encoded once, memory-mapped by every trial that reads it.

An entry of the cache is a folder named by all that decided its contents. Its data file is named by its own sha256, and
`meta.json`, written last and sealed, points at it: an entry that was cut, edited or damaged is seen and built anew. It
is built shard by shard in a folder within, by one process and those that it starts; others wait for it. What was
finished when it was killed is taken up again.
"""

from __future__ import annotations

import fcntl
import inspect
import logging
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from paribus.errors import DataError, ParibusError, Problem, StoreError
from paribus.slots.component import Component
from paribus.slots.corpus import Corpus, Document
from paribus.slots.tokenizer import Tokenizer, Vocabulary
from paribus.slots.tokens import Ints, Labels, Tokens
from paribus.storage.atomic import DamagedError, Json, digest, digest_json, make_folder, read_json, write_json
from paribus.train.corpus_shards import Shard, Shards, dropped_counts
from paribus.train.encoding import KEY, SPLITS, Array, Progress, encode, is_paired
from paribus.train.token_entries import FORMAT, read_entry, side_columns, write_entry
from paribus.train.worker_pool import cores

__all__ = ["EncodedCorpus", "Progress", "SplitTokens", "encode_corpus", "encode_documents"]

_BUILDING: Final = "building"

_log = logging.getLogger("paribus")


@final
@dataclass
class SplitTokens:
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
class EncodedCorpus:
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
    built: bool = False  # whether it was encoded just now, and not found
    bytes: int = 0  # of the validation split's text, in UTF-8; 0 where it is none

    @property
    def unknown(self) -> float:
        """Which share of the validation split's tokens the tokenizer has no other name for than unknown."""
        unknown = self.vocabulary.specials.get("unk")
        return 0.0 if unknown is None else float(np.mean(np.asarray(self.val.ids) == unknown))

    def show(self, tokens: Tokens, rows: slice) -> str:
        """The text of some ids, for whoever wonders what a model was fed."""
        return self.tokenizer.decode([int(token) for token in tokens.ids[rows]])


def encode_corpus(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    spec: Json,
    size: int | None,
    cache: Path,
    learned: bytes | None = None,
    allow_overlap: bool = False,
    progress: Progress = lambda what, done: None,
    processes: int | None = None,
) -> EncodedCorpus:
    """The corpus as ids, from the cache or built into it, by `processes` at once (None: one for each core).

    `tokenizer` comes untrained and leaves trained, on the training split and to at most `size` ids. `spec` is what the
    user wrote of corpus and tokenizer: with the corpus' fingerprint, the tokenizer's code and `size` it names the
    entry. `learned` is a tokenizer's state that is kept: nothing is learned of this corpus then.
    """
    fingerprint = _fingerprint(corpus, cache)
    encode_documents = tokenizer.external_fingerprint() if learned is None else digest(learned)
    kept: list[Json] = [encode_documents] if encode_documents else []
    folder = cache / digest_json([FORMAT, fingerprint, spec, _code(tokenizer), size, *kept])
    entry = _found(folder)
    built = False
    if entry is None:
        make_folder(folder)
        with _alone(folder) as waited:
            entry = _found(folder) if waited else None
            if entry is None:
                shards = Shards(folder / _BUILDING, corpus, tokenizer, progress)
                _build(folder, shards, size, learned, fingerprint, processes or cores())
                entry, built = read_entry(folder), True
    meta, data = entry
    if meta["overlap"] and not allow_overlap:
        raise _overlapping(meta["overlap"], meta["held"])
    state = data[: meta["state"]].tobytes()
    tokenizer.load(state)
    train, val = (_side(meta["sides"], data, split) for split in SPLITS)
    return EncodedCorpus(
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
        built,
        meta["bytes"],
    )


def encode_documents(documents: Iterable[Document], tokenizer: Tokenizer) -> SplitTokens:
    """Documents of no split, as a tokenizer that is trained reads them; nothing of it is kept."""
    found = list(documents)
    part = encode(found, tokenizer, paired=is_paired(found, tokenizer))
    sides: list[SplitTokens] = []
    for flat in reversed(part.sides):
        sentences, ends, labelled = (
            np.insert(np.cumsum(sizes), 0, 0) for sizes in (flat.sentences, flat.documents, flat.labelled)
        )
        told = Labels(flat.labels, labelled) if len(flat.labels) else None
        sides.append(SplitTokens(flat.ids, sentences, ends, sides[-1] if sides else None, labels=told))
    return sides[-1]


# --- names ---


def _fingerprint(corpus: Corpus, cache: Path) -> str:
    """The corpus' own, or what it was when a glance told the same: a large one is not read for each trial."""
    glance = corpus.quick_fingerprint()
    if glance is None:
        return corpus.fingerprint()
    path = cache / "glances" / f"{digest_json([_code(corpus), glance])}.json"
    with suppress(StoreError):
        return str(read_json(path)["fingerprint"])
    found = corpus.fingerprint()
    if corpus.quick_fingerprint() == glance:
        make_folder(path.parent)
        write_json(path, {"fingerprint": found})
    return found


def _code(component: Component) -> str:
    """The component's class, with the files of its folder.

    A notebook's class has none, and is never taken for one of another time.
    """
    kind = type(component)
    name = f"{kind.__module__}.{kind.__qualname__}"
    try:
        file = Path(inspect.getfile(kind))
        files = sorted(file.parent.glob("*.py")) if file.is_file() else []  # "<stdin>" is not a file
        sources: list[Json] = [[file.name, digest(file.read_bytes().replace(b"\r\n", b"\n"))] for file in files]
    except (OSError, TypeError):
        sources = []
    return f"{name} {digest_json(sources) if sources else secrets.token_hex(32)}"


# --- entries ---


def _found(folder: Path) -> tuple[dict[str, Any], Ints] | None:
    """An entry, where there is one and it is whole."""
    try:
        return read_entry(folder)
    except DamagedError as error:
        _log.warning("%s; it is built anew", error)
    except StoreError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
    return None


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """While one process builds an entry the others wait for it: whether this one had to."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    waited = False
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = True
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: whoever builds there at the same time writes the same
            pass
        yield waited
    finally:
        os.close(descriptor)


def _build(
    folder: Path, shards: Shards, size: int | None, learned: bytes | None, fingerprint: str, processes: int
) -> None:
    corpus, place = shards.corpus, shards.folder
    make_folder(place)
    try:
        state = shards.train(size, learned)
        found = shards.build(processes)
        if _fingerprint(corpus, folder.parent) != fingerprint:
            raise _changed()
        languages = _numbered(shard for split in SPLITS for shard in found[split])
        sides = {
            name: side_columns(found[split], side, languages)
            for split in SPLITS
            for side, name in enumerate((split, f"{split} targets")[: found[split][0].sides])
        }
        images = corpus.traits.get("modality") == "images"  # whose letters are no text
        said: dict[str, Json] = {
            "dropped": {**corpus.skipped_inputs(), **dropped_counts(found)},
            "overlap": overlap([shard.keys() for shard in found["train"]], [shard.keys() for shard in found["val"]]),
            "held": sum(shard.count for shard in found["val"]),
            "languages": list(languages),
            "classes": list(corpus.classes()),
            "bytes": 0 if images else sum(shard.meta["bytes"] for shard in found["val"]),
        }
        write_entry(folder, state, sides, said)
    except ParibusError as error:
        if isinstance(error, DataError):  # the same again, whoever builds it next
            shutil.rmtree(place, ignore_errors=True)
        raise
    shutil.rmtree(place, ignore_errors=True)


def _numbered(shards: Iterable[Shard]) -> dict[str, int]:
    """All languages by number, in the order in which they came; nothing where there is only one."""
    found: dict[str, int] = {}
    for shard in shards:
        for name in shard.languages:
            found.setdefault(name, len(found))
    return found if len(found) > 1 else {}


def overlap(train: Iterable[Array], val: Sequence[Array]) -> int:
    """How many texts of the validation split the training split has as well, to the letter; keys of each, (N, KEY)."""
    held, counts = np.unique(np.concatenate([_whole(keys) for keys in val]), return_counts=True)
    found = np.zeros(len(held), bool)
    for keys in train:
        found |= np.isin(held, _whole(keys))
    return int(counts[found].sum())


def _whole(keys: Array) -> Array:
    """(N, KEY) bytes as N values: numpy drops zeros at their ends, which tells no two of one length apart."""
    return np.ascontiguousarray(keys).view(f"S{KEY}").reshape(-1)


def _side(sides: Mapping[str, Any], data: Ints, name: str) -> SplitTokens:
    ids, sentences, documents, languages, labels, labelled = (
        data[start : start + length * np.dtype(kind).itemsize].view(kind) for kind, start, length in sides[name]
    )
    targets = f"{name} targets"
    other = _side(sides, data, targets) if targets in sides else None
    told = Labels(labels, labelled) if len(labelled) else None
    return SplitTokens(ids, sentences, documents, other, languages if len(languages) else None, told)


# --- what can be wrong ---


def _changed() -> DataError:
    message = "the corpus changed while it was read"
    return DataError(
        Problem(code="corpus-changed", path="corpus", message=message, valid="files that nobody writes to")
    )


def _overlapping(number: int, held: int) -> DataError:
    message = f"{number:,} of {held:,} validation documents ({number / held:.1%}) are in the training split as well"
    valid = "none, or allow_overlap to be validated on what was trained on"
    return DataError(Problem(code="overlap", path="corpus", message=message, valid=valid))

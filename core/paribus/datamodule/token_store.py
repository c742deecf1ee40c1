"""Token store: a cache of encoded corpora, which every trial memory-maps.

An entry is a folder, named by a hash of everything that decides its contents. Its data file has its SHA-256 as name,
and `meta.json`, sealed and written last, names the file: a truncated, edited or damaged entry is detected and rebuilt.
One process builds an entry, shard by shard, with its workers; other processes wait. Finished shards of an interrupted
build are reused.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from paribus.datamodule.corpus_fingerprint import component_code, corpus_fingerprint
from paribus.datamodule.corpus_shards import Shard, Shards, dropped_counts, no_documents_error
from paribus.datamodule.encoding import KEY, SPLITS, Array, Progress, encode, is_paired
from paribus.datamodule.token_cache_entries import (
    FORMAT,
    Column,
    array_column,
    bound_columns,
    read_entry,
    side_columns,
    write_entry,
)
from paribus.datamodule.token_shards import join_shards, scan
from paribus.datamodule.worker_pool import cores
from paribus.errors import DataError, ParibusError, Problem, StoreError
from paribus.slots.corpus import Corpus, Document, Ints, Labels, Split, Tokens
from paribus.slots.tokenizer import Tokenizer, Vocabulary
from paribus.storage.atomic import DamagedError, Json, digest, digest_json, make_folder

__all__ = ["EncodedCorpus", "Progress", "SplitTokens", "encode_corpus", "encode_documents"]

_BUILDING: Final = "building"
_COUNTS: Final = "train counts"

_log = logging.getLogger("paribus")


@final
@dataclass
class SplitTokens:
    """Ids of one split, as `Tokens` defines them.

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
    """Encoded corpus with its trained tokenizer."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    train: Tokens
    val: Tokens
    fingerprint: str  # of the corpus
    tokenizer_fingerprint: str
    dropped: Mapping[str, int]  # number of skipped inputs, by reason
    overlap: int  # validation documents whose text is also in the training split
    languages: tuple[str, ...] = ()  # names by number, if there are several
    classes: tuple[str, ...] = ()  # names by number, if they have names
    built: bool = False  # True if it was encoded now, not read from the cache
    bytes: int = 0  # of the validation split's text in UTF-8; 0 for other data
    lost_bytes: int = 0  # of these, those that decoding does not restore
    has_end_tokens: bool = False  # the ids contain the tokens between documents, so that none is added
    token_counts: Ints | None = None  # of each id in the training split, if they were counted

    @property
    def unknown(self) -> float:
        """Fraction of the validation split's tokens that are unknown to the tokenizer."""
        unknown = self.vocabulary.specials.get("unk")
        return 0.0 if unknown is None else float(np.mean(np.asarray(self.val.ids) == unknown))

    @property
    def lost(self) -> float:
        """Share of the validation split's bytes that decoding does not restore; above 0, the tokenizer is lossy."""
        return self.lost_bytes / self.bytes if self.bytes else 0.0

    @property
    def packing_vocabulary(self) -> Vocabulary:
        """Vocabulary whose end token is added at the end of each document: without one if the ids contain it."""
        if not self.has_end_tokens:
            return self.vocabulary
        specials = {name: token for name, token in self.vocabulary.specials.items() if name not in ("eos", "sep")}
        return self.vocabulary._replace(specials=specials)

    def show(self, tokens: Tokens, rows: slice) -> str:
        """Return the text of some ids, for inspection."""
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
    progress: Progress = lambda stage, count: None,
    processes: int | None = None,
) -> EncodedCorpus:
    """Return the encoded corpus from the cache, or build it with several processes (None: one per core).

    The tokenizer is trained on the training split, with at most `size` ids. `spec` has the options of corpus and
    tokenizer: with the fingerprint of the corpus, the code of the tokenizer and `size` it names the entry. `learned` is
    the state of a trained tokenizer, which is then not trained again.

    The ids of a tokenized corpus stay where they are: its entry has the bounds of its documents.
    """
    is_tokenized = corpus.traits.get("modality") == "ids"
    fingerprint = corpus_fingerprint(corpus, cache)
    external_fingerprint = tokenizer.external_fingerprint() if learned is None else digest(learned)
    tokenizer_key: list[Json] = [external_fingerprint] if external_fingerprint else []
    folder = cache / digest_json([FORMAT, fingerprint, spec, component_code(tokenizer), size, *tokenizer_key])
    entry = _read_undamaged(folder)
    built = False
    if entry is None:
        make_folder(folder)
        with _exclusive_lock(folder) as waited:
            entry = _read_undamaged(folder) if waited else None
            if entry is None:
                if is_tokenized:
                    _build_bounds(folder, corpus, tokenizer, size, learned, fingerprint)
                else:
                    shards = Shards(folder / _BUILDING, corpus, tokenizer, progress)
                    _build(folder, shards, size, learned, fingerprint, processes or cores())
                entry, built = read_entry(folder), True
    meta, data = entry
    if meta["overlap"] and not allow_overlap:
        raise _overlap_error(meta["overlap"], meta["held"])
    state = data[: meta["state"]].tobytes()
    tokenizer.load(state)
    names = tuple(meta["classes"])
    train, val = (_side(meta["sides"], data, split, names) for split in SPLITS)
    if is_tokenized:
        train, val = (_with_ids(side, corpus, split) for side, split in zip((train, val), SPLITS, strict=True))
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
        names,
        built,
        meta["bytes"],
        meta["lost"],
        is_tokenized,
        _array(data, *meta["sides"][_COUNTS][0]) if is_tokenized else None,
    )


def encode_documents(documents: Iterable[Document], tokenizer: Tokenizer, classes: tuple[str, ...] = ()) -> SplitTokens:
    """Encode documents with a trained tokenizer, without the cache; `classes` are the names of their classes."""
    document_list = list(documents)
    part = encode(document_list, tokenizer, paired=is_paired(document_list, tokenizer))
    sides: list[SplitTokens] = []
    for flat in reversed(part.sides):
        sentences, ends, labelled = (
            np.insert(np.cumsum(sizes), 0, 0) for sizes in (flat.sentences, flat.documents, flat.labelled)
        )
        labels = Labels(flat.labels, labelled, classes) if len(flat.labels) else None
        sides.append(SplitTokens(flat.ids, sentences, ends, sides[-1] if sides else None, labels=labels))
    return sides[-1]


# --- entries ---


def _read_undamaged(folder: Path) -> tuple[dict[str, Any], Ints] | None:
    """Return an entry, if it exists and is undamaged."""
    try:
        return read_entry(folder)
    except DamagedError as error:
        _log.warning("%s; it is rebuilt", error)
    except StoreError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
    return None


@contextmanager
def _exclusive_lock(folder: Path) -> Iterator[bool]:
    """Hold the lock of an entry, which one process builds at a time. The value is True if this process had to wait."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    waited = False
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = True
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:  # a file system without locks: processes that build at the same time write the same
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
        shards_by_split = shards.build(processes)
        if corpus_fingerprint(corpus, folder.parent) != fingerprint:
            raise _changed_error()
        languages = _number_languages(shard for split in SPLITS for shard in shards_by_split[split])
        sides = {
            name: side_columns(shards_by_split[split], side, languages)
            for split in SPLITS
            for side, name in enumerate((split, f"{split} targets")[: shards_by_split[split][0].sides])
        }
        images = corpus.traits.get("modality") == "images"  # their documents are not text
        meta_fields: dict[str, Json] = {
            "dropped": {**corpus.skipped_inputs(), **dropped_counts(shards_by_split)},
            "overlap": overlap(
                [shard.keys() for shard in shards_by_split["train"]], [shard.keys() for shard in shards_by_split["val"]]
            ),
            "held": sum(shard.count for shard in shards_by_split["val"]),
            "languages": list(languages),
            "classes": list(corpus.classes()),
            "bytes": 0 if images else sum(shard.meta["bytes"] for shard in shards_by_split["val"]),
            "lost": sum(shard.meta["lost"] for shard in shards_by_split["val"]),
        }
        write_entry(folder, state, sides, meta_fields)
    except ParibusError as error:
        if isinstance(error, DataError):  # rebuilding would give the same error
            shutil.rmtree(place, ignore_errors=True)
        raise
    shutil.rmtree(place, ignore_errors=True)


def _build_bounds(
    folder: Path, corpus: Corpus, tokenizer: Tokenizer, size: int | None, learned: bytes | None, fingerprint: str
) -> None:
    """Write the entry of a tokenized corpus: the state of the tokenizer, and the bounds of documents."""
    if learned is None:
        tokenizer.train(_no_texts(), size)
    else:
        tokenizer.load(learned)
    vocabulary = tokenizer.vocabulary()
    scans = {split: scan(corpus.token_shards(split), vocabulary) for split in SPLITS}
    if corpus_fingerprint(corpus, folder.parent) != fingerprint:
        raise _changed_error()
    for split in SPLITS:
        if not scans[split].bounds[-1]:
            raise no_documents_error(split, corpus.skipped_inputs())
    meta_fields: dict[str, Json] = {
        "dropped": {**corpus.skipped_inputs()},
        "overlap": 0,
        "held": len(scans["val"].bounds) - 1,
        "languages": [],
        "classes": [],
        "bytes": 0,
        "lost": 0,
    }
    sides: dict[str, list[Column]] = {split: bound_columns(scans[split].bounds) for split in SPLITS}
    sides[_COUNTS] = [array_column(scans["train"].counts)]
    write_entry(folder, learned or tokenizer.state(), sides, meta_fields)


def _no_texts() -> Iterator[str]:
    """Raise an error if a tokenizer needs texts for its training."""
    message = "the tokenizer is trained on text, but the corpus has token ids only"
    valid = "a tokenizer with a fixed vocabulary: the one that made the ids"
    raise DataError(Problem(code="no-text", path="tokenizer", message=message, valid=valid))
    yield


def _number_languages(shards: Iterable[Shard]) -> dict[str, int]:
    """Number the languages in their order; empty if there is only one."""
    numbers: dict[str, int] = {}
    for shard in shards:
        for name in shard.languages:
            numbers.setdefault(name, len(numbers))
    return numbers if len(numbers) > 1 else {}


def overlap(train: Iterable[Array], val: Sequence[Array]) -> int:
    """Return the number of validation texts that are also in the training split, from their keys, (N, KEY)."""
    val_keys, counts = np.unique(np.concatenate([_as_scalars(keys) for keys in val]), return_counts=True)
    is_shared = np.zeros(len(val_keys), bool)
    for keys in train:
        is_shared |= np.isin(val_keys, _as_scalars(keys))
    return int(counts[is_shared].sum())


def _as_scalars(keys: Array) -> Array:
    """Return (N, KEY) bytes as N values. Numpy ignores trailing zeros, which does not matter for equal lengths."""
    return np.ascontiguousarray(keys).view(f"S{KEY}").reshape(-1)


def _side(sides: Mapping[str, Any], data: Ints, name: str, names: tuple[str, ...] = ()) -> SplitTokens:
    ids, sentences, documents, languages, labels, labelled = (_array(data, *place) for place in sides[name])
    targets = f"{name} targets"
    target_tokens = _side(sides, data, targets) if targets in sides else None
    split_labels = Labels(labels, labelled, names) if len(labelled) else None
    return SplitTokens(ids, sentences, documents, target_tokens, languages if len(languages) else None, split_labels)


def _array(data: Ints, kind: str, start: int, length: int) -> Ints:
    return data[start : start + length * np.dtype(kind).itemsize].view(kind)


def _with_ids(side: SplitTokens, corpus: Corpus, split: Split) -> SplitTokens:
    """Return a split of a tokenized corpus with its ids, which are read from the corpus itself."""
    ids = join_shards(corpus.token_shards(split))
    if len(ids) != side.sentences[-1]:
        raise _changed_error()
    return replace(side, ids=ids)


# --- errors ---


def _changed_error() -> DataError:
    message = "the corpus changed while it was read"
    return DataError(
        Problem(code="corpus-changed", path="corpus", message=message, valid="files that nobody writes to")
    )


def _overlap_error(number: int, total: int) -> DataError:
    message = f"{number:,} of {total:,} validation documents ({number / total:.1%}) are in the training split as well"
    valid = "no shared documents, or `allow_overlap`"
    return DataError(Problem(code="overlap", path="corpus", message=message, valid=valid))

"""Checks of corpora: readings, splits, outside influences, declared contents, longer documents and options."""

from __future__ import annotations

import itertools
import shutil
import weakref
from collections.abc import Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Final, NamedTuple

import numpy as np

from paribus.assembly.components import make
from paribus.errors import DataError, ParibusError
from paribus.schema import Option
from paribus.slots.corpus import PIXEL_VALUES, Corpus, Document, Split, text_to_pixels
from paribus.specs.tree import document_fact, is_met
from paribus.testing.data_checks import write_files
from paribus.testing.declared_contents import document_fault, text_fault
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.option_specs import (
    MAX_NUMERIC_VALUES,
    Spec,
    flatten_options,
    is_choice,
    other_values,
    spec_with_options,
)
from paribus.testing.purity_checks import (
    component_folder,
    external_reads,
    generator_states,
    process_fault,
    restored_settings,
    seed_generators,
)

MAX_DOCUMENTS: Final = 5000  # documents of each split that a check reads
MAX_COMPARED: Final = 200_000  # documents of each split that are compared with those of the other
FEW_DOCUMENTS: Final = 600  # of the readings of another option, and of those whose calls are traced
SPLITS: Final[tuple[Split, ...]] = ("train", "val")
TIMES: Final = (2, 4)  # lengths of longer documents
FILE_KINDS: Final = frozenset({".txt", ".md", ".jsonl", ".csv", ".tsv", ".bin"})  # kinds of files that are generated
_READING: Final = """
import itertools
from paribus.slots.corpus import Corpus
corpus = make(registry, "corpus", request["node"], kind=Corpus)
digest.update(corpus.fingerprint().encode())
for split in ("train", "val"):
    for document in itertools.islice(corpus.documents(split), request["count"]):
        digest.update(repr(tuple(document)).encode("utf-8", "surrogatepass"))
"""

Documents = Mapping[Split, list[Document]]


def corpus_documents(case: Case, host: HostModel) -> Verdict:
    """A split has the same documents in the same order in every reading: again, in part, or beside the other split."""
    expected = _documents(case, host)
    if expected is None:
        return DOES_NOT_APPLY
    empty = [split for split, documents in expected.items() if not documents]
    if empty:
        return f"the split `{empty[0]}` is empty; expected at least one document"
    corpus, untouched = make_corpus(case, host), make_corpus(case, host)
    if _read(corpus) != expected or _read(corpus) != expected:
        return "a second reading gives other documents or another order"
    for split in SPLITS:
        list(itertools.islice(corpus.documents(split), 3))
        if list(itertools.islice(corpus.documents(split), MAX_DOCUMENTS)) != expected[split]:
            return f"the split `{split}` has other documents after a reading that stopped after 3"
    readers = {split: untouched.documents(split) for split in reversed(SPLITS)}
    beside: Documents = {split: [] for split in SPLITS}
    for _ in range(MAX_DOCUMENTS):
        for split, reader in readers.items():
            beside[split].extend(itertools.islice(reader, 1))
    if beside != expected:
        return "the documents are others if both splits are read in turn. Usual cause: a generator that both share"
    return _description_fault([make_corpus(case, host), corpus, corpus])


def _description_fault(corpora: Sequence[Corpus]) -> str:
    """Return a message if a new corpus, and one that was read, describe their documents differently."""
    for name in ("fingerprint", "quick_fingerprint", "skipped_inputs", "classes"):
        values = [getattr(corpus, name)() for corpus in corpora]
        if any(value != values[0] for value in values):
            return f"two calls of `{name}` give different values, so a trial could not be resumed"
    return HOLDS


def corpus_splits(case: Case, host: HostModel) -> Verdict:
    """No text is in both splits, nor one that differs from it in case and spaces only, up to 200,000 documents."""
    if _documents(case, host) is None:
        return DOES_NOT_APPLY
    corpus, is_text = make_corpus(case, host), case.entry.traits.get("modality", "text") == "text"
    normalized = _normalized if is_text else str
    training = {normalized(document.text) for document in itertools.islice(corpus.documents("train"), MAX_COMPARED)}
    for document in itertools.islice(corpus.documents("val"), MAX_COMPARED):
        if normalized(document.text) in training:
            return (
                f"the document {document.text[:40]!r} is in both splits, or differs in case and spaces only, so "
                "validation would measure training data"
            )
    return HOLDS


def _normalized(text: str) -> str:
    return " ".join(text.casefold().split())


def corpus_inputs(case: Case, host: HostModel) -> Verdict:
    """Documents depend on options and files only: not on global generators, clocks, environment, folder or hash seed.

    The hash seed and the environment are changed in new processes, for a component that these can import.
    """
    expected = _documents(case, host)
    if expected is None:
        return DOES_NOT_APPLY
    with restored_settings():
        seed_generators(7)
        before = generator_states()
        if _read(make_corpus(case, host)) != expected:
            return "the documents depend on the global generators; draw from a generator that is keyed by an option"
        if generator_states() != before:
            return "reading changes a global generator of torch, Python or NumPy"
    reads = external_reads(lambda: _read(make_corpus(case, host), FEW_DOCUMENTS), folder=component_folder(case))
    if reads:
        return f"reading calls {reads[0]}; expected documents that depend on options and files only"
    with TemporaryDirectory() as other, chdir(other):
        try:
            if _read(make_corpus(case, host)) != expected:
                return "the documents depend on the working directory"
        except DataError:  # the option is a relative path
            pass
    node = _with_files(case, host.spec["corpus"])
    return process_fault(case, _READING, {"node": node, "count": MAX_DOCUMENTS}, "read other documents")


def corpus_contents(case: Case, host: HostModel) -> Verdict:
    """Targets, labels, scores, tags and answers are those that `provides` declares, with at least two values."""
    documents = _documents(case, host)
    if documents is None:
        return DOES_NOT_APPLY
    traits, node = case.entry.traits, host.spec["corpus"]
    absent = {name for name, condition in traits.get("provides_if", {}).items() if not is_met(node, condition)}
    provides = frozenset(traits.get("provides", [])) - absent
    facts = _facts(case, host)
    names = make_corpus(case, host).classes()
    declared = facts.get("classes") or len(names)  # an empty list of names declares nothing
    if names and (len(names) != declared or len(set(names)) < len(names)):
        return f"`classes` returns {names}; expected {declared} different names, as `document_facts` declares"
    classes = declared or None
    for document in itertools.chain(*documents.values()):
        fault = document_fault(document, provides, classes, marks="marks" in facts)
        if fault:
            return f"{document.name!r} {fault}"
    labels = {document.labels for document in documents["train"]}
    if len(labels) == 1 and provides & {"labels", "scores"} and len(documents["train"]) > 1:
        return f"all documents of the training split have the labels {labels.pop()}; expected at least two values"
    return HOLDS


def corpus_texts(case: Case, host: HostModel) -> Verdict:
    """Sentences are tuples of text that can be encoded, none of them blank, and no document is empty."""
    documents = _documents(case, host)
    if documents is None:
        return DOES_NOT_APPLY
    for document in itertools.chain(*documents.values()):
        fault = text_fault(document)
        if fault:
            return f"{document.name!r} {fault}"
    return HOLDS


def corpus_images(case: Case, host: HostModel) -> Verdict:
    """Each image has the declared size and channels, and one label among the declared classes."""
    if case.entry.traits.get("modality") != "images":
        return DOES_NOT_APPLY
    documents, facts = _documents(case, host), _facts(case, host)
    for document in itertools.chain(*(documents or {}).values()):
        pixels = text_to_pixels(document.text)
        if pixels.min() < 0 or pixels.max() >= PIXEL_VALUES or len(document.labels) != 1:
            return f"{document.name!r} is not an image with one label; expected a document of `image_document`"
        if len(pixels) != facts["image"] ** 2 * facts["channels"]:
            size = f"{facts['image']} x {facts['image']} x {facts['channels']}"
            return f"{document.name!r} has {len(pixels):,} values; expected {size}, as `document_facts` declares"
        if not 0 <= document.labels[0] < facts["classes"]:
            return f"{document.name!r} has the label {document.labels[0]}; expected 0 to {facts['classes'] - 1}"
    return DOES_NOT_APPLY if documents is None else HOLDS


def corpus_ids(case: Case, host: HostModel) -> Verdict:
    """The ids of a tokenized corpus are the numbers in its documents, and its rows are in order."""
    documents = _documents(case, host)
    if documents is None or case.entry.traits.get("modality") != "ids":
        return DOES_NOT_APPLY
    for split in SPLITS:
        shards = make_corpus(case, host).token_shards(split).shards
        ids = np.concatenate([shard.ids for shard in shards])
        numbers = [number for document in documents[split] for number in map(int, document.text.split())]
        is_complete = len(documents[split]) < MAX_DOCUMENTS
        if numbers != ids[: None if is_complete else len(numbers)].tolist():
            return f"`token_shards` of the split `{split}` has other ids than its documents show"
        for name, shard_ids, rows in shards:
            if rows is not None and ([*rows[:1], *rows[-1:]] != [0, len(shard_ids)] or (np.diff(rows) < 0).any()):
                return f"the rows of {name!r} are not bounds from 0 to {len(shard_ids):,}, in order"
    return HOLDS


def longer_documents(case: Case, host: HostModel) -> Verdict:
    """Longer documents, where declared, are as much longer as requested, reproducible and different."""
    documents = _documents(case, host)
    if documents is None or "longer" not in case.entry.traits.get("provides", []):
        return DOES_NOT_APPLY
    corpus = make_corpus(case, host)
    previous = max(map(_length, documents["val"]))
    for times in TIMES:
        try:
            longer = list(itertools.islice(corpus.longer_documents(times), FEW_DOCUMENTS))
        except DataError:  # the corpus has no documents of this length
            continue
        if not longer or list(itertools.islice(corpus.longer_documents(times), FEW_DOCUMENTS)) != longer:
            return f"`longer_documents({times})` gives no documents, or others in a second call"
        if len({document.text for document in longer}) < len(longer) / 2:
            return f"`longer_documents({times})` repeats its documents"
        if max(map(_length, longer)) <= previous:
            return f"the longest of `longer_documents({times})` has {previous} words or fewer, as shorter ones have"
        previous = max(map(_length, longer))
    return HOLDS


def _length(document: Document) -> int:
    return len(document.text.split())


class Contents(NamedTuple):
    """Documents without their names, and the fingerprints that belong to them."""

    texts: list[tuple[Any, ...]]
    fingerprints: frozenset[str]


def behaviour(case: Case, host: HostModel, spec: Spec) -> Contents | None:
    """Return what a corpus contains, read once; None if it reads files that are not there."""
    key = ("contents", repr(spec["corpus"]))
    if key not in case.setups:
        case.setups[key] = (
            None if _documents(case, host) is None else _contents(case, _with_files(case, spec["corpus"]))
        )
    contents: Contents | None = case.setups[key]
    return contents


def _contents(case: Case, node: Any) -> Contents | None:
    """Return what a corpus contains; None if its options are not valid."""
    try:
        corpus = make(case.registry, "corpus", node, kind=Corpus)
        documents = _read(corpus, FEW_DOCUMENTS)
        quick = corpus.quick_fingerprint()
        fingerprints = [corpus.fingerprint(), *([] if quick is None else [f"quick {quick}"])]
    except (ParibusError, ValueError):
        return None
    texts = [(split, *document[1:]) for split, split_documents in documents.items() for document in split_documents]
    return Contents(texts, frozenset(fingerprints))


def has_same_documents(contents: Contents, other: Contents) -> bool:
    return contents.texts == other.texts


def is_descriptive_option(case: Case, option: Option) -> bool:
    """Return True if an option need not change documents.

    It describes them, as `document_facts` declares, or belongs to a corpus with a quick fingerprint: its files may lack
    what an option selects.
    """
    reads_files = case.component.quick_fingerprint is not Corpus.quick_fingerprint
    facts = case.entry.traits.get("document_facts", {}).values()
    return reads_files or any(option.name in str(fact).split("|") for fact in facts)


def fingerprints(case: Case, host: HostModel) -> Verdict:
    """An option that changes the documents changes the fingerprint, so that old data are not used."""
    default = behaviour(case, host, host.spec)
    for path, option in flatten_options(case.entry.options):
        for value in other_values(case, host, option)[: None if is_choice(option) else MAX_NUMERIC_VALUES]:
            spec = spec_with_options(case, host, {path: value})
            changed = None if spec is None else behaviour(case, host, spec)
            if default is None or changed is None or changed.texts == default.texts:
                continue
            if changed.fingerprints & default.fingerprints:
                return (
                    f"the option `{'.'.join(path)}` changes the documents, but not the fingerprint, so data that were "
                    "encoded with another value would be used"
                )
    return HOLDS


def _facts(case: Case, host: HostModel) -> dict[str, Any]:
    """Return the facts of the documents, with the values of the options that have them; of a list, its length."""
    facts, node = case.entry.traits.get("document_facts", {}), host.spec["corpus"]
    return {name: document_fact(node, value) for name, value in facts.items()}


def _documents(case: Case, host: HostModel) -> Documents | None:
    """Return the first documents of each split, read once; None if the corpus reads files that are not there."""
    key = ("documents", host.label)
    if key not in case.setups:
        try:
            case.setups[key] = _read(make_corpus(case, host))
        except DataError as error:  # the example options name no files, or a package is not installed
            case.obstacles.append(str(error))
            case.setups[key] = None
    documents: Documents | None = case.setups[key]
    return documents


def make_corpus(case: Case, host: HostModel) -> Corpus:
    """Return a new corpus, with generated files if it reads some."""
    return make(case.registry, "corpus", _with_files(case, host.spec["corpus"]), kind=Corpus)


def _with_files(case: Case, node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a spec node in which example patterns of files name generated files instead."""
    patterns = {
        option.name: [str(_example_files(case) / pattern) for pattern in option.sample]
        for option in case.entry.options
        if _names_example_files(option, node[option.name])
    }
    return {**node, **patterns}


def _example_files(case: Case) -> Path:
    """Return a folder with files for the example patterns of the options, written once."""
    key = ("example files",)
    if key not in case.setups:
        folder, options = Path(mkdtemp()), case.entry.options
        weakref.finalize(case, shutil.rmtree, folder, ignore_errors=True)
        fields = [option.sample for option in options if option.kind.name == "str" and isinstance(option.sample, str)]
        for option in options:
            for pattern in option.sample if _names_example_files(option, option.sample) else ():
                write_files(folder, pattern, fields)
        case.setups[key] = folder
    files: Path = case.setups[key]
    return files


def _names_example_files(option: Option, value: Any) -> bool:
    """Return True if an option has the patterns of files that are its example."""
    is_list = option.required and option.kind.name == "list"
    return (
        is_list
        and list(value) == list(option.sample)
        and all(Path(pattern).suffix in FILE_KINDS for pattern in option.sample)
    )


def _read(corpus: Corpus, count: int = MAX_DOCUMENTS) -> Documents:
    """Return the first documents of each split."""
    return {split: list(itertools.islice(corpus.documents(split), count)) for split in SPLITS}

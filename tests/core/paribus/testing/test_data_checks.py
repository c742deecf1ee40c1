"""Failures of tokenizers and corpora, and the synthetic corpus."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paribus import Corpus, Document, Tokenizer, Vocabulary, image_document
from paribus.datamodule.synthetic_corpus import SyntheticCorpus
from paribus.registry import installed
from paribus.testing import examine
from paribus.testing.conformance import CONSTRUCTION, REFERENCE, checks_of

Factory = Callable[..., Any]
FailureOf = Callable[[type[Any], str], str]
TOKENIZER = "tokenizer round trip"
CORPUS = "documents are reproducible"
SPLITS = "splits share no document"
INPUTS = "documents depend on their options only"
OPTIONS = "every option has an effect"
IMAGES = "images match their declaration"
LETTERS = Vocabulary(200, {"pad": 128, "mask": 129, "cls": 130, "sep": 131, "eos": 132})


def tokenizer(**overrides: Any) -> dict[str, Any]:
    """Return the members of a tokenizer of letters, with overrides."""
    return {
        "traits": {"provides": list(LETTERS.specials)},
        "train": lambda self, texts, size: None,
        "encode_batch": lambda self, texts: [[min(ord(letter), 127) for letter in text] for text in texts],
        "decode": lambda self, ids: "".join(map(chr, ids)),
        "vocabulary": lambda self: LETTERS,
        "state": lambda self: b"",
        "load": lambda self, state: None,
        **overrides,
    }


def test_tokenizer_of_letters_passes(component_class: Factory, failure_of: FailureOf) -> None:
    assert failure_of(component_class(Tokenizer, tokenizer()), TOKENIZER) == ""


def test_special_token_in_text_is_reported(component_class: Factory, failure_of: FailureOf) -> None:
    padding = component_class(Tokenizer, tokenizer(encode_batch=lambda self, texts: [[128] for _ in texts]))
    assert "is encoded with the id 128; expected an id of text, below the vocabulary size 200" in failure_of(
        padding, TOKENIZER
    )


def test_lost_text_is_reported(component_class: Factory, failure_of: FailureOf) -> None:
    lossy = component_class(Tokenizer, tokenizer(decode=lambda self, ids: "?"))
    assert "is decoded as '?'" in failure_of(lossy, TOKENIZER)


def test_incomplete_tokenizer_state_is_reported(component_class: Factory, failure_of: FailureOf) -> None:
    def train(self: Any, texts: Iterator[str], size: int | None) -> None:
        self.offset = 1

    def encode(self: Any, texts: list[str]) -> list[list[int]]:
        return [[ord(letter) + getattr(self, "offset", 0) for letter in text] for text in texts]

    stateless = component_class(Tokenizer, tokenizer(train=train, encode_batch=encode))
    assert "has other ids after `load(state())`" in failure_of(stateless, TOKENIZER)


def corpus(**documents: list[str]) -> dict[str, Any]:
    return {
        "documents": lambda self, split: iter([Document(text, (text,)) for text in documents[split]]),
        "fingerprint": lambda self: "always",
    }


def test_document_in_both_splits_is_reported(component_class: Factory, failure_of: FailureOf) -> None:
    leaking = component_class(Corpus, corpus(train=["a", "b"], val=["b"]))
    assert "the document 'b' is in both splits" in failure_of(leaking, SPLITS)


def test_empty_split_is_reported(component_class: Factory, failure_of: FailureOf) -> None:
    empty = component_class(Corpus, corpus(train=["a"], val=[]))
    assert "the split `val` is empty" in failure_of(empty, CORPUS)


def test_changing_documents_are_reported(component_class: Factory, failure_of: FailureOf) -> None:
    texts = iter("abcdefgh")
    members = {**corpus(), "documents": lambda self, split: iter([Document(split, (next(texts),))])}
    assert "gives other documents or another order" in failure_of(component_class(Corpus, members), CORPUS)


def test_changing_fingerprint_is_reported(component_class: Factory, failure_of: FailureOf) -> None:
    fingerprints = iter("abcdefgh")
    members = {**corpus(train=["a"], val=["b"]), "fingerprint": lambda self: next(fingerprints)}
    assert "two calls of `fingerprint` give different values" in failure_of(component_class(Corpus, members), CORPUS)


def image_corpus(values: int, label: int, **traits: Any) -> dict[str, Any]:
    """Return the members of a corpus that declares images of 4 x 4 values and 3 classes."""
    documents = {
        split: [image_document(split, np.full(values, index, np.uint8), label)]
        for index, split in enumerate(("train", "val"))
    }
    return {
        "traits": {"modality": "images", "document_facts": {"image": 4, "channels": 1, "classes": 3, **traits}},
        "documents": lambda self, split: iter(documents[split]),
        "fingerprint": lambda self: "always",
    }


def image_failures(members: dict[str, Any], component_class: Factory, components: Any) -> str:
    report = examine(
        component_class(Corpus, members),
        registry=components,
        only=[IMAGES],
        base={"preset": "vit-tiny", **SMALL_IMAGES},
    )
    assert report.passed[0] == "schema is valid"
    return "\n".join(finding.message for finding in report.findings)


SMALL_IMAGES = {
    "dims.width": 8, "dims.length": 5, "embedding.image": 4, "embedding.patch": 2, "objective.classes": 3,
    "corpus.image": 4, "corpus.classes": 3,
}  # fmt: skip


def test_wrong_image_sizes_are_reported(component_class: Factory, components: Any) -> None:
    assert image_failures(image_corpus(16, 2), component_class, components) == ""
    assert (
        image_failures(image_corpus(17, 2), component_class, components)
        == "'train' has 17 values; expected 4 x 4 x 1, as `document_facts` declares"
    )


def test_undeclared_class_is_reported(component_class: Factory, components: Any) -> None:
    assert (
        image_failures(image_corpus(16, 3), component_class, components) == "'train' has the label 3; expected 0 to 2"
    )


def test_text_document_in_an_image_corpus_is_reported(component_class: Factory, components: Any) -> None:
    members = image_corpus(16, 0) | {"documents": lambda self, split: iter([Document(split, ("text",), ("ab",))])}
    assert (
        image_failures(members, component_class, components)
        == "'train' is not an image with one label; expected a document of `image_document`"
    )


def test_corpus_without_its_files_is_skipped(components: Any) -> None:
    report = examine("corpus.datasets", registry=components)
    assert not report.ok  # nothing was tried
    assert report.skipped == tuple(name for name in checks_of("corpus") if name not in (CONSTRUCTION, REFERENCE))
    assert str(report).startswith("corpus.datasets is not tested: ")
    assert report.to_json()["not_tested"] == report.not_tested


def test_synthetic_corpus_has_disjoint_splits() -> None:
    train, val = ({document.text for document in SyntheticCorpus().documents(split)} for split in ("train", "val"))
    assert len(train) == 60
    assert not train & val
    assert SyntheticCorpus().fingerprint() == SyntheticCorpus().fingerprint()


@pytest.mark.parametrize("need", ["labels", "scores", "tags", "answers", "pairs"])
def test_synthetic_corpus_has_the_fields_that_an_objective_needs(need: str) -> None:
    documents = list(SyntheticCorpus(needs=[need]).documents("train"))
    assert all(bool(document.target) == (need in {"pairs", "answers"}) for document in documents)
    assert all(bool(document.labels) == (need != "pairs") for document in documents)
    assert need == "pairs" or len({document.labels for document in documents}) > 1
    for document in documents:
        if need == "tags":
            assert len(document.labels) == len(document.sentences)
        if need == "answers":
            assert 0 <= document.labels[0] <= document.labels[1] < len(document.target)


PLUGIN = '''
"""Corpora whose documents depend on the process."""
import os
from paribus import Corpus, Document, hookimpl
class Words(Corpus):
    """Words in the order of a set."""
    def documents(self, split):
        return iter([Document(word, (word,)) for word in {f"{split} {number}" for number in range(20)}])
    def fingerprint(self):
        return "words"
class Zone(Corpus):
    """The time zone, which a library reads from the environment."""
    def documents(self, split):
        return iter([Document(split, (f"{split} {vars(os)['environ']._data.get(b'TZ')}",))])
    def fingerprint(self):
        return "zone"
@hookimpl
def corpus():
    return {"words": Words, "zone": Zone}
'''


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["words", "zone"])
def test_documents_of_other_processes_are_compared(name: str, tmp_path: Path) -> None:
    file = tmp_path / "process.py"
    file.write_text(PLUGIN)
    report = examine(f"corpus.{name}", registry=installed(plugins=[file]), only=[INPUTS])
    assert "two processes read other documents" in str(report)


FILES: dict[str, tuple[dict[str, Any], str]] = {
    "text": ({"path": ["rows.jsonl"], "languages": False}, "documents"),
    "table": ({"path": ["rows.jsonl"], "label": "label", "second": "second"}, "labels"),
    "gettext": ({"path": ["de.po"], "held_out": 0.3}, "pairs"),
    "glue": ({"task": "mrpc", "path": "."}, "labels"),
    "multiple-choice": ({"task": "copa", "path": ["."]}, "choices"),
    "squad": ({"path": ["train.json"], "validation": ["dev.json"]}, "answers"),
    "conll": ({"path": ["eng.train"], "validation": ["eng.testa"]}, "tags"),
}


def write_published(folder: Path) -> None:
    """Write small files in the formats of published data sets."""
    for split, words, start in (("train", "train", 0), ("dev", "testa", 40)):
        numbers = range(start, start + 40)
        rows = [f"{number % 2}\t1\t2\ttext {number}\tother {number}\n" for number in numbers]
        (folder / f"{split}.tsv").write_text("".join(["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n", *rows]))
        answer = {"text": "Ann", "answer_start": 4}
        qas = [{"question": f"Who {number}?", "answers": [answer] * (number % 3 > 0)} for number in numbers]
        paragraphs = [{"context": "The Ann.", "qas": [{**row, "is_impossible": not row["answers"]} for row in qas]}]
        (folder / f"{split}.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
        copa = [{"premise": f"It {n}.", "choice1": "A.", "choice2": "B.", "question": "cause"} for n in numbers]
        lines = (json.dumps({**row, "label": number % 2}) for number, row in enumerate(copa))
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
        (folder / f"eng.{words}").write_text("".join(f"Ann I-PER\nIda B-PER\nand{n} O\n\n" for n in numbers))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", FILES)
def test_corpora_of_files_conform(name: str, components: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"text": f"text {i} of one.", "second": f"answer {i}.", "label": i % 2} for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    header = 'msgid ""\nmsgstr "Language: de\\n"\n'
    (tmp_path / "de.po").write_text(header + "".join(f'\nmsgid "text {i}"\nmsgstr "Text {i}"\n' for i in range(40)))
    write_published(tmp_path)
    options, provided = FILES[name]
    base = {"preset": "gpt-tiny", "dims.width": 16, "corpus": {"name": name, **options}}
    report = examine(f"corpus.{name}", registry=components, base=base)
    assert report.ok, str(report)
    assert OPTIONS in report.passed
    assert provided in components.index.entries["corpus"][name].traits["provides"]

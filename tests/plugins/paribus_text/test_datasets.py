"""Hugging Face datasets from local files, without downloads."""

import json
import sys
import types
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

import paribus
from paribus import DataError, SpecError
from paribus_text.columns import Columns
from paribus_text.datasets import Datasets, Splits
from paribus_text.table import Table

LIBRARY = "the library `datasets` is not installed (extra `datasets`)"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("a.jsonl").write_text(
        "\n".join(json.dumps({"text": f"Text {number}. More.", "label": number % 2}) for number in range(40))
    )
    return tmp_path


def sorted_splits(corpus: Any) -> list[list[tuple[Any, ...]]]:
    """Contents of both splits, without names."""
    return [sorted((it.sentences, it.labels) for it in corpus.documents(split)) for split in ("train", "val")]


def test_a_missing_library_is_reported_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with raises_problem(DataError, "not-installed", "corpus", "paribus[datasets]"):
        Datasets(dataset="json").fingerprint()


@pytest.mark.parametrize("name", ["json", "csv", "parquet", "text"])
def test_files_must_be_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", ModuleType("datasets"))
    with raises_problem(DataError, "missing-dataset", "corpus.files", name):
        list(Datasets(dataset=name).documents("train"))


def test_only_a_pinned_commit_has_a_preview() -> None:
    commit = "0123456789abcdef" * 2 + "01234567"
    assert Datasets(dataset="glue", revision="main").quick_fingerprint() is None
    assert Datasets(dataset="json", files=("a.jsonl",), revision=commit).quick_fingerprint() is None
    preview_a, preview_b = (
        Datasets(dataset="glue", revision=commit, config=config).quick_fingerprint() for config in ("cola", "sst2")
    )
    assert preview_a != preview_b
    assert None not in (preview_a, preview_b)


@pytest.mark.extras
@pytest.mark.parametrize("streaming", [False, True])
def test_files_are_read_like_those_of_the_text_corpus(streaming: bool) -> None:
    pytest.importorskip("datasets", reason=LIBRARY)
    corpus = Datasets(dataset="json", files=("a.jsonl",), columns=Columns(label="label"), streaming=streaming)
    assert sorted_splits(corpus) == sorted_splits(Table(path=("a.jsonl",), label="label"))
    assert corpus.fingerprint() == Table(path=("a.jsonl",), label="label").fingerprint()
    few = Datasets(dataset="json", files=("a.jsonl",), streaming=streaming, splits=Splits(max_rows=5))
    assert sum(map(len, sorted_splits(few))) == 5


def test_labels_are_declared_by_their_column() -> None:
    words = ("bert-tiny", "objective={name: classify, classes: 3}")
    corpus = "corpus={name: datasets, dataset: json, files: [a.jsonl], columns: {%s}}"
    spec = paribus.spec(*words, corpus % "label: label, classes: 3, names: [a, b, c]")
    assert spec.corpus.columns.names == ["a", "b", "c"]
    assert spec.corpus.splits.train == "train"
    with pytest.raises(SpecError, match=r"has only if `columns.label` is set; valid: corpus.columns.label="):
        paribus.spec(*words, corpus % "classes: 3")
    with pytest.raises(SpecError, match=r"`classes` of .* is 3, but for corpus `datasets` it is 4"):
        paribus.spec(*words, corpus % "label: label, classes: 4")
    with pytest.raises(SpecError, match=r"too-many\] corpus.columns.score"):
        Datasets(dataset="json", columns=Columns(label="a", score="b"))


def saved_folder(name: str, marker: str) -> str:
    """Return a folder that looks like one of `save_to_disk`."""
    Path(name).mkdir()
    Path(name, marker).write_text("{}")
    return name


def test_a_split_of_a_saved_folder_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    splits = {"one": rows, "two": {"train": rows[:30], "test": rows[30:]}}
    library = types.SimpleNamespace(load_from_disk=lambda path: splits[path], disable_progress_bars=lambda: None)
    monkeypatch.setitem(sys.modules, "datasets", library)
    one, two = saved_folder("one", "state.json"), saved_folder("two", "dataset_dict.json")
    assert Datasets(dataset=one).fingerprint() == Table(path=("a.jsonl",)).fingerprint()
    assert list(map(len, sorted_splits(Datasets(dataset=two, splits=Splits(validation="test"))))) == [30, 10]
    with raises_problem(DataError, "missing-dataset", "corpus.splits.validation", "tets"):
        Datasets(dataset=two, splits=Splits(validation="tets")).fingerprint()
    with raises_problem(DataError, "unused-option", "corpus"):
        Datasets(dataset=one, revision="main").fingerprint()


@pytest.mark.extras
def test_a_saved_folder_is_read_like_its_rows() -> None:
    datasets = pytest.importorskip("datasets", reason=LIBRARY)
    rows = datasets.load_dataset("json", data_files="a.jsonl", split="train")
    rows.save_to_disk("one")
    datasets.DatasetDict({"train": rows}).save_to_disk("two")
    expected = sorted_splits(Table(path=("a.jsonl",), label="label"))
    for folder in ("one", "two"):
        assert sorted_splits(Datasets(dataset=folder, columns=Columns(label="label"))) == expected


@pytest.mark.extras
def test_load_errors_of_the_library_are_reported() -> None:
    pytest.importorskip("datasets", reason=LIBRARY)
    with raises_problem(DataError, "missing-dataset", "corpus.splits.train", "json"):
        Datasets(dataset="json", files=("none.jsonl",)).fingerprint()
    with raises_problem(DataError, "missing-field", "json train, row 0", "body", "text"):
        Datasets(dataset="json", files=("a.jsonl",), columns=Columns(text="body")).fingerprint()

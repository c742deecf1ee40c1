"""Hugging Face datasets from local files, without downloads."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from paribus import DataError
from paribus_text.datasets import Datasets
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
    match = r"error\[not-installed\] corpus: .*"
    with pytest.raises(DataError, match=match + r"; valid: pip install 'paribus\[datasets\]', or files"):
        Datasets(dataset="json").fingerprint()


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
    corpus = Datasets(dataset="json", files=("a.jsonl",), label="label", streaming=streaming)
    assert sorted_splits(corpus) == sorted_splits(Table(path=("a.jsonl",), label="label"))
    assert corpus.fingerprint() == Table(path=("a.jsonl",), label="label").fingerprint()
    few = Datasets(dataset="json", files=("a.jsonl",), streaming=streaming, max_rows=5)
    assert sum(map(len, sorted_splits(few))) == 5


@pytest.mark.extras
def test_load_errors_of_the_library_are_reported() -> None:
    pytest.importorskip("datasets", reason=LIBRARY)
    match = r"error\[missing-dataset\] corpus.split: .*'json'"
    with pytest.raises(DataError, match=match):
        Datasets(dataset="json", files=("none.jsonl",)).fingerprint()
    with pytest.raises(
        DataError, match=r"error\[missing-field\] .*\(json train, row 0\): .*'body'; valid: a field of the rows: 't"
    ):
        Datasets(dataset="json", files=("a.jsonl",), text="body").fingerprint()

"""Saved models are read without torch; folders without a model are rejected with the reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures.problems import raises_problem

import paribus
from paribus.errors import StoreError
from paribus.storage.atomic import read_json, write_json
from paribus.storage.saved_model import MODEL, RECORD, WEIGHTS, find_model, read_model

TINY = ("dims={width: 12, heads: 3, layers: 1, length: 8}",)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "gpt"
    paribus.save(paribus.assemble(paribus.spec("gpt-tiny", *TINY)), folder)
    return folder


@pytest.fixture
def model(original: Path, tmp_path: Path) -> Path:
    """Copy of a saved model that a test may damage."""
    folder = tmp_path / "gpt"
    folder.mkdir()
    for name in (MODEL, WEIGHTS):
        (folder / name).write_bytes((original / name).read_bytes())
    return folder


def test_read_model_returns_spec_dtype_and_tokenizer(model: Path) -> None:
    saved_model = read_model(model)
    assert (saved_model.spec["attention"]["name"], saved_model.dtype, saved_model.is_trial) == ("mha", "float32", False)
    assert saved_model.tokenizer == paribus.load(model).tokenizer != ""


def test_the_hash_depends_on_contents_and_not_on_the_path(original: Path, model: Path, tmp_path: Path) -> None:
    assert read_model(original).sha256 == read_model(model).sha256
    other_model = tmp_path / "other"
    paribus.save(paribus.assemble(paribus.spec("gpt-tiny", *TINY, "seed=1")), other_model)
    assert read_model(other_model).sha256 != read_model(model).sha256
    document = read_json(model / MODEL)
    write_json(model / MODEL, {**document, "spec": {**document["spec"], "dropout": 0.5}})
    assert read_model(original).sha256 != read_model(model).sha256


def test_read_model_imports_no_torch(original: Path) -> None:
    statement = f"from paribus.storage.saved_model import read_model; read_model({str(original)!r}).sha256"
    code = f"import sys; {statement}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("name", "code", "values"),
    [
        ("", "missing-record", ("does not exist",)),
        ("empty", "missing-record", ("no record",)),
        ("config.json", "missing-record", ("paribus convert",)),
        (
            "pytorch_model.bin",
            "pickle",
            ("pytorch_model.bin",),
        ),
    ],
)
def test_a_folder_without_a_model_is_rejected_with_the_reason(
    tmp_path: Path, name: str, code: str, values: tuple[str, ...]
) -> None:
    folder = tmp_path / "there"
    if name:
        folder.mkdir()
        (folder / name).write_bytes(b"\x80\x04.")
    with raises_problem(StoreError, code, *values):
        read_model(folder)


def test_a_file_or_an_invalid_path_is_rejected(model: Path) -> None:
    with raises_problem(StoreError, "missing-record", "weights.safetensors"):
        read_model(model / WEIGHTS)
    with raises_problem(StoreError, "missing-record"):
        read_model("runs/\0")


def test_truncated_or_invalid_weights_are_detected_from_the_header(model: Path) -> None:
    whole = (model / WEIGHTS).read_bytes()
    for data, message in (
        (whole[:-1], r"error\[damaged\].*bytes.*header"),
        (whole[:40], r"error\[damaged\].*no hash"),
        (b"\x80\x04\x95 a pickle", r"error\[damaged\].*no hash"),
        (b"", r"error\[damaged\].*no hash"),
        (whole.replace(b'"data_offsets"', b'"data_offzets"', 1), r"error\[damaged\].*header"),
    ):
        (model / WEIGHTS).write_bytes(data)
        with pytest.raises(StoreError, match=message):
            read_model(model)
    (model / WEIGHTS).unlink()
    with raises_problem(StoreError, "missing-weights", "weights.safetensors"):
        read_model(model)


def test_an_edited_model_document_is_rejected(model: Path) -> None:
    text = (model / MODEL).read_text()
    (model / MODEL).write_text(text.replace('"layers":1', '"layers":2'))
    with raises_problem(StoreError, "damaged", "model.json", "hash"):
        read_model(model)
    write_json(model / MODEL, {"spec": "gpt-tiny", "dtype": "float32"})
    with raises_problem(StoreError, "damaged", "gpt", "tokenizer"):
        read_model(model)


def test_a_trial_is_found_by_a_prefix_of_its_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for study, identity in (("train", "1f3a9c00"), ("mine", "1f3a9c11"), ("mine", "abcd0000")):
        folder = tmp_path / "runs" / study / identity
        folder.mkdir(parents=True)
        (folder / RECORD).write_text("{}")
    (tmp_path / "runs" / "mine" / "abcd9999").mkdir()  # a trial without a record
    monkeypatch.chdir(tmp_path)
    assert find_model("1f3a9c1") == Path("runs/mine/1f3a9c11")
    assert find_model("abcd") == Path("runs/mine/abcd0000")
    assert find_model("abcd", tmp_path / "elsewhere") == Path("abcd")
    assert find_model("abc") == Path("abc")  # too short for an identity
    (tmp_path / "1f3a9c1").mkdir()
    assert find_model("1f3a9c1") == Path("1f3a9c1")  # an existing folder has precedence
    with raises_problem(StoreError, "ambiguous", "2", "runs/mine/1f3a9c11", "runs/train/1f3a9c00"):
        read_model("1f3a9c")

"""Saved models are read without torch; folders without a model are rejected with the reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
    ("name", "message"),
    [
        ("", "this folder does not exist"),
        ("empty", "this folder has no record"),
        ("config.json", "this is a model of another library; valid: `paribus convert"),
        (
            "pytorch_model.bin",
            r"its weights are a pickle, `pytorch_model\.bin`, which may run code, so it was not opened",
        ),
    ],
)
def test_a_folder_without_a_model_is_rejected_with_the_reason(tmp_path: Path, name: str, message: str) -> None:
    folder = tmp_path / "there"
    if name:
        folder.mkdir()
        (folder / name).write_bytes(b"\x80\x04.")
    with pytest.raises(StoreError, match=message):
        read_model(folder)


def test_a_file_or_an_invalid_path_is_rejected(model: Path) -> None:
    with pytest.raises(StoreError, match="expected a folder with a model"):
        read_model(model / WEIGHTS)
    with pytest.raises(StoreError, match="this folder does not exist"):
        read_model("runs/\0")


def test_truncated_or_invalid_weights_are_detected_from_the_header(model: Path) -> None:
    whole = (model / WEIGHTS).read_bytes()
    for data, message in (
        (whole[:-1], r"it has [\d,]+ bytes, but its header specifies [\d,]+"),
        (whole[:40], "it has no hash"),
        (b"\x80\x04\x95 a pickle", "it has no hash"),
        (b"", "it has no hash"),
        (whole.replace(b'"data_offsets"', b'"data_offzets"', 1), "its header cannot be read"),
    ):
        (model / WEIGHTS).write_bytes(data)
        with pytest.raises(StoreError, match=message):
            read_model(model)
    (model / WEIGHTS).unlink()
    with pytest.raises(StoreError, match=r"missing `weights\.safetensors` in this folder"):
        read_model(model)


def test_an_edited_model_document_is_rejected(model: Path) -> None:
    text = (model / MODEL).read_text()
    (model / MODEL).write_text(text.replace('"layers":1', '"layers":2'))
    with pytest.raises(StoreError, match="it does not have the hash"):
        read_model(model)
    write_json(model / MODEL, {"spec": "gpt-tiny", "dtype": "float32"})
    with pytest.raises(StoreError, match="its spec, dtype or tokenizer is missing"):
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
    with pytest.raises(StoreError, match=r"2 trials .* valid: runs/mine/1f3a9c11, runs/train/1f3a9c00"):
        read_model("1f3a9c")

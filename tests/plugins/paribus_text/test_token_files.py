"""Corpus of files with token ids: formats of other programs, and errors in them."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fixtures.problems import raises_problem

from paribus import DataError, Split
from paribus.datamodule.token_store import encode_corpus
from paribus_text import preview, token_files
from paribus_text.token_files import TokenFiles
from paribus_text.token_ids import TokenIds

TRAIN, VAL = [5, 6, 9, 7, 8, 9, 5], [6, 9, 7, 9]
LLM_C = {"<u2": (20240520, 1), "<u4": (20240801, 7)}


def write_bin(path: str, ids: Any, kind: str = "<u2", *, header: tuple[int, ...] = ()) -> str:
    """Write ids as raw numbers, or after the header of llm.c."""
    start = np.zeros(256 if header else 0, "<i4")
    start[: len(header)] = header
    Path(path).write_bytes(start.tobytes() + np.array(ids, kind).tobytes())
    return path


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write_bin("val.bin", VAL)
    return tmp_path


def corpus(*path: str, **options: Any) -> TokenFiles:
    return TokenFiles(**{"path": path, "validation": ("val.bin",), **options})


def ids(source: TokenFiles, split: Split = "train") -> list[int]:
    return [token for shard in source.token_shards(split).shards for token in shard.ids.tolist()]


@pytest.mark.parametrize(("kind", "dtype"), [("<u2", "uint16"), ("<u4", "uint32")])
def test_raw_ids_are_mapped(kind: str, dtype: str) -> None:
    source = corpus(write_bin("train.bin", TRAIN, kind), validation=(write_bin("v.bin", VAL, kind),), dtype=dtype)
    assert (ids(source), ids(source, "val")) == (TRAIN, VAL)
    (shard,) = source.token_shards("train").shards
    assert isinstance(shard.ids, np.memmap)
    assert shard.name == "train.bin"


@pytest.mark.parametrize("kind", LLM_C)
def test_files_of_llm_c_have_their_type_in_the_header(kind: str) -> None:
    write_bin("train_000002.bin", TRAIN[4:], kind, header=(*LLM_C[kind], 3))
    write_bin("train_000001.bin", TRAIN[:4], kind, header=(*LLM_C[kind], 4))
    source = corpus("train_*.bin")
    assert ids(source) == TRAIN
    assert all(isinstance(shard.ids, np.memmap) for shard in source.token_shards("train").shards)


@pytest.mark.parametrize("kind", ["uint8", "int32", "uint64"])
def test_numpy_files_are_mapped(kind: str) -> None:
    np.save("train.npy", np.array(TRAIN, kind))
    (shard,) = corpus("train.npy").token_shards("train").shards
    assert isinstance(shard.ids, np.memmap)
    assert shard.ids.tolist() == TRAIN
    assert np.result_type(shard.ids, np.int32).kind == "i"


def test_documents_show_the_ids_as_numbers() -> None:
    source = corpus(write_bin("train.bin", TRAIN))
    assert [document.text for document in source.documents("train")] == ["5 6 9 7 8 9 5"]
    tokenizer = TokenIds(size=10)
    assert tokenizer.encode_batch([next(source.documents("val")).text]) == [VAL]


@pytest.mark.parametrize(
    ("write", "code", "values"),
    [
        (lambda: write_bin("a.bin", [], header=(20240520, 1, 5)), "not-ids", ("5", "1,034", "1,024")),
        (
            lambda: write_bin("a.bin", [1], header=(20240520, 2, 1)),
            "not-ids",
            ("20240520", "2", "1"),
        ),
        (lambda: Path("a.bin").write_bytes(b"abc"), "not-ids", ("3", "corpus.dtype")),
        (lambda: np.save("a.npy", np.ones((2, 3), int)), "not-ids", ("(2, 3)",)),
        (lambda: np.save("a.npy", np.ones(3)), "not-ids", ("corpus.path",)),
        (lambda: Path("a.npy").write_bytes(b"no array"), "not-ids", ("corpus.path",)),
        (lambda: Path("a.txt").write_text("text"), "file-kind", ("corpus.path", "a.txt", ".bin, .npy")),
        (lambda: None, "missing-file", ("corpus.path", "a.*")),
    ],
)
def test_a_file_that_has_no_ids_is_an_error(write: Any, code: str, values: tuple[str, ...]) -> None:
    write()
    with raises_problem(DataError, code, *values):
        corpus("a.*").token_shards("train")


def test_an_empty_file_has_no_ids() -> None:
    write_bin("a.bin", [])
    write_bin("b.bin", [], header=(20240520, 1, 0))
    write_bin("c.bin", TRAIN)
    assert ids(corpus("[abc].bin")) == TRAIN


def test_a_file_is_in_one_split() -> None:
    write_bin("train.bin", TRAIN)
    with raises_problem(DataError, "overlap", "corpus.validation", "val.bin"):
        corpus("*.bin").token_shards("train")


def test_files_of_another_kind_are_counted() -> None:
    Path("data").mkdir()
    write_bin("data/train.bin", TRAIN)
    Path("data/meta.pkl").write_bytes(b"")
    assert corpus("data").skipped_inputs() == {"files of an unknown kind": 1}


def test_the_fingerprint_is_of_the_content() -> None:
    first = corpus(write_bin("train.bin", TRAIN)).fingerprint()
    Path("train.bin").rename("moved.bin")
    assert corpus("moved.bin").fingerprint() == first
    assert corpus("moved.bin", documents="whole").fingerprint() != first
    assert corpus(write_bin("moved.bin", TRAIN[::-1])).fingerprint() != first


def test_large_files_have_a_preview(monkeypatch: pytest.MonkeyPatch) -> None:
    source = corpus(write_bin("train.bin", TRAIN))
    assert source.quick_fingerprint() is None
    monkeypatch.setattr(preview, "MINIMUM_BYTES", 1)
    monkeypatch.setattr(preview, "MINIMUM_AGE", 0.0)
    first = source.quick_fingerprint()
    assert first == source.quick_fingerprint() != corpus("train.bin", documents="whole").quick_fingerprint()
    write_bin("train.bin", [*TRAIN, 1])
    assert source.quick_fingerprint() not in (first, None)


def test_files_are_read_once_and_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "MINIMUM_BYTES", 1)
    monkeypatch.setattr(preview, "MINIMUM_AGE", 0.0)
    rng = np.random.default_rng(0)
    train = rng.integers(0, 10, 50_000)
    write_bin("train.bin", train)
    source = corpus("train.bin")

    def build() -> Any:
        return encode_corpus(source, TokenIds(size=10, eos=9), spec=None, size=None, cache=tmp_path / "cache")

    first = build()
    monkeypatch.setattr(token_files, "file_digest", lambda path: pytest.fail("the file was read again"))
    second = build()
    for encoded in (first, second):
        assert np.array_equal(encoded.train.ids, train)
        assert encoded.train.sentences.tolist()[1:-1] == (np.flatnonzero(train == 9) + 1).tolist()
        assert isinstance(encoded.train.ids.base, np.memmap)
    arrays = (array for side in (first.train, first.val) for array in (side.sentences, side.documents))
    stored = sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*.tokens"))
    assert stored < sum(array.nbytes for array in arrays) + 500  # and the state of the tokenizer and the counts


def test_a_data_set_needs_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    Path("saved").mkdir()
    Path("saved/state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    with raises_problem(DataError, "not-installed", "corpus.path", "paribus[parquet]"):
        corpus("saved").token_shards("train")


def test_a_folder_of_several_splits_is_an_error() -> None:
    for name in ("train", "test"):
        Path("saved", name).mkdir(parents=True)
        Path("saved", name, "state.json").write_text("{}")
    Path("saved/dataset_dict.json").write_text("{}")
    with raises_problem(DataError, "missing-dataset", "corpus.path", "saved/test", "saved/train"):
        corpus("saved").token_shards("train")


def test_a_damaged_folder_is_an_error() -> None:
    Path("saved").mkdir()
    for state, expected in (("{", "cannot read"), ("{}", "cannot read"), ("[]", "cannot read")):
        Path("saved/state.json").write_text(state)
        with raises_problem(DataError, "missing-dataset", "corpus.path", expected):
            corpus("saved").token_shards("train")
    Path("saved/state.json").write_text('{"_data_files": [], "_indices_files": [{"filename": "i.arrow"}]}')
    with raises_problem(DataError, "missing-dataset", "flatten_indices"):
        corpus("saved").token_shards("train")


ROWS = [[5, 6, 9], [7], [], [8, 9]]


def write_stream(folder: str, column: Any, name: str = "input_ids") -> str:
    """Write a folder as `save_to_disk` does: two batches of rows in one Arrow stream."""
    import pyarrow

    Path(folder).mkdir()
    table = pyarrow.table({name: column})
    with pyarrow.ipc.new_stream(f"{folder}/data.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=2)
    Path(folder, "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    return folder


@pytest.mark.extras
@pytest.mark.parametrize("kind", ["list_", "large_list"])
def test_rows_of_a_data_set_are_documents(kind: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra `parquet`")
    column = pyarrow.array(ROWS, getattr(pyarrow, kind)(pyarrow.int32()))
    source = corpus(write_stream("saved", column), documents="whole")
    assert ids(source) == [token for row in ROWS for token in row]
    assert [document.text for document in source.documents("train")] == ["5 6 9", "7", "8 9"]
    encoded = encode_corpus(source, TokenIds(size=10), spec=None, size=None, cache=tmp_path / "cache")
    assert encoded.train.sentences.tolist() == [0, 3, 4, 6]
    assert encoded.train.ids[np.array([[0, 5], [3, 4]])].tolist() == [[5, 9], [7, 8]]
    assert source.fingerprint() == corpus("saved", documents="whole").fingerprint()


@pytest.mark.extras
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ([[1], None], "data.arrow, from row 0"),
        ([[1, None]], "null"),
        ([[0.5]], "list<item: double>"),
        (["text"], "string"),
    ],
)
def test_a_column_without_ids_is_an_error(column: Any, value: str) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra `parquet`")
    write_stream("saved", pyarrow.array(column))
    with raises_problem(DataError, "not-ids", value):
        corpus("saved").token_shards("train")


@pytest.mark.extras
def test_a_missing_column_is_an_error() -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs the extra `parquet`")
    write_stream("saved", pyarrow.array(ROWS), "ids")
    with raises_problem(DataError, "missing-field", "corpus.column", "input_ids", "ids"):
        corpus("saved").token_shards("train")
    assert ids(corpus("saved", column="ids")) == [token for row in ROWS for token in row]


@pytest.mark.extras
def test_a_folder_of_the_library_is_read() -> None:
    datasets = pytest.importorskip("datasets", reason="the library `datasets` is not installed (extra `datasets`)")
    lines = [json.dumps({"input_ids": row, "attention_mask": row}) for row in ROWS]
    Path("rows.jsonl").write_text("\n".join(lines))
    rows = datasets.load_dataset("json", data_files="rows.jsonl", split="train")
    rows.save_to_disk("one")
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk("two", num_shards={"train": 2, "test": 1})
    for folder in ("one", "two/train"):
        assert ids(corpus(folder)) == [token for row in ROWS for token in row]
    with raises_problem(DataError, "missing-dataset", "two/test, two/train"):
        corpus("two").token_shards("train")

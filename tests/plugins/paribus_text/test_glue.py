"""Folders of GLUE and SuperGLUE: each task in its own format, and wrong folders."""

import json
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from tests.fixtures.problems import raises_problem

from paribus import DataError, Document
from paribus_text import corpus
from paribus_text.glue import Glue
from paribus_text.glue_tasks import LAYOUTS, Task

MNLI = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
MNLI_TRAIN = [*MNLI.split(), "sentence1", "sentence2", "label1", "gold_label"]
MNLI_DEV = [*MNLI_TRAIN[:-1], "label2", "label3", "label4", "label5", "gold_label"]
STS_B = ["index", "genre", "filename", "year", "old_index", "source1", "source2", "sentence1", "sentence2", "score"]

# The lines of a training file as each task has them, and the text, second text and label of the only row.
TSV: dict[str, tuple[list[str], tuple[str, str, float]]] = {
    "cola": (['gj04\t1\t\tShe said "no.'], ('She said "no.', "", 1)),
    "sst-2": (["sentence\tlabel", "a dull film \t0"], ("a dull film", "", 0)),
    "mrpc": (["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t7\t8\tA \"b.\tA 'b."], ('A "b.', "A 'b.", 1)),
    "qqp": (["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "0\t1\t2\tWho?\tWhat?\t0"], ("Who?", "What?", 0)),
    "sts-b": (["\t".join(STS_B), "0\tm\tf\t2012\t1\tn\tn\tA man.\tA boy.\t2.500"], ("A man.", "A boy.", 2.5)),
    "qnli": (["index\tquestion\tsentence\tlabel", "0\tWho?\tHe did.\tnot_entailment"], ("Who?", "He did.", 1)),
    "rte": (["index\tsentence1\tsentence2\tlabel", "0\tA.\tB.\tentailment"], ("A.", "B.", 0)),
    "wnli": (["index\tsentence1\tsentence2\tlabel", "0\tA.\tB.\t1"], ("A.", "B.", 1)),
}
JSON: dict[str, tuple[dict[str, Any], tuple[str, str, float]]] = {
    "boolq": ({"question": "is it", "passage": "It is.", "idx": 0, "label": True}, ("is it", "It is.", 1)),
    "cb": ({"premise": "A.", "hypothesis": "B.", "label": "neutral", "idx": 1}, ("A.", "B.", 2)),
    "rte": ({"premise": "A.", "hypothesis": "B.", "label": "not_entailment", "idx": 1}, ("A.", "B.", 1)),
    "wic": (
        {"word": "place", "sentence1": "A place.", "sentence2": "B.", "label": False, "start1": 2},
        ("place: A place.", "B.", 0),
    ),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, *lines: str) -> None:
    Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8-sig")


def row_of(document: Document) -> tuple[str, str, float]:
    return document.text, " ".join(document.target), document.labels[0]


def read(task: Any, split: Literal["train", "val"] = "train") -> list[tuple[str, str, float]]:
    return [row_of(document) for document in Glue(task=task, path=".").documents(split)]


@pytest.mark.parametrize("task", TSV)
def test_a_tab_separated_task_has_its_columns_and_labels(task: str) -> None:
    lines, expected = TSV[task]
    write("train.tsv", *lines)
    write("dev.tsv", *lines[:-1], lines[-1].replace(expected[0], "Another one"))
    assert read(task) == [expected]
    assert read(task, "val") == [("Another one", *expected[1:])]


@pytest.mark.parametrize("task", JSON)
def test_a_task_of_superglue_has_its_fields_and_labels(task: str) -> None:
    row, expected = JSON[task]
    write("train.jsonl", json.dumps(row))
    write("val.jsonl", json.dumps({**row, LAYOUTS[task][-1].columns.second: "Other."}))  # type: ignore[index]  # a task
    assert read(task) == [expected]
    assert read(task, "val") == [(expected[0], "Other.", expected[2])]


def test_mnli_has_two_validation_files_and_rows_without_a_label() -> None:
    write("train.tsv", "\t".join(MNLI_TRAIN), "\t".join([*"0123ab", "(a", "(b", "A.", "B.", "neutral", "neutral"]))
    for name in ("matched", "mismatched"):
        rows = [[*"0123ab", "(a", "(b", f"A {name}.", "B.", *["neutral"] * 5, gold] for gold in ("contradiction", "-")]
        write(f"dev_{name}.tsv", "\t".join(MNLI_DEV), *map("\t".join, rows))
    assert read("mnli") == read("mnli-mismatched") == [("A.", "B.", 1)]
    assert read("mnli", "val") == [("A matched.", "B.", 2)]
    assert read("mnli-mismatched", "val") == [("A mismatched.", "B.", 2)]
    assert Glue(task="mnli", path=".").skipped_inputs() == {"rows without a label": 1}


def test_dropped_rows_are_counted() -> None:
    header = TSV["qqp"][0][0]
    write(
        "train.tsv", header, "0\t1\t2\tWho?\tWhat?\t0", "1\t3\t4\tA question that\t", "", "2\t5\t6\tIn both?\tYes?\t1"
    )
    write("dev.tsv", header, "0\t1\t2\tIn both?\tYes?\t1")
    assert read("qqp") == [("Who?", "What?", 0)]
    assert Glue(task="qqp", path=".").skipped_inputs() == {
        "rows with another number of columns": 1,
        "training documents that the validation split has too": 1,
    }


def test_classes_have_names_and_every_task_a_layout() -> None:
    assert set(LAYOUTS) == set(get_args(Task))
    write("train.tsv", *TSV["rte"][0])
    write("dev.tsv", *TSV["rte"][0][:-1], "0\tC.\tB.\tentailment")
    rte = Glue(task="rte", path=".")
    assert rte.classes() == ("entailment", "not_entailment")
    assert rte.fingerprint() == Glue(task="rte", path=".").fingerprint()
    provides: Any = corpus()["glue"].traits["provides_if"]
    for task, layouts in LAYOUTS.items():
        columns = layouts[0].columns
        has = {"pairs": columns.second, "labels": columns.label, "scores": columns.score}
        for content, column in has.items():
            assert (task in provides[content].partition("=")[2].split("|")) == (column is not None)


def test_wrong_folders_columns_and_labels_are_refused() -> None:
    with raises_problem(DataError, "missing-file", "corpus.path", "MRCP"):
        Glue(task="mrpc", path="MRCP").fingerprint()
    write("train.tsv", *TSV["rte"][0])
    with raises_problem(DataError, "missing-file", "rte", "dev.tsv", "val.jsonl", "train.tsv"):
        Glue(task="rte", path=".").fingerprint()
    write("dev.tsv", "index\tsentence1\tsentence2\tlabel", "0\tC.\tB.\tneutral")
    with raises_problem(DataError, "missing-label", "dev.tsv:2", "neutral", "entailment, not_entailment"):
        Glue(task="rte", path=".").fingerprint()
    with raises_problem(DataError, "missing-field", "train.tsv:1", "#1 String", "Quality"):
        Glue(task="mrpc", path=".").fingerprint()

"""Tasks of GLUE and SuperGLUE: the files of their splits, their columns and the names of their classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from paribus import Split
from paribus_text.columns import Columns

Task = Literal[
    "cola", "sst-2", "mrpc", "qqp", "sts-b", "mnli", "mnli-mismatched", "qnli", "rte", "wnli", "boolq", "cb", "wic"
]


class Layout(NamedTuple):
    """Layout of the files of a task."""

    files: Mapping[Split, Sequence[str]]  # patterns of their names, in lower case
    columns: Columns
    header: tuple[str, ...] = ()  # names of the columns, if the first line does not have them
    prefix: str = ""  # column whose text is put before the first text


def _tab_separated(columns: Columns, header: tuple[str, ...] = (), validation: str = "dev.tsv") -> Layout:
    return Layout({"train": ["train.tsv"], "val": [validation]}, columns, header)


def _json_lines(columns: Columns, prefix: str = "") -> Layout:
    return Layout({"train": ["train.jsonl"], "val": ["val.jsonl", "dev.jsonl"]}, columns, prefix=prefix)


def _pair(first: str, second: str, names: tuple[str, ...], label: str = "label") -> Columns:
    return Columns(first, second, label, None, len(names), names)


_ENTAILED: Final = ("entailment", "not_entailment")
_ENTAILMENT: Final = ("entailment", "neutral", "contradiction")
_NLI: Final = _pair("sentence1", "sentence2", _ENTAILMENT, "gold_label")
_BINARY: Final = ("false", "true")

LAYOUTS: Final[Mapping[Task, tuple[Layout, ...]]] = {
    "cola": (
        _tab_separated(
            Columns("sentence", None, "label", None, 2, ("unacceptable", "acceptable")),
            ("source", "label", "original", "sentence"),
        ),
    ),
    "sst-2": (_tab_separated(Columns("sentence", None, "label", None, 2, ("negative", "positive"))),),
    "mrpc": (_tab_separated(_pair("#1 String", "#2 String", ("not_equivalent", "equivalent"), "Quality")),),
    "qqp": (_tab_separated(_pair("question1", "question2", ("not_duplicate", "duplicate"), "is_duplicate")),),
    "sts-b": (_tab_separated(Columns("sentence1", "sentence2", None, "score")),),
    "mnli": (_tab_separated(_NLI, validation="dev_matched.tsv"),),
    "mnli-mismatched": (_tab_separated(_NLI, validation="dev_mismatched.tsv"),),
    "qnli": (_tab_separated(_pair("question", "sentence", _ENTAILED)),),
    "rte": (
        _tab_separated(_pair("sentence1", "sentence2", _ENTAILED)),
        _json_lines(_pair("premise", "hypothesis", _ENTAILED)),
    ),
    "wnli": (_tab_separated(_pair("sentence1", "sentence2", ("not_entailment", "entailment"))),),
    "boolq": (_json_lines(_pair("question", "passage", _BINARY)),),
    "cb": (_json_lines(_pair("premise", "hypothesis", ("entailment", "contradiction", "neutral"))),),
    "wic": (_json_lines(_pair("sentence1", "sentence2", _BINARY), prefix="word"),),
}
"""Layouts of each task, of GLUE and of SuperGLUE; classes are numbered as in the data sets of Hugging Face."""

NO_LABEL: Final = "-"  # of MNLI: the annotators disagreed


def prepared(layout: Layout, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a row with the prefix of its first text, and None for a label that there is not."""
    columns = layout.columns
    changed = dict(values)
    if layout.prefix and isinstance(changed[columns.text], str):
        changed[columns.text] = f"{changed[layout.prefix]}: {changed[columns.text]}"
    if columns.label is not None and changed[columns.label] == NO_LABEL:
        changed[columns.label] = None
    return changed

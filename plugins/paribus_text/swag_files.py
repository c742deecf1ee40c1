"""Questions with choices from the files of SWAG and of COPA: a context, and endings of which one is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from paribus import Split

Task = Literal["swag", "copa"]


class ChoiceFormat(NamedTuple):
    """Files and fields of a task."""

    files: Mapping[Split, Sequence[str]]  # patterns of the names of the files of the splits
    context: str  # field of the context
    start: str  # field that begins every choice, and that of COPA's question
    choices: tuple[str, ...]
    questions: Mapping[str, str] = {}  # texts of the values of `start`, which end the context instead


FORMATS: Final[Mapping[Task, ChoiceFormat]] = {
    "swag": ChoiceFormat(
        {"train": ("train.csv",), "val": ("val.csv", "dev.csv")},
        "sent1",
        "sent2",
        ("ending0", "ending1", "ending2", "ending3"),
    ),
    "copa": ChoiceFormat(
        {"train": ("train.jsonl",), "val": ("val.jsonl", "dev.jsonl")},
        "premise",
        "question",
        ("choice1", "choice2"),
        {"cause": "What was the cause of this?", "effect": "What happened as a result?"},
    ),
}


def as_choices(texts: Sequence[str]) -> tuple[str, ...]:
    """Return texts as sentences, all with a space before them; the engine adds it to all but the first."""
    return tuple(f" {text}" if number == 0 else text for number, text in enumerate(texts))


def question(layout: ChoiceFormat, values: Mapping[str, Any]) -> tuple[str, list[str]] | None:
    """Return the context and the choices of a row; None if a field is not text or a question is unknown."""
    fields = [values[name] for name in (layout.context, layout.start, *layout.choices)]
    if not all(isinstance(field, str) for field in fields):
        return None
    context, start, *choices = (field.strip() for field in fields)
    if layout.questions:
        return (f"{context} {layout.questions[start]}", choices) if start in layout.questions else None
    return context, [f"{start} {choice}".strip() for choice in choices]

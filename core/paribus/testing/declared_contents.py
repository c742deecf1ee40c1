"""Contents of one document, compared with what its corpus declares."""

from __future__ import annotations

import math
from typing import Final

from paribus.slots.corpus import Document

NO_ANSWER: Final = (-1, -1)
LABEL_COUNTS: Final = {"labels": 1, "scores": 1, "choices": 1}  # numbers in `labels`
TEXTS: Final = -3  # before the numbers by which texts of answers are compared


def document_fault(document: Document, provides: frozenset[str], classes: int | None, *, marks: bool) -> str:
    """Return what is wrong with the target and the labels of a document, or ""."""
    has_target = not provides.isdisjoint({"pairs", "answers", "choices"})
    if bool(document.target) != has_target:
        expected = "some" if has_target else "none"
        return f"has {len(document.target)} target sentences; expected {expected}, as `provides` declares"
    if not isinstance(document.labels, tuple) or not all(_is_number(label) for label in document.labels):
        return f"has the labels {document.labels!r}; expected a tuple of finite numbers"
    kind = next((kind for kind in ("tags", "answers", "choices", "labels", "scores") if kind in provides), "")
    if marks and len(document.labels) != len(document.target):
        return f"has {len(document.labels)} marks; expected {len(document.target)}, one for each sentence of its target"
    if not kind:
        is_expected = not document.labels or (marks and set(document.labels) <= {0, 1})
        return "" if is_expected else f"has the labels {document.labels}, which `provides` does not declare"
    count = len(document.sentences) if kind == "tags" else LABEL_COUNTS.get(kind, len(document.labels))
    if len(document.labels) != count:
        return f"has {len(document.labels)} labels; expected {count}, as it has `{kind}`"
    return _value_fault(document, kind, classes)


def _value_fault(document: Document, kind: str, classes: int | None) -> str:
    """Return what is wrong with the values of the labels, or ""."""
    if kind == "scores":
        return ""
    if any(label != int(label) for label in document.labels):
        return f"has the labels {document.labels}; expected whole numbers, as it has `{kind}`"
    if kind == "answers":
        return _answer_fault(document)
    classes = len(document.target) if kind == "choices" else classes
    invalid = [label for label in document.labels if label < 0 or (classes is not None and label >= classes)]
    if invalid:
        return f"has the label {invalid[0]}; expected 0 to {'…' if classes is None else classes - 1}"
    words = [sentence for sentence in document.sentences if kind == "tags" and len(sentence.split()) != 1]
    return f"has a tag for {words[0]!r}; expected one word" if words else ""


def _answer_fault(document: Document) -> str:
    """Return what is wrong with the answers of a document and the numbers of the words of its target, or ""."""
    stop = document.labels.index(TEXTS) if TEXTS in document.labels else len(document.labels)
    places, numbers = document.labels[:stop], document.labels[stop + 1 :]
    if stop < 2 or stop % 2:
        return f"has {stop} labels; expected 2 for each answer, as it has `answers`"
    for start, end in zip(places[::2], places[1::2], strict=True):
        if (start, end) != NO_ANSWER and not 0 <= start <= end < len(document.target):
            return (
                f"has the answer {start} to {end} in {len(document.target)} target sentences; expected places in them"
            )
    if stop < len(document.labels) and (len(numbers) != len(document.target) or 0 in numbers):
        return f"has {len(numbers)} numbers of words; expected one for each of {len(document.target)}, none of them 0"
    return ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def text_fault(document: Document) -> str:
    """Return what is wrong with the texts of a document, or ""."""
    if not isinstance(document.name, str) or not isinstance(document.language + document.target_language, str):
        return "has a name or a language that is not text"
    if not document.sentences:
        return "has no sentences; expected at least one"
    for name, sentences in (("sentences", document.sentences), ("target", document.target)):
        if not isinstance(sentences, tuple):
            return f"has `{name}` of the type {type(sentences).__name__}; expected a tuple of sentences"
        for sentence in sentences:
            if not isinstance(sentence, str) or not sentence.strip():
                return f"has the sentence {sentence!r} in `{name}`; expected text that is not blank"
            surprise = next((letter for letter in sentence if letter == "\0" or "\ud800" <= letter <= "\udfff"), "")
            if surprise:
                return f"has {surprise!r} in the sentence {sentence[:40]!r}; expected text without NUL and surrogates"
    return ""

"""Check of the predictions of objectives for texts without labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch

from paribus.parts.batch import Batch
from paribus.slots.corpus import Tokens
from paribus.slots.objective import Prediction
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.objective_setup import ObjectiveSetup, required_setup, select_documents, with_fields

TEXTS: Final = 5
TOLERANCE: Final = 1e-6


def predictions(case: Case, host: HostModel) -> Verdict:
    """`predict` returns a prediction for each text, which neither its labels nor the other texts change."""
    setup = required_setup(case, host)
    kind = setup.objective.traits.get("predicts")
    if kind is None:
        return DOES_NOT_APPLY
    tokens = _texts(setup, range(TEXTS))
    together = _predicted(setup, tokens)
    if len(together) != TEXTS:
        return f"`predict` returns {len(together)} predictions for {TEXTS} texts"
    for number, prediction in enumerate(together):
        one = select_documents(tokens, [number])
        if fault := KINDS[kind](prediction, one):
            return f"the prediction for text {number} has {fault}, where `predicts` is {kind}"
        if _differs(prediction, _predicted(setup, one)[0]):
            return f"the prediction for text {number} depends on the texts beside it"
    changed = _predicted(setup, _with_other_labels(tokens, kind))
    if any(map(_differs, together, changed)):
        return "a prediction depends on the label of its text, which means nothing"
    return HOLDS


def _texts(setup: ObjectiveSetup, numbers: Sequence[int]) -> Tokens:
    """Return some documents, in pairs if the objective makes its segments from one document."""
    tokens = setup.examples.tokens
    texts = select_documents(tokens, numbers)
    if setup.objective.traits.get("example_kind") == "segments":
        return with_fields(texts, targets=select_documents(tokens, [number + len(numbers) for number in numbers]))
    return texts


def _predicted(setup: ObjectiveSetup, tokens: Tokens) -> Sequence[Prediction]:
    objective = setup.model.objective(setup.name)
    examples = objective.form_texts(tokens, setup.length)
    index = torch.arange(len(examples.streams["body"].tokens))
    with torch.no_grad():
        run = setup.run(Batch(examples.streams, {setup.name: examples.targets}, index))
        return objective.predict(run.of(setup.name), tokens)


def _with_other_labels(tokens: Tokens, kind: str) -> Tokens:
    """Return the texts with other labels, or without answers."""
    if tokens.labels is None:
        return tokens
    values = np.asarray(tokens.labels.values)
    other = (
        np.full_like(values, -1) if kind == "answer" else np.where(values == values.min(), values.max(), values.min())
    )
    return with_fields(tokens, labels=tokens.labels._replace(values=other))


def _class_fault(prediction: Prediction, text: Tokens) -> str:
    return _share_fault(prediction.classes)


def _tags_fault(prediction: Prediction, text: Tokens) -> str:
    count = len(text.sentences) - 1
    if len(prediction.words) != count:
        return f"{len(prediction.words)} `words` for a text of {count}"
    return next(filter(None, map(_share_fault, prediction.words)), "")


def _score_fault(prediction: Prediction, text: Tokens) -> str:
    return "" if prediction.score is not None and math.isfinite(prediction.score) else f"the score {prediction.score}"


def _answer_fault(prediction: Prediction, text: Tokens) -> str:
    assert text.targets is not None, "an answer lies in a second text"
    first, last = prediction.answer or (0, -1)
    count = len(text.targets.sentences) - 1
    if (first, last) == (-1, -1) or 0 <= first <= last < count:
        return _score_fault(prediction, text)
    return f"the answer {prediction.answer} in a text of {count} words"


def _share_fault(shares: Sequence[float]) -> str:
    if len(shares) > 1 and min(shares) >= 0 and abs(sum(shares) - 1) <= TOLERANCE:
        return ""
    return f"the probabilities {', '.join(f'{share:.4g}' for share in shares) or '(none)'}"


KINDS: Final[dict[str, Callable[[Prediction, Tokens], str]]] = {
    "class": _class_fault,
    "tags": _tags_fault,
    "score": _score_fault,
    "answer": _answer_fault,
    "choice": _class_fault,
}


def _differs(one: Prediction, other: Prediction) -> bool:
    return one.answer != other.answer or not np.allclose(_numbers(one), _numbers(other), rtol=1e-6, atol=TOLERANCE)


def _numbers(prediction: Prediction) -> list[float]:
    score = [] if prediction.score is None else [prediction.score]
    return [*prediction.classes, *(share for row in prediction.words for share in row), *score]

"""Checks of the losses of objectives: sums over labels, likelihoods, and the unigram baseline."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import torch

from paribus.parts.batch import IGNORED, Batch
from paribus.testing.host_models import (
    DOES_NOT_APPLY,
    HOLDS,
    Case,
    HostModel,
    Verdict,
)
from paribus.testing.objective_setup import (
    BATCH,
    ObjectiveSetup,
    objective_setup,
    required_setup,
    select_documents,
    with_fields,
)
from paribus.testing.recorded_forward import RecordedForward
from paribus.testing.small_model import noise

TOLERANCE: Final = 1e-9
LIKELIHOOD_TOLERANCE: Final = 1e-6
METRIC_TOLERANCE: Final = 1e-5  # metrics are float32
DISTINCT_LABELS: Final = 3  # labels of one example whose losses are compared
SAME_LOSSES: Final = 4  # classes with one loss, after which the others are not computed
SCALED_LABELS: Final = 3  # labels of a term whose loss is computed for every class


def loss_sums(case: Case, host: HostModel) -> Verdict:
    """A loss is a sum over labels, with their number as its count; likelihoods of classes add up to 1."""
    packed = objective_setup(case, host, documents="packed")  # with padding, and labels that are ignored
    fault = sums_fault(required_setup(case, host))
    if packed is not None and packed.examples.former is None:
        fault = fault or sums_fault(packed, scaled_labels=0)
    return fault


def sums_fault(setup: ObjectiveSetup, rows: int = BATCH, scaled_labels: int = SCALED_LABELS) -> str:
    """Return a message if losses are not sums over the labels of some examples, or not likelihoods."""
    batch = setup.batch().rows(slice(0, rows))
    terms = setup.terms(batch)
    if terms.keys() != setup.label_keys.keys():
        return f"`forward` returns the terms {sorted(terms)}; expected those of `terms`: {sorted(setup.label_keys)}"
    for term, value in terms.items():
        labels = setup.labels(batch, term)
        count = int((labels != IGNORED).sum())
        if int(value.count) != count:
            return f"the count of `{term}` is {float(value.count):g}; expected {count}, the number of its labels"
        total = float(value.total)
        if not math.isfinite(total):
            return f"the loss `{term}` is {total}"
        fault = _sum_fault(setup, batch, term, total) or _scale_fault(setup, batch, term, scaled_labels)
        if fault:
            return fault
    return HOLDS


def _sum_fault(setup: ObjectiveSetup, batch: Batch, term: str, total: float) -> str:
    """Return a message if the loss of a batch is not the sum over its parts."""
    labels = setup.labels(batch, term)
    half = (torch.arange(labels.numel()) % 2 == 0).view_as(labels)
    parts = [setup.with_labels(batch, term, labels.masked_fill(mask, IGNORED)) for mask in (half, ~half)]
    rows = [batch.rows(slice(row, row + 1)) for row in range(len(batch.index))]
    for name, batches in (("two halves of its labels", parts), (f"{len(rows)} single examples", rows)):
        added = sum(setup.total(one, term) for one in batches)
        if _differ(total, added):
            return (
                f"the loss `{term}` is {total:.6g}, but {added:.6g} as the sum over {name}; expected a sum over "
                "labels, so that it is exact in micro-batches. Usual cause: a mean"
            )
    slots = (labels[0] != IGNORED).nonzero().tolist() if labels.ndim > 1 else []
    if len(slots) >= DISTINCT_LABELS:
        chosen = slots[:: len(slots) // DISTINCT_LABELS][:DISTINCT_LABELS]
        losses = [setup.total(setup.only_label(batch, term, (0, *slot)), term) for slot in chosen]
        if not any(_differ(losses[0], other) for other in losses[1:]):
            return f"{len(losses)} labels of an example have the same loss `{term}`. Usual cause: a mean"
    if _differ(setup.total(setup.with_labels(batch, term, torch.full_like(labels, IGNORED)), term), 0.0):
        return f"the loss `{term}` without labels is not 0"
    return HOLDS


def _scale_fault(setup: ObjectiveSetup, batch: Batch, term: str, count: int) -> str:
    """Return a message if the loss is a negative log-likelihood multiplied by a constant.

    exp(-loss / factor), summed over the classes of a label, is 1 for one factor. A loss of another kind has no factor
    that is the same for several labels.
    """
    labels = setup.labels(batch, term)
    if labels.is_floating_point() or not count:
        return HOLDS
    with_labels = (labels != IGNORED).nonzero()
    slots = with_labels[:: max(1, len(with_labels) // count)][:count].tolist()
    factors_by_size = []
    for size in {head_size(setup), setup.model.topology.stage("body").shape.vocabulary}:
        losses = [losses_of_classes(setup, batch, term, tuple(slot), size) for slot in slots]
        factors_by_size.append([_likelihood_factor(values) for values in losses])
    for factors in factors_by_size:
        if all(factor is not None and abs(factor - 1) < 1e-6 for factor in factors):
            return HOLDS
    for factors in factors_by_size:
        first = factors[0]
        if len(factors) > 1 and first is not None and all(f is not None and abs(f / first - 1) < 1e-6 for f in factors):
            return (
                f"the loss `{term}` is {first:.4g} times a negative log-likelihood; expected the loss itself, with a "
                "factor as the `weight` of the term"
            )
    return HOLDS


def is_likelihood(setup: ObjectiveSetup, term: str) -> bool:
    """Return True if the likelihoods of all classes in the place of one label add up to 1."""
    batch = setup.batch()
    labels = setup.labels(batch, term)
    if labels.is_floating_point():
        return False
    slot = tuple((labels != IGNORED).nonzero()[0].tolist())
    sizes = {head_size(setup), setup.model.topology.stage("body").shape.vocabulary}
    factors = [_likelihood_factor(losses_of_classes(setup, batch, term, slot, size)) for size in sizes]
    return any(factor is not None and abs(factor - 1) < LIKELIHOOD_TOLERANCE for factor in factors)


def head_size(setup: ObjectiveSetup) -> int:
    """Return the number of classes of the head; 2 for one score, and the number of choices for one of each choice."""
    objective, targets = setup.model.objective(setup.name), setup.examples.tokens.targets
    if targets is not None and "choices" in objective.traits.get("needs", []):
        return int(targets.documents[1] - targets.documents[0])
    hidden = noise("head", 1, 2, setup.model.topology.stage("body").shape.width)
    return max(2, objective.logits(hidden, setup.model.topology.embedding.unembed).shape[-1])


def losses_of_classes(setup: ObjectiveSetup, batch: Batch, term: str, slot: tuple[int, ...], size: int) -> list[float]:
    """Return the loss of one label for each class in its place; [] if a class is not valid, or has no effect."""
    single = setup.only_label(batch, term, slot)
    labels = setup.labels(single, term)
    first, objective = setup.run(single), setup.model.objective(setup.name)
    recorded = RecordedForward(first.of(setup.name))
    objective(recorded)
    is_slow = objective.last_layer_reruns or "teacher" in objective.traits.get("needs", [])
    losses = []
    for value in range(size):
        changed = setup.with_labels(single, term, labels.masked_fill(labels != IGNORED, value))
        run = setup.run(changed)
        run.outputs = first.outputs  # the streams are the same
        recorded.run = run.of(setup.name)
        recorded.repeat()
        try:
            terms = objective(recorded) if is_slow else setup.terms(changed, run)
            losses.append(float(terms[term].total))
        except (IndexError, RuntimeError):
            return []
        if len(losses) == SAME_LOSSES and min(losses) == max(losses):  # the label is no class
            return []
    return losses


def _likelihood_factor(losses: list[float]) -> float | None:
    """Return the factor by which losses of all classes exceed negative log-likelihoods; None if there is none."""
    finite = torch.tensor([loss for loss in losses if math.isfinite(loss)], dtype=torch.float64)
    if len(finite) < 2 or bool((finite <= 0).any()):
        return None
    low, high = 1e-4, 1e4
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if float(torch.logsumexp(-middle * finite, 0)) > 0 else (low, middle)
    is_solution = abs(float(torch.logsumexp(-low * finite, 0))) < 1e-6
    return 1 / low if is_solution else None


def unigram_baseline(case: Case, host: HostModel) -> Verdict:
    """The unigram baseline is finite for labels that `train` does not have, and depends on the labels of `train`."""
    setup = required_setup(case, host)
    objective, train = setup.model.objective(setup.name), setup.text.train
    targets = setup.batch().targets[setup.name]
    value = objective.unigram_loss(train, targets)
    if value is None:
        return DOES_NOT_APPLY
    corpora = [select_documents(train, [0, 1])]
    if train.labels is not None and "answers" not in objective.traits.get("needs", []):
        kinds = sorted(set(np.asarray(train.labels.values).tolist()))
        constant = [train.labels._replace(values=np.full_like(train.labels.values, kind)) for kind in kinds]
        corpora += [with_fields(train, labels=labels) for labels in constant]
    values = [objective.unigram_loss(corpus, targets) for corpus in corpora]
    for other in (value, *values):
        if other is None or not math.isfinite(other):
            return f"`unigram_loss` is {other} for a training split that lacks some labels; expected a finite number"
    if len(values) > 1 and len({round(other or 0.0, 9) for other in (value, *values[1:])}) == 1:
        return "`unigram_loss` does not change with the labels of `train`; expected a prediction learned from them"
    return HOLDS


def _differ(value: float, other: float) -> bool:
    return not abs(value - other) <= TOLERANCE * max(1.0, abs(value))

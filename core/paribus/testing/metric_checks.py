"""Check of the metrics of objectives."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

import torch

from paribus.parts.batch import IGNORED, Batch
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.loss_checks import head_size, losses_of_classes
from paribus.testing.objective_setup import BATCH, ObjectiveSetup, required_setup

METRIC_TOLERANCE: Final = 1e-5  # metrics are float32


def metric_values(case: Case, host: HostModel) -> Verdict:
    """Metrics do not depend on the batch size, ignore what has no label, and count a right prediction as right.

    `accuracy` is that of the loss, and `TERM_accuracy` or `TERM-accuracy` that of a term of it.
    """
    setup = required_setup(case, host)
    batch = setup.batch()
    names = setup.model.objective(setup.name).metrics().keys()
    if names & setup.label_keys.keys():
        return f"`{min(names & setup.label_keys.keys())}` is the name of a metric and of a loss"
    for tested in (batch, _without_labels_in_half(setup, batch)):
        rows = [tested.rows(slice(row, row + 1)) for row in range(BATCH)]
        whole, single = compute_metrics(setup, [tested]), compute_metrics(setup, rows)
        for name, value in whole.items():
            if not abs(value - single[name]) <= METRIC_TOLERANCE * max(1.0, abs(value)) and not math.isnan(value):
                values = f"{value:.6g} for a batch of {BATCH}, but {single[name]:.6g} for single examples"
                return f"the metric `{name}` is {values}"
    if not names:
        return DOES_NOT_APPLY
    terms = setup.label_keys.keys()
    faults = (_accuracy_fault(setup, batch, term, name) for term in terms for name in _accuracies(term, terms) & names)
    return next(filter(None, faults), HOLDS)


def _without_labels_in_half(setup: ObjectiveSetup, batch: Batch) -> Batch:
    """Return the batch without labels in half of its examples."""
    for term in setup.label_keys:
        labels = setup.labels(batch, term).clone()
        labels[: BATCH // 2] = IGNORED
        batch = setup.with_labels(batch, term, labels)
    return batch


def compute_metrics(setup: ObjectiveSetup, batches: list[Batch]) -> dict[str, float]:
    objective = setup.model.objective(setup.name)
    metrics = objective.metrics()
    for batch in batches:
        objective.update_metrics(setup.run(batch).of(setup.name), metrics)
    return {name: float(metric.compute()) for name, metric in metrics.items()}


def _accuracies(term: str, terms: Collection[str]) -> set[str]:
    """Return the names that the accuracy of a term may have."""
    return {f"{term}_accuracy", f"{term}-accuracy"} | ({"accuracy"} if term == "loss" or len(terms) == 1 else set())


def _accuracy_fault(setup: ObjectiveSetup, batch: Batch, term: str, name: str) -> str:
    """Return a message if an accuracy is not 1 for the most likely class, or not 0 for the least likely one."""
    labels = setup.labels(batch, term)
    if labels.is_floating_point():
        return HOLDS
    slots = (labels != IGNORED).nonzero()
    if "exact" in setup.model.objective(setup.name).metrics() and (fault := _exact_fault(setup, batch, term)):
        return fault
    is_token = term in setup.model.objective(setup.name).traits.get("token_terms", ())
    size = setup.model.topology.stage("body").shape.vocabulary if is_token else head_size(setup)
    for slot in (slots[0].tolist(), slots[-1].tolist()):
        losses = losses_of_classes(setup, batch, term, tuple(slot), size)
        if not losses or max(losses) == min(losses):
            continue
        single = setup.only_label(batch, term, tuple(slot))
        value = setup.labels(single, term)
        for prediction, expected in ((losses.index(min(losses)), 1.0), (losses.index(max(losses)), 0.0)):
            predicted = setup.with_labels(single, term, value.masked_fill(value != IGNORED, prediction))
            accuracy = compute_metrics(setup, [predicted])[name]
            if accuracy != expected:
                return (
                    f"the metric `{name}` of one label, the class of {'lowest' if expected else 'highest'} loss, is "
                    f"{accuracy:.3g}; expected {expected:g}. Usual cause: positions without a label are counted"
                )
    return HOLDS


def _exact_fault(setup: ObjectiveSetup, batch: Batch, term: str) -> str:
    """Return a message if an example with a right and a wrong label counts as exact."""
    row = batch.rows(slice(0, 1))
    slots = (setup.labels(row, term) != IGNORED).nonzero().tolist()
    if len(slots) < 2:
        return HOLDS
    predictions = torch.full_like(setup.labels(row, term), IGNORED)
    for slot, wrong in ((tuple(slots[0]), False), (tuple(slots[-1]), True)):
        losses = losses_of_classes(setup, row, term, slot, head_size(setup))
        if not losses:
            return HOLDS
        predictions[slot] = losses.index(max(losses) if wrong else min(losses))
    exact = compute_metrics(setup, [setup.with_labels(row, term, predictions)])["exact"]
    return f"the metric `exact` of an example with a wrong label is {exact:.3g}; expected 0" if exact else HOLDS

"""Checks of the losses, metrics and heads of objectives."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, Final, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from paribus.errors import ParibusError, SpecError
from paribus.parts.batch import IGNORED, Batch
from paribus.parts.shape import Load
from paribus.specs import resolved
from paribus.testing.host_models import (
    DOES_NOT_APPLY,
    HOLDS,
    Case,
    HostModel,
    Verdict,
    example_node,
)
from paribus.testing.objective_setup import (
    BATCH,
    ObjectiveSetup,
    build_setup,
    objective_setup,
    select_documents,
    with_fields,
)
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
    fault = sums_fault(_setup(case, host))
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
    for size in {_head_size(setup), setup.model.topology.stage("body").shape.vocabulary}:
        losses = [_losses_of_classes(setup, batch, term, tuple(slot), size) for slot in slots]
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
    sizes = {_head_size(setup), setup.model.topology.stage("body").shape.vocabulary}
    factors = [_likelihood_factor(_losses_of_classes(setup, batch, term, slot, size)) for size in sizes]
    return any(factor is not None and abs(factor - 1) < LIKELIHOOD_TOLERANCE for factor in factors)


def _head_size(setup: ObjectiveSetup) -> int:
    """Return the number of classes of the head; 2 for one score."""
    objective = setup.model.objective(setup.name)
    hidden = noise("head", 1, 2, setup.model.topology.stage("body").shape.width)
    return max(2, objective.logits(hidden, setup.model.topology.embedding.unembed).shape[-1])


def _losses_of_classes(setup: ObjectiveSetup, batch: Batch, term: str, slot: tuple[int, ...], size: int) -> list[float]:
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


def metric_values(case: Case, host: HostModel) -> Verdict:
    """Metrics do not depend on the batch size, ignore what has no label, and count a right prediction as right.

    `accuracy` is that of the loss, and `TERM_accuracy` or `TERM-accuracy` that of a term of it.
    """
    setup = _setup(case, host)
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
    size = setup.model.topology.stage("body").shape.vocabulary if is_token else _head_size(setup)
    for slot in (slots[0].tolist(), slots[-1].tolist()):
        losses = _losses_of_classes(setup, batch, term, tuple(slot), size)
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
        losses = _losses_of_classes(setup, row, term, slot, _head_size(setup))
        if not losses:
            return HOLDS
        predictions[slot] = losses.index(max(losses) if wrong else min(losses))
    exact = compute_metrics(setup, [setup.with_labels(row, term, predictions)])["exact"]
    return f"the metric `exact` of an example with a wrong label is {exact:.3g}; expected 0" if exact else HOLDS


def unigram_baseline(case: Case, host: HostModel) -> Verdict:
    """The unigram baseline is finite for labels that `train` does not have, and depends on the labels of `train`."""
    setup = _setup(case, host)
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


@final
class RecordedForward:
    """Forward pass whose results are recorded once, and then repeated in the same order at no cost."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.results: list[tuple[str, Tensor]] = []
        self.is_recorded = False
        self.next_result = 0
        self.reruns = 0  # passes through the last layer
        self.cache: dict[str, Tensor] = {}
        self.teacher_run: RecordedForward | None = None

    def repeat(self) -> None:
        """Repeat the recorded results from now on."""
        self.is_recorded, self.next_result, self.cache = True, 0, {}
        if self.teacher_run is not None:
            self.teacher_run.repeat()

    @property
    def streams(self) -> Any:
        return self.run.streams

    @property
    def targets(self) -> Any:
        return self.run.targets

    @property
    def teacher(self) -> RecordedForward:
        if self.teacher_run is None:
            self.teacher_run = RecordedForward(self.run.teacher)
        return self.teacher_run

    def cached(self, name: str, make: Any) -> Any:
        if name not in self.cache:
            self.cache[name] = make()
        return self.cache[name]

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.run, name)
        if name == "summed_cross_entropy":  # it runs the head
            return method

        def rerun_last_layer(queries: Tensor, positions: Tensor, times: int = 1) -> Tensor:
            self.reruns += 0 if self.is_recorded else times
            return call(queries, positions, times)

        def call(*args: Any, **options: Any) -> Tensor:
            if not self.is_recorded:
                self.results.append((name, method(*args, **options)))
                return self.results[-1][1]
            self.next_result += 1
            return self.results[self.next_result - 1][1]

        return rerun_last_layer if name == "rerun_last_layer" else call


def head_cost(case: Case, host: HostModel) -> Verdict:
    """`cost` and the numbers of scored positions equal what torch counts in the head."""
    setup = _setup(case, host)
    narrow = _narrow_embedding_setup(case, setup)
    fault = cost_fault(setup)
    try:
        return fault or (HOLDS if narrow is None else cost_fault(narrow))
    except SpecError:  # its scores need the width of the model
        return fault


def _narrow_embedding_setup(case: Case, setup: ObjectiveSetup) -> ObjectiveSetup | None:
    """Return the setup with an embedding of another width than the model's; None if it accepts no such embedding."""
    embeddings = case.registry.index.entries["embedding"].values()
    for entry in (entry for entry in embeddings if entry.traits.get("any_width")):
        node = {**example_node(entry), "width": setup.model.topology.stage("body").shape.width // 2}
        try:
            narrow = build_setup(
                case, resolved({**setup.spec, "embedding": node}, registry=case.registry), setup.length
            )
            narrow.terms(narrow.batch())
        except (ParibusError, RuntimeError):  # torch, of a head that needs the width of the model
            continue
        return narrow
    return None


def cost_fault(setup: ObjectiveSetup) -> str:
    """Return a message if the cost of the head, or its passes through the last layer, are not those declared."""
    objective = setup.model.objective(setup.name)
    run = RecordedForward(setup.run(setup.batch()).of(setup.name))
    objective(run)
    run.repeat()
    with FlopCounterMode(display=False) as counter:
        objective(run)
    counted = counter.get_total_flops() / BATCH
    positions = objective.head_positions(setup.length)
    declared = objective.cost(Load(setup.length, setup.length, head_positions=positions)).flops
    is_distilled = "teacher" in objective.traits.get("needs", [])  # the teacher's part of the loss is not declared
    if declared != counted and not (is_distilled and declared <= counted <= 2 * declared):
        return (
            f"`cost` declares {declared:,} FLOPs for an example of {setup.length} tokens with {positions:,} "
            f"`head_positions`, but torch counts {counted:,.6g}"
        )
    if run.reruns != objective.last_layer_reruns:
        return f"`last_layer_reruns` is {objective.last_layer_reruns}, but {run.reruns} passes are made"
    scored = sum(value.numel() / value.shape[-1] / BATCH for name, value in run.results if name == "unembed")
    unembedded = objective.unembed_positions(setup.length)
    expected = positions if unembedded is None else unembedded
    if scored and scored != expected:
        name = "head_positions" if unembedded is None else "unembed_positions"
        return f"`{name}` is {expected:,} for {setup.length} tokens, but {scored:,.6g} positions are scored"
    return HOLDS


def _differ(value: float, other: float) -> bool:
    return not abs(value - other) <= TOLERANCE * max(1.0, abs(value))


def _setup(case: Case, host: HostModel) -> ObjectiveSetup:
    setup = objective_setup(case, host)
    assert setup is not None
    return setup

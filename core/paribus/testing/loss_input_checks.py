"""Checks of what the losses of an objective depend on: the input, earlier tokens, the own document, the parameters."""

from __future__ import annotations

import math
from typing import Final

import torch
from torch import Tensor

from paribus.parts.batch import IGNORED, Batch
from paribus.testing.host_models import HOLDS, Case, HostModel, Verdict, causal
from paribus.testing.objective_checks import DOCUMENTS_LENGTH
from paribus.testing.objective_setup import ObjectiveSetup, objective_setup

TOLERANCE: Final = 1e-9
EFFECT: Final = 1e-12
LABELS: Final = 16  # labels that are compared one by one
DOCUMENTS: Final = 8  # documents that are compared with the same document alone


def loss_inputs(case: Case, host: HostModel) -> Verdict:
    """A label is predicted from the input; in a causal model, from earlier tokens, and from its own document only."""
    setup = objective_setup(case, host)
    assert setup is not None
    fault = gradient_fault(setup) or _input_fault(setup)
    if causal(case, host.spec):
        fault = fault or _future_fault(setup)
    packed = objective_setup(case, host, documents="packed", length=DOCUMENTS_LENGTH)
    if packed is not None and packed.examples.former is None:
        fault = fault or _alone_fault(packed)
    return fault


def gradient_fault(setup: ObjectiveSetup) -> str:
    """Return a message if a term has no gradient in the layers, or another value where no gradient is computed, or if a
    parameter of the objective gets no gradient.
    """
    batch = setup.batch()
    objective = setup.model.objective(setup.name)
    own = dict(objective.named_parameters())
    topology = setup.model.topology
    layers = [value for part in topology.parts for value in topology.get_submodule(part.path).parameters()]
    with torch.no_grad():
        evaluated = {term: float(value.total) for term, value in setup.terms(batch).items()}
    with torch.enable_grad():
        terms = setup.terms(batch)
        for term, value in terms.items():
            total = float(value.total.detach())
            if not math.isclose(total, evaluated[term], rel_tol=TOLERANCE, abs_tol=TOLERANCE):
                return (
                    f"the loss `{term}` is {total:.6g} with gradients, but {evaluated[term]:.6g} without. Usual cause: "
                    "two values that are cached under one name"
                )
        for term, value in terms.items():
            gradients = torch.autograd.grad(value.total, layers, retain_graph=True, allow_unused=True)
            if layers and not any(map(_is_nonzero, gradients)):
                return f"the loss `{term}` has no gradient in any layer. Usual cause: `detach` in the head"
        added = torch.stack([value.total for value in terms.values()]).sum()
        gradients = torch.autograd.grad(added, list(own.values()), allow_unused=True) if own else ()
    for name, gradient in zip(own, gradients, strict=True):
        if gradient is None or not bool((gradient.abs() > EFFECT).any()):  # less is rounding
            return f"the parameter `{name}` of the objective gets no gradient"
    return HOLDS


def _is_nonzero(gradient: Tensor | None) -> bool:
    return gradient is not None and bool((gradient != 0).any())


def _input_fault(setup: ObjectiveSetup) -> str:
    """Return a message if the loss of a label stays the same when all tokens of the input are replaced."""
    batch = setup.batch().rows(slice(0, 2))
    size = setup.model.topology.stage("body").shape.vocabulary or 256  # of pixels
    streams = {path: stream._replace(tokens=(stream.tokens + 1) % size) for path, stream in batch.streams.items()}
    for term in setup.label_keys:
        for slot in (setup.labels(batch, term) != IGNORED).nonzero().tolist()[:LABELS]:
            single = setup.only_label(batch, term, tuple(slot))
            rows = batch._replace(streams=streams).rows(slice(slot[0], slot[0] + 1)).streams
            value = setup.total(single, term)
            difference = abs(value - setup.total(single._replace(streams=rows), term))
            if abs(value) > EFFECT and difference <= EFFECT * max(1.0, abs(value)):  # a loss of 0 needs no input
                return f"the loss `{term}` of label {slot} does not depend on any token of the input"
    return HOLDS


def _future_fault(setup: ObjectiveSetup) -> str:
    """Return a message if the loss of a position of a causal model changes with later tokens."""
    batch = setup.batch().rows(slice(0, 1))
    body = batch.streams["body"]
    length = body.tokens.shape[1]
    for term in setup.label_keys:
        labels = setup.labels(batch, term)
        if labels.shape != body.tokens.shape or setup.objective.traits.get("visibility") == "both":
            continue
        places = (labels[0, :-1] != IGNORED).nonzero().flatten().tolist()
        for place in places[:: max(1, len(places) // 4)]:
            is_later = torch.arange(length) > place
            later = torch.where(is_later, body.tokens.roll(1, 1).where(is_later, body.tokens[:, :1]), body.tokens)
            single = setup.only_label(batch, term, (0, place))
            changed = single._replace(streams={**single.streams, "body": body._replace(tokens=later)})
            value = setup.total(single, term)
            if abs(value - setup.total(changed, term)) > TOLERANCE * max(1.0, abs(value)):
                return f"the loss `{term}` of position {place} changes with tokens after it, in a causal model"
    return HOLDS


def _alone_fault(setup: ObjectiveSetup) -> str:
    """Return a message if the loss of a packed document differs from that of the document alone."""
    batch = setup.batch()
    body = batch.streams["body"]
    if set(batch.streams) != {"body"} or body.documents is None or body.query_positions is not None:
        return HOLDS
    count = 0
    for row in range(len(body.tokens)):
        for document in body.documents[row].unique().tolist():
            inside = (body.documents[row] == document).nonzero().flatten()
            if document < 0 or not int(inside[0]) or count == DOCUMENTS:  # padding, or the first document
                continue
            alone = _document(setup, batch.rows(slice(row, row + 1)), int(inside[0]), int(inside[-1]) + 1)
            if alone is None:  # targets of another layout
                return HOLDS
            count += 1
            within, single = setup.terms(alone[0]), setup.terms(alone[1])
            for term, value in within.items():
                total, other = float(value.total), float(single[term].total)
                if abs(total - other) > TOLERANCE * max(1.0, abs(total)):
                    return (
                        f"the loss `{term}` of document {document} of example {row} is {total:.6g} packed, but "
                        f"{other:.6g} alone"
                    )
    return HOLDS


def _document(setup: ObjectiveSetup, batch: Batch, start: int, stop: int) -> tuple[Batch, Batch] | None:
    """Return an example with the labels of one document only, and the document alone; None if targets have positions
    other than `pick`.
    """
    body = batch.streams["body"]
    targets = batch.targets[setup.name]
    pick = targets.get("pick")
    within, alone = dict(targets), dict(targets)
    for key, value in targets.items():
        is_label = key in setup.label_keys.values()
        if value.shape == body.tokens.shape:
            place = torch.arange(value.shape[1]).unsqueeze(0)
            alone[key] = value[:, start:stop]
        elif pick is not None and value.shape == pick.shape and (is_label or key == "pick"):
            place = pick
        else:
            return None
        is_inside = (place >= start) & (place < stop)
        if is_label:
            within[key] = value.masked_fill(~is_inside, IGNORED)
        if value.shape != body.tokens.shape:
            alone[key] = (place - start).clamp(0, stop - start - 1) if key == "pick" else within[key]
    stream = body.span(start, stop)
    return (
        batch._replace(targets={setup.name: within}),
        batch._replace(streams={"body": stream}, targets={setup.name: alone}),
    )

"""What a loss comes to for whoever knows how frequent labels are, and nothing else: the least a model is held to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor

from paribus.assembly.cost import scores_the_vocabulary
from paribus.assembly.forward_pass import needs_teacher
from paribus.assembly.metric_names import has_likelihood
from paribus.parts.batch import IGNORED, Batch
from paribus.parts.draw import Draw, order
from paribus.slots.tokens import Ints
from paribus.train.data import VALIDATION, Data
from paribus.train.evaluate import text_metrics
from paribus.train.model import Model

_PIECE: Final = 1 << 22  # ids that are counted at a time


def unigram_baselines(model: Model, data: Data) -> dict[str, float]:
    """Each loss that is evaluated, on the labels that it is evaluated on: the same examples, spoilt in the same way.

    A model that does no better has learned which tokens are frequent, or which classes, and nothing else.
    """
    found: dict[str, float] = {}
    told = validation_targets(data)
    for name in model.evaluated:
        objective = model.objective(name)
        if "loss" not in objective.terms:
            continue
        nats = objective.unigram_loss(data.encoded.train, told[name])
        if nats is None and not needs_teacher(objective) and scores_the_vocabulary(objective, model.assembled):
            nats = token_unigram_loss(data, name, objective.terms["loss"], told[name])
        if nats is not None:
            found[f"val/{name}/loss"] = nats
            found |= text_metrics(name, nats, data.encoded) if has_likelihood(objective) else {}
    return found


def validation_targets(data: Data) -> Mapping[str, Mapping[str, Tensor]]:
    """The targets of all examples that are evaluated, by objective."""
    return _targets(data.validation_batch(number) for number in range(-(-data.val_count // data.batch_size)))


def token_unigram_loss(data: Data, name: str, key: str, targets: Mapping[str, Tensor]) -> float | None:
    """Nats a label by how often each token is in the training split, and one more.

    The labels are those that the objective has under `key` in its targets. What it puts among them may be in no text,
    such as what stands for a span, or closes a document: where there is any, as many examples of the training split as
    are evaluated tell how frequent that is. None: nothing is a label.
    """
    vocabulary = data.encoded.vocabulary
    asked = _labels(targets[key], vocabulary.size)
    if not asked.sum():
        return None
    text = _counts(data.encoded.train.ids, vocabulary.size)
    marks = np.zeros(vocabulary.size, bool)
    marks[sorted(vocabulary.reserved)] = True
    marks &= text == 0
    shares = (text + 1) / (text + 1).sum()
    if asked[marks].any():
        seen = _labels(_sample(data, name)[key], vocabulary.size)
        share = (seen[marks].sum() + 1) / (seen.sum() + 2)
        shares[marks] = share * (seen[marks] + 1) / (seen[marks] + 1).sum()
        shares[~marks] *= (1 - share) / shares[~marks].sum()
    return float(-(asked @ np.log(shares)) / asked.sum())


def _sample(data: Data, name: str) -> Mapping[str, Tensor]:
    """The targets of examples of the training split, formed and spoilt as those that are evaluated are."""
    evaluated = data.val_examples
    examples = data.examples(data.encoded.train, evaluated.objectives, evaluated.length)
    index = torch.from_numpy(order(0, VALIDATION, examples.count)[: data.val_count])
    return _targets(examples.batch(Draw(0, VALIDATION, part)) for part in index.split(data.batch_size))[name]


def _targets(batches: Iterable[Batch]) -> Mapping[str, Mapping[str, Tensor]]:
    """The targets of all batches, by objective."""
    every = [batch.targets for batch in batches]
    return {
        name: {key: torch.cat([each[name][key] for each in every]) for key in own} for name, own in every[0].items()
    }


def _labels(labels: Tensor, size: int) -> Ints:
    return np.bincount(labels[labels != IGNORED].numpy(), minlength=size)


def _counts(ids: Ints, size: int) -> Ints:
    """How often each id occurs; counted piece by piece, since numpy makes a copy of eight bytes an id."""
    found = np.zeros(size, np.int64)
    for start in range(0, len(ids), _PIECE):
        piece = np.bincount(ids[start : start + _PIECE], minlength=size)
        found = piece + np.pad(found, (0, len(piece) - len(found)))
    return found

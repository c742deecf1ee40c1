"""Unigram baseline: the loss of a predictor that uses only the frequencies of labels."""

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
from paribus.train.lightning_module import Model

_CHUNK: Final = 1 << 22  # ids that are counted at a time


def unigram_baselines(model: Model, data: Data) -> dict[str, float]:
    """Return the baseline of each evaluated loss, on the same labels of the same corrupted examples.

    A model that is no better has learned the frequencies of tokens or classes, and nothing else.
    """
    losses: dict[str, float] = {}
    targets = validation_targets(data)
    for name in model.evaluated:
        objective = model.objective(name)
        if "loss" not in objective.terms:
            continue
        nats = objective.unigram_loss(data.encoded.train, targets[name])
        if nats is None and not needs_teacher(objective) and scores_the_vocabulary(objective, model.assembled):
            nats = token_unigram_loss(data, name, objective.terms["loss"], targets[name])
        if nats is not None:
            losses[f"val/{name}/loss"] = nats
            losses |= text_metrics(name, nats, data.encoded) if has_likelihood(objective) else {}
    return losses


def validation_targets(data: Data) -> Mapping[str, Mapping[str, Tensor]]:
    """Return the targets of all evaluated examples, by objective."""
    return _targets(data.validation_batch(number) for number in range(-(-data.val_count // data.batch_size)))


def token_unigram_loss(data: Data, name: str, key: str, targets: Mapping[str, Tensor]) -> float | None:
    """Return the nats per label from the token counts of the training split, plus one.

    `key` selects the labels among the objective's targets. Labels may contain special tokens that no text has, such as
    sentinels or end tokens; their frequency is estimated from as many training examples as are evaluated. None: there
    are no labels.
    """
    vocabulary = data.encoded.vocabulary
    labels = _label_counts(targets[key], vocabulary.size)
    if not labels.sum():
        return None
    text = _token_counts(data.encoded.train.ids, vocabulary.size)
    special = np.zeros(vocabulary.size, bool)
    special[sorted(vocabulary.reserved)] = True
    special &= text == 0
    shares = (text + 1) / (text + 1).sum()
    if labels[special].any():
        sampled = _label_counts(_sample(data, name)[key], vocabulary.size)
        fraction = (sampled[special].sum() + 1) / (sampled.sum() + 2)
        shares[special] = fraction * (sampled[special] + 1) / (sampled[special] + 1).sum()
        shares[~special] *= (1 - fraction) / shares[~special].sum()
    return float(-(labels @ np.log(shares)) / labels.sum())


def _sample(data: Data, name: str) -> Mapping[str, Tensor]:
    """Return the targets of training examples, formed and corrupted as the evaluated ones are."""
    evaluated = data.val_examples
    examples = data.examples(data.encoded.train, evaluated.objectives, evaluated.length)
    index = torch.from_numpy(order(0, VALIDATION, examples.count)[: data.val_count])
    return _targets(examples.batch(Draw(0, VALIDATION, part)) for part in index.split(data.batch_size))[name]


def _targets(batches: Iterable[Batch]) -> Mapping[str, Mapping[str, Tensor]]:
    """Return the targets of all batches, by objective."""
    batch_targets = [batch.targets for batch in batches]
    return {
        name: {key: torch.cat([targets[name][key] for targets in batch_targets]) for key in labels}
        for name, labels in batch_targets[0].items()
    }


def _label_counts(labels: Tensor, size: int) -> Ints:
    return np.bincount(labels[labels != IGNORED].numpy(), minlength=size)


def _token_counts(ids: Ints, size: int) -> Ints:
    """Return the count of each id, chunk by chunk, since numpy copies the ids as eight bytes each."""
    counts = np.zeros(size, np.int64)
    for start in range(0, len(ids), _CHUNK):
        chunk = np.bincount(ids[start : start + _CHUNK], minlength=size)
        counts = chunk + np.pad(counts, (0, len(chunk) - len(counts)))
    return counts

"""Evaluation on the validation split: metrics, and the unigram baseline, which uses only the frequencies of labels.

Both are the same for every variant and at every step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

import numpy as np
import torch
from torch import Tensor

from paribus.assembly.devices import move_batch
from paribus.assembly.metric_names import has_likelihood
from paribus.datamodule.data import VALIDATION, Data
from paribus.datamodule.token_store import EncodedCorpus
from paribus.models.answer_scores import AnswerScores
from paribus.models.lightning_module import Mean, Model
from paribus.parts.batch import IGNORED, Batch
from paribus.parts.random_draws import Draw, order
from paribus.slots.corpus import Ints

Targets: TypeAlias = Mapping[str, Mapping[str, Tensor]]  # of all evaluated examples, by objective and name

_CHUNK: Final = 1 << 22  # ids that are counted at a time
MAX_NATS: Final = 700.0  # the perplexity of more is not finite
UNIGRAM_TOLERANCE: Final = 0.02  # nats by which a loss must be below its unigram baseline to count as learned


def evaluate(model: Model, data: Data, names: Sequence[str] | None = None) -> dict[str, float]:
    """Return the metrics of the validation split.

    `names` are objectives to evaluate instead of the model's own.
    """
    with evaluation_mode(model):
        metrics = compute_metrics(model, data.val_dataloader(), names)
    for name in model.evaluated if names is None else names:
        if has_likelihood(model.objective(name)):
            metrics |= text_metrics(name, metrics[f"val/{name}/loss"], data.encoded)
    return metrics


def compute_metrics(model: Model, batches: Iterable[Batch], names: Sequence[str] | None = None) -> dict[str, float]:
    """Return the metrics over some batches."""
    metrics = model.metrics(names)
    for metric in metrics.values():
        metric.sync_on_compute = False  # each of several processes evaluates everything
    answers = AnswerScores(metrics)
    for batch in batches:
        answers.start_batch(len(batch.index))
        model.observe(to_device(batch, model), metrics, names)
    model.evaluation_counts = {name: metric.count for name, metric in metrics.items() if isinstance(metric, Mean)}
    values = {name: float(metric.compute()) for name, metric in metrics.items()}
    model.answer_scores = answers.scores(values)
    return values


@contextmanager
def evaluation_mode(model: Model) -> Iterator[None]:
    """Set the model to evaluation mode without gradients for the block, and restore its mode."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def to_device(batch: Batch, model: Model) -> Batch:
    """Move a batch to the model's device."""
    return move_batch(batch, model.device)


def text_metrics(name: str, nats: float, text: EncodedCorpus) -> dict[str, float]:
    """Return perplexity, exp(nats), and bits per byte, nats / ln 2 x tokens / bytes, from the nats per token.

    Tokens and bytes are those of the whole validation split, including the end tokens of documents. Bytes do not depend
    on the tokenizer, so bits per byte can be compared between tokenizers that restore the text exactly.
    """
    metrics = {f"val/{name}/perplexity": math.exp(min(nats, MAX_NATS)) if math.isfinite(nats) else nats}
    if text.bytes:
        end_tokens = 0 if text.packing_vocabulary.end_token is None else len(text.val.documents) - 1
        tokens = len(text.val.ids) + end_tokens
        metrics[f"val/{name}/bits-per-byte"] = nats / math.log(2) * tokens / text.bytes
    return metrics


def unigram_baselines(model: Model, data: Data, targets: Targets | None = None) -> dict[str, float]:
    """Return the baseline of each evaluated loss that has one, on the same labels of the same corrupted examples.

    A model that is no better has learned the frequencies of tokens or classes, and nothing else. `targets` are those of
    `validation_targets`, if they were read already.
    """
    losses: dict[str, float] = {}
    targets = validation_targets(data) if targets is None else targets
    for name in model.evaluated:
        objective = model.objective(name)
        for term, key in objective.terms.items():
            if term in objective.traits.get("token_terms", ()):
                loss = token_unigram_loss(data, name, key, targets[name])
            else:
                loss = objective.unigram_loss(data.encoded.train, targets[name]) if term == "loss" else None
            if loss is not None:
                losses[f"val/{name}/{term}"] = loss
                losses |= text_metrics(name, loss, data.encoded) if term == "loss" and has_likelihood(objective) else {}
    return losses


def learning_thresholds(model: Model, baselines: Mapping[str, float], text: EncodedCorpus) -> dict[str, float]:
    """Return the value below which a model has learned more than each baseline: `UNIGRAM_TOLERANCE` nats less.

    The nats of a squared error are those of a normal distribution with this variance.
    """
    thresholds: dict[str, float] = {}
    for name in model.evaluated:
        objective = model.objective(name)
        for term in objective.terms:
            baseline = baselines.get(f"val/{name}/{term}")
            if baseline is None:
                continue
            is_squared = term == "loss" and objective.traits.get("squared_error", False)
            limit = baseline * math.exp(-2 * UNIGRAM_TOLERANCE) if is_squared else baseline - UNIGRAM_TOLERANCE
            thresholds[f"val/{name}/{term}"] = limit
            thresholds |= text_metrics(name, limit, text) if term == "loss" and has_likelihood(objective) else {}
    return thresholds


def validation_targets(data: Data) -> Targets:
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
    text = data.encoded.token_counts
    if text is None:
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


def _targets(batches: Iterable[Batch]) -> Targets:
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

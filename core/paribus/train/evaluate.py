"""Evaluation on the validation split: the same for every variant and at every step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch

from paribus.assembly.metric_names import has_likelihood
from paribus.parts.batch import Batch
from paribus.train.data import Data
from paribus.train.lightning_module import Model
from paribus.train.packing import end_token
from paribus.train.token_store import EncodedCorpus

MAX_NATS: Final = 700.0  # the perplexity of more is not finite


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
    for batch in batches:
        model.observe(to_device(batch, model), metrics, names)
    return {name: float(metric.compute()) for name, metric in metrics.items()}


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
    to_device: Batch = model.transfer_batch_to_device(batch, model.device, 0)
    return to_device


def text_metrics(name: str, nats: float, text: EncodedCorpus) -> dict[str, float]:
    """Return perplexity, exp(nats), and bits per byte, nats / ln 2 x tokens / bytes, from the nats per token.

    Tokens and bytes are those of the whole validation split, including the end tokens of documents. Bytes do not depend
    on the tokenizer, so bits per byte can be compared between tokenizers.
    """
    metrics = {f"val/{name}/perplexity": math.exp(min(nats, MAX_NATS)) if math.isfinite(nats) else nats}
    if text.bytes:
        end_tokens = 0 if end_token(text.vocabulary) is None else len(text.val.documents) - 1
        tokens = len(text.val.ids) + end_tokens
        metrics[f"val/{name}/bits-per-byte"] = nats / math.log(2) * tokens / text.bytes
    return metrics

"""What is measured of a model, the same for every variant and at every moment of its training.

The mean of a loss over all that is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch

from paribus.assembly.metric_names import has_likelihood
from paribus.parts.batch import Batch
from paribus.train.data import Data
from paribus.train.model import Model
from paribus.train.packing import end_token
from paribus.train.token_store import EncodedCorpus

MAX_NATS: Final = 700.0  # whose perplexity is a number still


def evaluate(model: Model, data: Data, names: Sequence[str] | None = None) -> dict[str, float]:
    """The metrics of the validation split; the model is left in the mode in which it was found.

    `names` are the objectives that it is evaluated with, unless they are its own.
    """
    with evaluation_mode(model):
        found = compute_metrics(model, data.val_dataloader(), names)
    for name in model.evaluated if names is None else names:
        if has_likelihood(model.objective(name)):
            found |= text_metrics(name, found[f"val/{name}/loss"], data.encoded)
    return found


def compute_metrics(model: Model, batches: Iterable[Batch], names: Sequence[str] | None = None) -> dict[str, float]:
    """The metrics of some batches."""
    metrics = model.metrics(names)
    for metric in metrics.values():
        metric.sync_on_compute = False  # of several processes, each sees all of it
    for batch in batches:
        model.observe(to_device(batch, model), metrics, names)
    return {name: float(metric.compute()) for name, metric in metrics.items()}


@contextmanager
def evaluation_mode(model: Model) -> Iterator[None]:
    """The model as it is used: it drops nothing, takes no gradient, and is left in the mode in which it was found."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def to_device(batch: Batch, model: Model) -> Batch:
    """The batch on the model's device."""
    to_device: Batch = model.transfer_batch_to_device(batch, model.device, 0)
    return to_device


def text_metrics(name: str, nats: float, text: EncodedCorpus) -> dict[str, float]:
    """What the nats of a token come to: perplexity, exp(nats), and bits of a byte, nats / ln 2 x tokens / bytes.

    Tokens and bytes are those of the whole validation split, marks at the ends of documents among the tokens. What is
    a byte does not depend on the tokenizer, so that bits per byte can be held against those of another.
    """
    found = {f"val/{name}/perplexity": math.exp(min(nats, MAX_NATS)) if math.isfinite(nats) else nats}
    if text.bytes:
        marks = 0 if end_token(text.vocabulary) is None else len(text.val.documents) - 1
        tokens = len(text.val.ids) + marks
        found[f"val/{name}/bits-per-byte"] = nats / math.log(2) * tokens / text.bytes
    return found

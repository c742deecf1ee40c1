"""What is measured of a model, the same for every variant and at every moment of its training."""

from __future__ import annotations

import torch

from paribus.parts.rows import Batch
from paribus.train.data import Data
from paribus.train.model import Model


def evaluate(model: Model, data: Data) -> dict[str, float]:
    """The metrics of the validation split; the model is left in the mode in which it was found."""
    training = model.training
    model.eval()
    metrics = model.metrics()
    with torch.no_grad():
        for batch in data.val_dataloader():
            model.observe(moved(batch, model), metrics)
    model.train(training)
    return {name: float(metric.compute()) for name, metric in metrics.items()}


def moved(batch: Batch, model: Model) -> Batch:
    """The batch on the model's device."""
    moved: Batch = model.transfer_batch_to_device(batch, model.device, 0)
    return moved

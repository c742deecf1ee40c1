"""The score of each evaluated example, recorded beside the metrics that average them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchmetrics import MeanMetric, Metric
from torchmetrics.classification import MulticlassAccuracy

from paribus import IGNORED
from paribus.assembly.forward_pass import BatchForward
from paribus.datamodule.data import Data
from paribus.models.answer_scores import AnswerScores
from paribus.models.evaluate import evaluate
from paribus.models.lightning_module import Model

Assemble = Callable[..., Model]
Shake = Callable[[Model], Model]
Feed = Callable[..., Data]


def test_examples_have_scores_in_their_order_and_tokens_have_none(assemble: Assemble, shake: Shake, feed: Feed) -> None:
    model, data = shake(assemble("bert-tiny")), feed("bert-tiny", "data.batch=5")
    metrics = evaluate(model, data)
    right: list[float] = []
    with torch.no_grad():
        for batch in data.val_dataloader():
            run = BatchForward(model.topology, batch, heads={"nsp": model.objective("nsp")}).of("nsp")
            logits = model.objective("nsp").logits(run.hidden()[:, 0], run.unembed)
            right += (logits.argmax(-1) == run.targets["labels"]).float().tolist()
    assert model.answer_scores == {"val/nsp/accuracy": right}
    assert sum(right) / len(right) == pytest.approx(metrics["val/nsp/accuracy"])


def test_no_scores_are_recorded_of_a_metric_that_is_not_their_mean() -> None:
    def accuracy() -> Metric:
        return MulticlassAccuracy(2, average="micro", ignore_index=IGNORED)

    values, labels = torch.tensor([0.0, 0.5, 1.0]), torch.tensor([0, 1, 1])
    updates: dict[str, tuple[Metric, tuple[Tensor, ...]]] = {
        "scores": (MeanMetric(), (values,)),
        "accuracy": (accuracy(), (torch.tensor([0, 0, 1]), labels)),
        "weighted": (MeanMetric(), (values, labels)),
        "macro": (MulticlassAccuracy(2, average="macro"), (labels, labels)),
        "unlabelled": (accuracy(), (labels, torch.tensor([0, IGNORED, 1]))),
        "more": (MeanMetric(), (torch.ones(4),)),
    }
    metrics = {name: metric for name, (metric, _) in updates.items()}
    answers = AnswerScores(metrics)
    for _ in range(2):
        answers.start_batch(3)
        for metric, arguments in updates.values():
            metric.update(*arguments)
    scores = answers.scores({name: float(metric.compute()) for name, metric in metrics.items()})
    assert scores == {"scores": [0.0, 0.5, 1.0] * 2, "accuracy": [1.0, 0.0, 1.0] * 2}

"""Metrics shaped like GLUE's and SQuAD's, by torchmetrics where it has them; what is undefined is 0, as is usual."""

from __future__ import annotations

import warnings
from typing import Literal, final

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import BinaryF1Score, MulticlassF1Score
from torchmetrics.functional.classification import multiclass_confusion_matrix
from torchmetrics.functional.regression import pearson_corrcoef, spearman_corrcoef

from paribus import IGNORED

Kind = Literal["pearson", "spearman"]


def f1(classes: int) -> Metric:
    """Of class 1 where there are two, as GLUE has it, or the mean over those that are there."""
    if classes == 2:
        return BinaryF1Score(ignore_index=IGNORED, validate_args=False)
    return MulticlassF1Score(classes, average="macro", ignore_index=IGNORED, validate_args=False)


@final
class Matthews(Metric):
    """The correlation of labels with guesses: "Comparison of the predicted and observed secondary structure of T4 phage
    lysozyme" (Matthews 1975), for more classes than two as Gorodkin (2004) has it. Where all guesses are one class it
    is 0, as in scikit-learn; torchmetrics' own tells some such guesses from others."""

    full_state_update = False
    higher_is_better = True
    counts: Tensor  # (C, C): labels by guesses

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.add_state("counts", torch.zeros(classes, classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, said: Tensor, so: Tensor) -> None:
        """(N,), (N,)."""
        self.counts += multiclass_confusion_matrix(said, so, self.classes, ignore_index=IGNORED, validate_args=False)

    def compute(self) -> Tensor:
        counts = self.counts.double()
        so, said, total = counts.sum(1), counts.sum(0), counts.sum()
        both = counts.trace() * total - so @ said
        apart = (total**2 - so @ so) * (total**2 - said @ said)
        return both / apart.sqrt() if apart > 0 else torch.zeros_like(total)


@final
class Correlation(Metric):
    """Of what was said with what was so: Pearson's, or Spearman's of their ranks."""

    full_state_update = False
    higher_is_better = True
    said: list[Tensor]
    so: list[Tensor]

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.add_state("said", [], dist_reduce_fx="cat")
        self.add_state("so", [], dist_reduce_fx="cat")

    def update(self, said: Tensor, so: Tensor) -> None:
        """(N,), (N,)."""
        self.said.append(said.detach().double())
        self.so.append(so.double())

    def compute(self) -> Tensor:
        said, so = joined(self.said), joined(self.so)
        if len(said) < 2 or bool((said == said[0]).all()) or bool((so == so[0]).all()):
            return so.new_zeros(())  # one of the two does not vary: nothing goes with it
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the variance is small, which is so at first
            found = (pearson_corrcoef if self.kind == "pearson" else spearman_corrcoef)(said, so)
        return found.nan_to_num(0.0)


@final
class Spans(Metric):
    """How well answers were found, question by question: "SQuAD" (Rajpurkar et al. 2016), and 2.0 (2018).

    `exact`: the share that is the same span. Otherwise the mean F1 of the places that are in both. SQuAD counts words
    without regard to where they stand, and so takes the same words elsewhere for right; here they are not. Where
    nothing answers, saying so is worth 1 and all else 0. Of several windows of one context, the one with the best span
    counts; that nothing answers is said where the least that any window gives to it is more than that, by `threshold`.
    """

    full_state_update = False
    higher_is_better = True
    seen: list[Tensor]
    scores: list[Tensor]

    def __init__(self, *, exact: bool, threshold: float = 0.0) -> None:
        super().__init__()
        self.exact = exact
        self.threshold = threshold
        self.add_state("seen", [], dist_reduce_fx="cat")
        self.add_state("scores", [], dist_reduce_fx="cat")

    def update(self, question: Tensor, span: Tensor, gold: Tensor, best: Tensor, none: Tensor) -> None:
        """(N,), (N, 2), (N, 2), (N,), (N,) of each window: first and last place of the best span and of the answer, -1
        and -1 where nothing answers; and how well the span and none score."""
        self.seen.append(torch.cat([question.unsqueeze(1), span, gold], dim=1))
        self.scores.append(torch.stack([best, none], dim=1).detach().double())

    def compute(self) -> Tensor:
        seen, scores = joined(self.seen), joined(self.scores)
        worth: list[float] = []
        for question in seen[:, 0].unique():
            windows = seen[:, 0] == question
            at = int(scores[windows, 0].argmax())
            said, gold = seen[windows][at, 1:3].tolist(), seen[windows][at, 3:].tolist()
            if scores[windows, 1].min() > scores[windows, 0].max() + self.threshold:
                said = [-1, -1]
            worth.append(float(said == gold) if self.exact else shared(said, gold))
        return scores.new_tensor(sum(worth) / max(len(worth), 1))


def shared(said: list[int], gold: list[int]) -> float:
    """F1 of the places of two spans, by their first and last; (-1, -1) is none."""
    if said[0] < 0 or gold[0] < 0:
        return float(said == gold)
    both = min(said[1], gold[1]) - max(said[0], gold[0]) + 1
    return 2 * max(both, 0) / (said[1] - said[0] + gold[1] - gold[0] + 2)


def joined(state: list[Tensor] | Tensor) -> Tensor:
    """A state of a list as one tensor, which it is already where ranks have shared it."""
    if isinstance(state, Tensor):
        return state
    return torch.cat(state) if state else torch.empty(0, 5)

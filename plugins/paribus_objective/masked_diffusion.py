"""Masked diffusion: predict masked tokens at every mask rate, an upper bound of the negative log-likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias, final

import numpy as np
import torch
from torch import Tensor

from paribus import (
    IGNORED,
    Draw,
    ForwardPass,
    GenerationTarget,
    LossTerm,
    Norms,
    Objective,
    ObjectiveTraits,
    Prompt,
    Range,
    Shape,
    Stream,
    TrainingExamples,
    Unembed,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import masking, scoring, special_tokens, vocabulary_head

if TYPE_CHECKING:
    from torchmetrics import Metric

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]
ScheduleName: TypeAlias = Literal["linear", "cosine"]


class MaskRateSchedule(NamedTuple):
    """Mask rate as a growing function of the time from 0 to 1, and its inverse."""

    rate: Callable[[Array], Array]
    time: Callable[[Array], Array]


SCHEDULES: Final[Mapping[ScheduleName, MaskRateSchedule]] = {
    "linear": MaskRateSchedule(lambda time: time, lambda rate: rate),
    "cosine": MaskRateSchedule(lambda time: np.sin(time * math.pi / 2), lambda rate: np.arcsin(rate) * 2 / math.pi),
}


ScheduleOption: TypeAlias = Annotated[ScheduleName, "mask rate in training as a function of the time: t, or sin(πt/2)"]
MinRate: TypeAlias = Annotated[
    float, "lowest mask rate in training, not in evaluation (MDLM, LLaDA: 1e-3)", Range(0, below=1)
]
Samples: TypeAlias = Annotated[int, "mask rates of each example in evaluation, each a forward pass", Range(1)]


class MaskPredictor(vocabulary_head.VocabularyHead, Protocol):
    """Objective whose loss is the weighted cross-entropy of masked tokens, in several samples."""

    @property
    def classes(self) -> int: ...

    @property
    def mask(self) -> int: ...

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor: ...


def logits(objective: MaskPredictor, hidden: Tensor, unembed: Unembed) -> Tensor:
    """(…, D) -> (…, V), where the mask has no share."""
    scores = vocabulary_head.logits(objective, hidden, unembed)
    return scores.index_fill(-1, torch.full((1,), objective.mask, device=scores.device), -torch.inf)


def forward(objective: MaskPredictor, run: ForwardPass) -> Mapping[str, LossTerm]:
    """Return the mean bound of the samples."""
    samples = run.targets["weights"].shape[1]
    totals = [_loss(objective, run, sample) for sample in range(samples)]
    return {"bound": LossTerm(torch.stack(totals).sum() / samples, (run.targets["labels"] != IGNORED).sum())}


def metrics(objective: MaskPredictor) -> Mapping[str, Metric]:
    return {"accuracy": scoring.accuracy(objective.classes)}


def update_metrics(objective: MaskPredictor, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
    """Add the accuracy of masked tokens, at all mask rates."""
    for sample in range(run.targets["weights"].shape[1]):
        scores = _label_scores(objective, run, sample)
        scoring.update(metrics["accuracy"], scores.predictions, _labels(run, sample))


def _loss(objective: MaskPredictor, run: ForwardPass, sample: int) -> Tensor:
    """Return the weighted sum of the cross-entropy of a sample's masked tokens."""
    labels, weights = _labels(run, sample), run.targets["weights"][:, sample]
    weights = (weights.unsqueeze(1) if weights.ndim == 1 else weights).expand_as(labels)
    if not torch.is_grad_enabled():
        return (_label_scores(objective, run, sample).losses * weights).sum()
    hidden = _hidden(run, sample)
    return run.summed_cross_entropy(_head(objective, run), hidden, labels, objective.classes, weights=weights)


def _label_scores(objective: MaskPredictor, run: ForwardPass, sample: int) -> scoring.LabelScores:
    hidden, labels, name = _hidden(run, sample), _labels(run, sample), f"sample {sample}"
    return scoring.label_scores(run, _head(objective, run), hidden, labels, objective.classes, name=name)


def _labels(run: ForwardPass, sample: int) -> Tensor:
    return run.targets["labels"].masked_fill(~run.targets["masked"][:, sample], IGNORED)


def _hidden(run: ForwardPass, sample: int) -> Tensor:
    """Return hidden states of the text with masks, which may follow a copy without: (B, T, D)."""
    length = run.targets["labels"].shape[1]
    if not sample:
        return run.hidden()[:, -length:]
    return run.hidden(tokens=run.targets["inputs"][:, sample - 1], key=f"sample {sample}")[:, -length:]


def _head(objective: MaskPredictor, run: ForwardPass) -> scoring.Head:
    return lambda hidden: objective.logits(hidden, run.unembed)


@final
class MaskedDiffusion(Objective, WeightConverter):
    """Masked diffusion: predict masked tokens at a random mask rate, weighted so that the loss is an upper bound of the
    negative log-likelihood: "MDLM" (Sahoo et al. 2024), "LLaDA" (Nie et al. 2025).

    Of a text of n tokens, m = ⌈rate · n⌉ tokens are masked, every subset with the same probability. Their cross-entropy
    is weighted by 1 / (m P(m)), n / m for a linear schedule, and divided by n. This is the bound of both papers,
    integrated over the rates between (m - 1) / n and m / n, so that no rate is too small. Every schedule has the same
    mean; it changes the variance in training, and evaluation is linear. Times are spread evenly over the examples of a
    batch, as MDLM's are, and over the `samples` of an example in evaluation. `bound` is in nats per token, and is not
    compared with a loss such as that of `clm`. Padding is never masked; the end of a document is. (B, T, D) ->
    (B, T, V), without a score for the mask.
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "both",
        "parts": [],
        "segments": False,
        "needs": ["mask"],
        "token_terms": ["bound"],
    }
    terms: ClassVar[Mapping[str, str]] = {"bound": "labels"}
    logits = logits
    forward = forward
    metrics = metrics
    update_metrics = update_metrics
    scored_hidden = vocabulary_head.masked_hidden
    fill_logits = vocabulary_head.fill_logits
    head_positions = vocabulary_head.head_positions
    cost = vocabulary_head.cost
    convert_weights = vocabulary_head.convert_weights

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        schedule: ScheduleOption = "linear",
        min_rate: MinRate = 0.0,
        samples: Samples = 4,
    ) -> None:
        super().__init__()
        self.classes, self.samples = shape.vocabulary, samples
        self.schedule, self.min_rate = SCHEDULES[schedule], min_rate
        self.mask = special_tokens.require(vocabulary, "mask", "masked-diffusion")
        self.end_of_text = vocabulary.end_token
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.build(shape, norm, transform=False, bias=False)

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        """Mask the body. Targets are the tokens, the places of masks and the weight of each sample, and the inputs of
        all samples but the first, which is the stream.
        """
        body = streams["body"]
        is_text = text_mask(body)
        is_evaluation = draw.epoch < 0  # where all schedules have the same masks
        samples, min_rate = (self.samples, 0.0) if is_evaluation else (1, self.min_rate)
        schedule = SCHEDULES["linear"] if is_evaluation else self.schedule
        counts, weights = mask_counts(is_text.sum(1), draw.spread("time").numpy(), samples, schedule, min_rate)
        masked = np.stack([random_subsets(is_text, counts[:, it], draw, f"mask {it}") for it in range(samples)], axis=1)
        inputs = np.where(masked, self.mask, body.tokens.numpy()[:, None])
        examples = {
            "labels": body.tokens.masked_fill(torch.from_numpy(~is_text), IGNORED),
            "masked": torch.from_numpy(masked),
            "weights": torch.from_numpy(weights.astype(np.float32)),
            "inputs": torch.from_numpy(inputs[:, 1:]),
        }
        stream = body._replace(tokens=torch.from_numpy(inputs[:, 0].copy()))
        return TrainingExamples({**streams, "body": stream}, examples)

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        return Prompt(tuple(ids), stop=self.end_of_text, mask=self.mask)


def mask_counts(
    lengths: Array, start: Array, samples: int, schedule: MaskRateSchedule, min_rate: float
) -> tuple[Array, Array]:
    """Return the number of masks in each sample, and the weight of their loss: (B,), (B,) -> (B, K), (B, K).

    `start` is the time of the first sample of each example; the others follow at equal distances.
    """
    length = lengths[:, None]
    time = 1 - (start[:, None] + np.arange(samples) / samples) % 1  # above 0, up to 1
    first = schedule.time(np.array(min_rate))
    rate = schedule.rate(first + (1 - first) * time)
    counts = np.clip(np.ceil(rate * length).astype(np.int64), np.minimum(1, length), length)
    n = np.maximum(length, 1)
    share = schedule.time(np.minimum(counts / n, 1)) - schedule.time(np.maximum(counts - 1, 0) / n)
    return counts, np.where(counts > 0, 1 / (np.maximum(counts, 1) * np.where(share > 0, share, 1)), 0)


def text_mask(body: Stream) -> Array:
    """(B, T) bool: the tokens of the text, with the ends of documents; not padding, nor marks of segments."""
    mask = np.ones(body.tokens.shape, dtype=bool)
    if body.special is not None:
        mask &= ~body.special.numpy()
    if body.documents is not None:
        mask &= body.documents.numpy() >= 0
    return mask


def random_subsets(is_text: Array, counts: Array, draw: Draw, name: str) -> Array:
    """Choose a number of tokens of each text, every subset with the same probability: (B, T), (B,) -> (B, T) bool."""
    length = is_text.shape[1]
    places = masking.smallest(draw.uniform(name, length), length, ~is_text)
    chosen = np.zeros_like(is_text)
    np.put_along_axis(chosen, places, np.arange(length) < counts[:, None], axis=1)
    return chosen

"""Replaced token detection: classify which tokens were replaced by a generator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, final

import torch
from torch import Tensor, nn

from paribus import (
    IGNORED,
    Cost,
    Draw,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    ObjectiveTraits,
    Range,
    Role,
    Shape,
    Stream,
    TrainingExamples,
    Unembed,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import detector, masking, scoring, vocabulary_head

if TYPE_CHECKING:
    from torchmetrics import Metric

_DRAW_BITS: Final = 24
_PROBABILITY_BITS: Final = 62 - _DRAW_BITS  # leaves room for the product with a draw


@final
class ReplacedTokenDetection(Objective):
    """Replaced token detection: a generator predicts masked tokens, and the body classifies each token of the text with
    samples from the generator as replaced or original. "ELECTRA" (Clark et al. 2020).

    Samples have no gradient, and a sample that equals the original counts as original. Every token except padding is
    classified, special tokens included, as in the authors' code. The samples of an example do not depend on its batch:
    each masked token has a number in [0, 1), and its sample is the token at which the generator's cumulative
    probability exceeds it. The generator: (B, T, G) -> (B, N, V); the body: (B, T, D) -> (B, T).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "both",
        "parts": ["generator"],
        "segments": False,
        "needs": ["mask"],
        "token_terms": ["generator"],
    }
    terms: ClassVar[Mapping[str, str]] = {"generator": "labels", "detection": "tokens"}
    head_positions = masking.head_positions

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: Annotated[float, "share of the text's tokens that the generator predicts", Range(above=0, high=1)] = 0.15,
        mask: Annotated[float, "share of these that are masked (the authors' code: .85)", Range(0, 1)] = 1.0,
        weight: Annotated[float, "weight of the detection loss; the generator's is 1", Range(above=0)] = 50.0,
        add_first_token: Annotated[bool, "add the first token to each, and normalize (DeBERTa v3: yes)"] = False,
    ) -> None:
        super().__init__()
        self.masking = masking.Masking(vocabulary, rate, mask, 0.0)
        self.weight = weight
        self.classes = shape.vocabulary
        self.generator = GeneratorHead(shape.shape_of("generator"), norm)
        self.detector = detector.Detector(shape.width, norm if add_first_token else None)

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body = streams["body"]
        slots = self.head_positions(body.tokens.shape[1])
        masked, positions, labels = self.masking(body, slots, draw)
        own_targets = {
            "pick": positions,
            "labels": labels,
            "uniform": draw.uniform("filled", slots),
            "tokens": detector.not_padding(body),
        }
        return TrainingExamples({**streams, "generator": masked}, own_targets)

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        scores: Tensor = self.detector(hidden)
        return scores

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {
            "generator": scoring.cross_entropy(self.fill_logits(run), run.targets["labels"]),
            "detection": detector.loss(self._scores(run), self._detection_labels(run), self.weight),
        }

    def fill_logits(self, run: ForwardPass) -> Tensor:
        """(B, N, V): the generator's logits of the masked tokens."""

        def compute() -> Tensor:
            hidden = masking.gather(run.hidden("generator"), run.targets["pick"])
            logits: Tensor = self.generator(hidden, run.unembed)
            return logits

        return run.cached("generator_logits", compute)

    def cost(self, load: Load) -> Cost:
        return vocabulary_head.cost(self.generator, load) + self.detector.cost(load.queries)

    def unembed_positions(self, length: int) -> int:
        return self.head_positions(length)

    def metrics(self) -> Mapping[str, Metric]:
        return {"generator-accuracy": scoring.accuracy(self.classes), **detector.metrics()}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        scoring.update(metrics["generator-accuracy"], self.fill_logits(run).argmax(-1), run.targets["labels"])
        detector.update(metrics, self._scores(run), self._detection_labels(run))

    def _tokens(self, run: ForwardPass) -> Tensor:
        """(B, T): the text with samples from the generator."""

        def compute() -> Tensor:
            tokens, pick, labels = run.streams["body"].tokens, run.targets["pick"], run.targets["labels"]
            samples = sample(self.fill_logits(run).detach(), run.targets["uniform"])
            return tokens.scatter(1, pick, samples.where(labels != IGNORED, tokens.gather(1, pick)))

        return run.cached("tokens", compute)

    def _detection_labels(self, run: ForwardPass) -> Tensor:
        """(B, T): 1 for replaced tokens, 0 for original ones, IGNORED where the targets have no label."""
        labels = detector.replaced_labels(run.streams["body"], self._tokens(run))
        return labels.masked_fill(run.targets["tokens"] == IGNORED, IGNORED)

    def _scores(self, run: ForwardPass) -> Tensor:
        """(B, T): scores of tokens being replaced, above 0 if more likely than not."""

        def compute() -> Tensor:
            hidden = run.hidden(tokens=self._tokens(run), key="filled")
            return self.logits(hidden, run.unembed).squeeze(-1)

        return run.cached("scores", compute)


@final
class GeneratorHead(nn.Module, WeightConverter):
    """Head of the generator: a dense layer to the width of the embedding table, GELU, a norm, and the table."""

    roles: ClassVar[Mapping[str, Role]] = vocabulary_head.ROLES
    forward = vocabulary_head.logits
    convert_weights = vocabulary_head.convert_weights

    def __init__(self, shape: Shape, norm: Norms) -> None:
        super().__init__()
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.build(shape, norm)


def sample(scores: Tensor, uniform: Tensor) -> Tensor:
    """(…, V), (…) in [0, 1) -> (…): a token each, sampled from the softmax of the scores.

    Probabilities are summed as integers: their sums do not depend on the order, which varies on a GPU.
    """
    probabilities = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    cumulative = (probabilities * 2.0**_PROBABILITY_BITS).long().cumsum(-1)
    threshold = (uniform * 2.0**_DRAW_BITS).long() * cumulative[..., -1] >> _DRAW_BITS
    token = torch.searchsorted(cumulative, threshold.unsqueeze(-1), right=True).squeeze(-1)
    return token.clamp(max=scores.shape[-1] - 1)  # after a divergence, the result must still be a token

"""Let a generator fill gaps in a text, and tell which of its tokens are none of the text's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, final

import torch
from torch import Tensor, nn

from paribus import (
    IGNORED,
    ConvertedTensor,
    Cost,
    Draw,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    Range,
    Role,
    Shape,
    Stream,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import detecting, masking, scoring, vocabulary_head
from paribus_objective.detecting import Detector

if TYPE_CHECKING:
    from torchmetrics import Metric

_LUCK: Final = 24  # bits of a draw
_ODDS: Final = 62 - _LUCK  # bits of the odds, so that the product with a draw has room


@final
class ReplacedTokenDetection(Objective):
    """A generator predicts hidden tokens, and of all tokens, with what it drew in place of these, the body tells which
    were replaced: "ELECTRA" (Clark et al. 2020).

    What is drawn is no gradient's business, and a draw that hits the original counts as original. Every row but padding
    is told of, special tokens included, as in the authors' code. The draws of an example are its own, whatever batch it
    comes in: a number in [0, 1) for each hidden token, and the token at which the generator's odds, summed up, pass it.
    The generator: (B, T, G) -> (B, N, V); the body: (B, T, D) -> (B, T).
    """

    traits: ClassVar[Traits] = {
        "corrupts": True,
        "sight": "both",
        "parts": ["generator"],
        "segments": False,
        "needs": ["mask"],
    }
    terms: ClassVar[Mapping[str, str]] = {"generator": "labels", "detection": "told"}

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: Annotated[float, "share of a text's tokens that the generator predicts", Range(above=0, high=1)] = 0.15,
        mask: Annotated[float, "share of these that are hidden from it (the authors' code: .85)", Range(0, 1)] = 1.0,
        weight: Annotated[float, "how much the detection weighs beside the generator", Range(above=0)] = 50.0,
        first: Annotated[bool, "whether the first row is added to each, and both normed, to tell (v3: yes)"] = False,
    ) -> None:
        super().__init__()
        self.masking = masking.Masking(vocabulary, rate, mask, 0.0)
        self.weight = weight
        self.classes = shape.vocabulary
        self.generator = Filler(shape.shape_of("generator"), norm)
        self.detector = Detector(shape.width, norm if first else None)

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body = streams["body"]
        most = self.head_positions(body.tokens.shape[1])
        hidden, pick, labels = self.masking(body, most, draw)
        found = {"pick": pick, "labels": labels, "luck": draw.uniform("filled", most), "told": detecting.told(body)}
        return TrainingExamples({**streams, "generator": hidden}, found)

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        scores: Tensor = self.detector(hidden)
        return scores

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {
            "generator": scoring.cross_entropy(self._filled(run), run.targets["labels"]),
            "detection": detecting.loss(self._told(run), self._replaced(run), self.weight),
        }

    def fill_logits(self, run: ForwardPass) -> Tensor:
        """It is the generator that fills."""
        return self._filled(run)

    def cost(self, load: Load) -> Cost:
        return vocabulary_head.cost(self.generator, load) + self.detector.cost(load.queries)

    def head_positions(self, length: int) -> int:
        return self.masking.most(length)

    def unembed_positions(self, length: int) -> int:
        return self.head_positions(length)

    def metrics(self) -> Mapping[str, Metric]:
        return {"generator-accuracy": scoring.accuracy(self.classes), **detecting.metrics()}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        scoring.update(metrics["generator-accuracy"], self._filled(run), run.targets["labels"])
        detecting.update(metrics, self._told(run), self._replaced(run))

    def _filled(self, run: ForwardPass) -> Tensor:
        """(B, N, V): the generator's scores where tokens are hidden."""

        def make() -> Tensor:
            scores: Tensor = self.generator(masking.rows(run.hidden("generator"), run.targets["pick"]), run.unembed)
            return scores

        return run.cached("filled", make)

    def _tokens(self, run: ForwardPass) -> Tensor:
        """(B, T): the text, with what the generator drew in it."""

        def make() -> Tensor:
            tokens, pick, labels = run.streams["body"].tokens, run.targets["pick"], run.targets["labels"]
            drawn = sampled(self._filled(run).detach(), run.targets["luck"])
            return tokens.scatter(1, pick, drawn.where(labels != IGNORED, tokens.gather(1, pick)))

        return run.cached("tokens", make)

    def _replaced(self, run: ForwardPass) -> Tensor:
        """(B, T): 1 where a token is none of the text's, 0 where it is; IGNORED where there is none."""
        return detecting.replaced(run.streams["body"], self._tokens(run))

    def _told(self, run: ForwardPass) -> Tensor:
        """(B, T): above 0 where the body holds a token to be replaced."""
        return run.cached("told", lambda: self.detector(run.hidden(tokens=self._tokens(run), key="filled")).squeeze(-1))


@final
class Filler(nn.Module, WeightConverter):
    """The generator's head: a dense layer to the width of the table, GELU, a norm, and the table itself."""

    roles: ClassVar[Mapping[str, Role]] = vocabulary_head.ROLES

    def __init__(self, shape: Shape, norm: Norms) -> None:
        super().__init__()
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.made(shape, norm)

    def forward(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        """(…, G) -> (…, V)."""
        return vocabulary_head.logits(self, hidden, unembed)

    def convert_weights(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        return vocabulary_head.adopted(self, other)


def sampled(scores: Tensor, luck: Tensor) -> Tensor:
    """(…, V), (…) in [0, 1) -> (…): a token each, by the odds that the scores give it.

    Odds are summed up as whole numbers: the sums are the same in any order, which a GPU would take where they were not.
    """
    odds = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    ends = (odds * 2.0**_ODDS).long().cumsum(-1)
    wanted = (luck * 2.0**_LUCK).long() * ends[..., -1] >> _LUCK
    found = torch.searchsorted(ends, wanted.unsqueeze(-1), right=True).squeeze(-1)
    return found.clamp(max=scores.shape[-1] - 1)  # what comes of a loss that has diverged is a token as well

"""Multi-token prediction: predict the next token and, with further heads, the tokens after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, final

from torch import Tensor, nn
from torch.nn import functional

from paribus import (
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
    Vocabulary,
    WeightConverter,
)
from paribus_objective import scoring, vocabulary_head, z_loss
from paribus_objective.causal_language_modelling import continue_text, labels_ahead, shift

MOST: Final = 8


@final
class MultiTokenPrediction(Objective, WeightConverter):
    """Multi-token prediction, MTP: `clm`, in which each position also predicts the tokens after the next one, by a
    further head for each: "Better & Faster Large Language Models via Multi-token Prediction" (Gloeckle et al. 2024).

    A further head is a residual block, `norm(h + silu(W h + b))`, before the embedding's scores, which all heads share.
    The next token has no block: its term `loss` is that of `clm`, with the same labels. `ahead-2` and so on are the
    losses of the tokens after it. A token of another document, or after the end of the example, is not predicted.
    Generation and perplexity use the next token only. (B, T + 1) -> tokens (B, T), labels (B, T) of each distance.
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "past",
        "parts": [],
        "segments": False,
        "needs": [],
        "likelihood": True,
        "token_terms": ["loss", *(f"ahead-{distance}" for distance in range(2, MOST + 1))],
    }
    logits = vocabulary_head.logits
    scored_hidden = vocabulary_head.body_hidden
    head_positions = vocabulary_head.head_positions
    metrics = vocabulary_head.metrics
    update_metrics = vocabulary_head.update_metrics
    convert_weights = vocabulary_head.convert_weights
    prompt = continue_text

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        ahead: Annotated[int, "number of tokens that each position predicts; 1: as clm", Range(1, MOST)] = 4,
        weight: Annotated[
            float,
            "weight of the loss of each further token (Gloeckle et al.: 1; DeepSeek-V3: 0.3 over their number)",
            Range(above=0),
        ] = 1.0,
        z: z_loss.ZWeight = 0.0,
    ) -> None:
        super().__init__()
        if ahead > shape.length:
            raise ValueError(f"expected `ahead` ≤ `dims.length` ({shape.length}), got {ahead}")
        self.classes, self.weight, self.z = shape.vocabulary, weight, z
        self.distances = tuple(range(2, ahead + 1))
        self.terms = z_loss.terms(z) | {f"ahead-{it}": f"labels {it}" for it in self.distances}  # type: ignore[misc]  # the class has those without further heads
        self.end_of_text = vocabulary.end_token  # closes each document, for `prompt`
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.build(shape, norm, transform=False, bias=False)
        self.further = nn.ModuleList(FurtherHead(shape, norm) for _ in self.distances)

    def text_length(self, length: int) -> int:
        return length + 1

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        inputs, labels = shift(streams["body"])
        further = {f"labels {it}": labels_ahead(streams["body"], it) for it in self.distances}
        return TrainingExamples({**streams, "body": inputs}, {"labels": labels, **further})

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        further = {f"ahead-{distance}": self.further_loss(run, distance) for distance in self.distances}
        return {**z_loss.forward(self, run), **further}

    def further_loss(self, run: ForwardPass, distance: int) -> LossTerm:
        """Return the loss of the token at a distance; the last positions have none."""
        block = self.further[distance - 2]

        def head(hidden: Tensor) -> Tensor:
            return self.logits(block(hidden), run.unembed)

        hidden, labels = self.scored_hidden(run), run.targets[f"labels {distance}"]
        end = 1 - distance
        loss = scoring.token_cross_entropy(
            run, head, hidden[:, :end], labels[:, :end], self.classes, name=f"ahead-{distance}"
        )
        return loss._replace(weight=self.weight)

    def cost(self, load: Load) -> Cost:
        cost = vocabulary_head.cost(self, load)
        for distance, block in zip(self.distances, self.further, strict=True):
            assert isinstance(block, FurtherHead)
            positions = load.head_positions * (load.queries - distance + 1) // load.queries
            part = load._replace(head_positions=positions)
            cost += block.cost(part) + vocabulary_head.cost(self, part)
        return cost

    def unembed_positions(self, length: int) -> int:
        return sum(length - distance + 1 for distance in (1, *self.distances))


@final
class FurtherHead(nn.Module):
    """Residual block of a head: (…, D) -> (…, D)."""

    roles: ClassVar[Mapping[str, Role]] = {"dense.weight": "head", "dense.bias": "bias"}

    def __init__(self, shape: Shape, norm: Norms) -> None:
        super().__init__()
        self.dense = nn.Linear(shape.width, shape.width)
        self.norm = norm(shape.width)

    def forward(self, h: Tensor) -> Tensor:
        normalised: Tensor = self.norm(h + functional.silu(self.dense(h)))
        return normalised

    def cost(self, load: Load) -> Cost:
        """Return the cost for `load.head_positions` positions."""
        return Cost(flops=2 * load.head_positions * self.dense.weight.numel())

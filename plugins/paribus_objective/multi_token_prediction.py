"""Multi-token prediction: predict the next token and, with further heads, the tokens after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final, final

import torch
from torch import Tensor, nn
from torch.nn import functional

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
    Stack,
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

    With `sequential`, as in "DeepSeek-V3" (2024), section 2.2, each further head has a layer like the last of the body.
    It reads the output of the head before it and the embedding of the token that this one predicts, each after a norm,
    projected to the width of the model; so all tokens before the predicted one are known. The output of the body has
    its last norm.
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
        sequential: Annotated[
            bool, "further heads read each other and the tokens in between, by a layer each (DeepSeek-V3)"
        ] = False,
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
        self.sequential, self.further_layers = sequential, len(self.distances) if sequential else 0
        self.further = nn.ModuleList(
            SequentialInput(shape, norm) if sequential else FurtherHead(shape, norm) for _ in self.distances
        )

    def text_length(self, length: int) -> int:
        return length + 1

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        inputs, labels = shift(streams["body"])
        further = {f"labels {it}": labels_ahead(streams["body"], it) for it in self.distances}
        if self.sequential:  # at the last token that the head reads
            further = {f"labels {it}": at_last_read(further[f"labels {it}"], it) for it in self.distances}
        return TrainingExamples({**streams, "body": inputs}, {"labels": labels, **further})

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        further = {f"ahead-{distance}": self.further_loss(run, distance) for distance in self.distances}
        return {**z_loss.forward(self, run), **further}

    def further_loss(self, run: ForwardPass, distance: int) -> LossTerm:
        """Return the loss of the token at a distance; the last positions have none."""
        block, labels, end = self.further[distance - 2], run.targets[f"labels {distance}"], 1 - distance

        def head(hidden: Tensor) -> Tensor:
            return self.logits(hidden if self.sequential else block(hidden), run.unembed)

        if self.sequential:
            hidden, labels = self.sequential_hidden(run)[distance - 2], labels[:, -end:]
        else:
            hidden, labels = self.scored_hidden(run)[:, :end], labels[:, :end]
        loss = scoring.token_cross_entropy(run, head, hidden, labels, self.classes, name=f"ahead-{distance}")
        return loss._replace(weight=self.weight)

    def sequential_hidden(self, run: ForwardPass) -> list[Tensor]:
        """Return the output of each further head, at the last tokens that it reads: (B, T - 1, D), (B, T - 2, D) …"""

        def compute() -> list[Tensor]:
            hidden, embedded, outputs = self.scored_hidden(run), run.embedded(), []
            for distance, join, layer in zip(self.distances, self.further, self.layers, strict=True):
                hidden = run.run_layer(layer, join(hidden[:, :-1], embedded[:, distance - 1 :]))
                outputs.append(hidden)
            return outputs

        return run.cached("sequential", compute)

    def cost(self, load: Load) -> Cost:
        cost = vocabulary_head.cost(self, load)
        for index, (distance, block) in enumerate(zip(self.distances, self.further, strict=True)):
            assert isinstance(block, FurtherHead | SequentialInput)
            positions = load.head_positions * (load.queries - distance + 1) // load.queries
            part = load._replace(head_positions=positions)
            cost += block.cost(part) + vocabulary_head.cost(self, part)
            if self.sequential:
                stack, tokens = self.layers[index], load.queries - distance + 1
                assert isinstance(stack, Stack)
                costs = stack.costs(Load(tokens, tokens), None)
                cost += Cost(flops=sum(each.flops for each in costs if each.name != "norms"))
        return cost

    def unembed_positions(self, length: int) -> int:
        return sum(length - distance + 1 for distance in (1, *self.distances))


def at_last_read(labels: Tensor, distance: int) -> Tensor:
    """Return labels at a distance, at the positions before the tokens: (B, T) -> (B, T)."""
    return functional.pad(labels[:, : 1 - distance], (distance - 1, 0), value=IGNORED)


@final
class SequentialInput(nn.Module):
    """Input of a sequential head: (B, N, D), (B, N, D) -> (B, N, D)."""

    def __init__(self, shape: Shape, norm: Norms) -> None:
        super().__init__()
        self.hidden_norm, self.token_norm = norm(shape.width), norm(shape.width)
        self.projection = nn.Linear(2 * shape.width, shape.width, bias=False)

    def forward(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        projected: Tensor = self.projection(torch.cat([self.hidden_norm(hidden), self.token_norm(embedded)], dim=-1))
        return projected

    def cost(self, load: Load) -> Cost:
        """Return the cost for `load.head_positions` positions."""
        return Cost(flops=2 * load.head_positions * self.projection.weight.numel())


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

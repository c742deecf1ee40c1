"""Previous-token attention: heads that attend to the token before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

import torch

from paribus import EvaluatedModel, Measure, MeasureTraits, Range, TrialInfo, hookimpl

NAMES = ("best", "mean")


@final
class PreviousToken(Measure):
    """Attention weight on the token at a fixed distance before the current one: "A Mathematical Framework for
    Transformer Circuits" (Elhage et al. 2021).

    It is averaged over all tokens that have such a token in their document: `best` is the head of any layer with the
    largest average, `mean` the average over all heads of all layers. A previous-token head has 1.
    """

    traits: ClassVar[MeasureTraits] = {"needs": ["weights"], "every_evaluation": True}

    def __init__(
        self,
        *,
        examples: Annotated[int, "number of validation examples", Range(1)] = 32,
        distance: Annotated[int, "distance to the token before, in tokens", Range(1, 4096)] = 1,
    ) -> None:
        self.examples = examples
        self.distance = distance

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return NAMES

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        heads: torch.Tensor | None = None  # (layers * H,) sums over tokens
        count = torch.zeros((), dtype=torch.float64, device=model.device)
        for batch in model.batches(self.examples):
            body, layers = batch.streams["body"], model.attention_weights(batch)
            if layers[0].shape[-2:] != (body.tokens.shape[1], body.tokens.shape[1]):
                return dict.fromkeys(NAMES, "the body attends to other positions than its tokens")
            if body.tokens.shape[1] <= self.distance:
                continue
            mask = torch.ones_like(body.tokens[:, self.distance :], dtype=torch.bool)
            if body.documents is not None:
                here, before = body.documents[:, self.distance :], body.documents[:, : -self.distance]
                mask = (here == before) & (here >= 0)
            sums = [
                (weights.double().diagonal(-self.distance, dim1=-2, dim2=-1) * mask[:, None]).sum((0, 2))
                for weights in layers
            ]
            heads = torch.cat(sums) if heads is None else heads + torch.cat(sums)
            count = count + mask.sum()
        if heads is None or not int(count):
            return dict.fromkeys(NAMES, f"no token has another {self.distance} before it in its document")
        averages = heads / count
        return {"best": float(averages.max()), "mean": float(averages.mean())}


@hookimpl
def measure() -> Mapping[str, type[Measure]]:
    return {"previous-token": PreviousToken}

"""Whether heads look for what came after a token when it came before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from paribus import EvaluatedModel, Measure, Range, Traits, TrialInfo
from paribus_measure.predicted import nats

NAMES = ("score", "mean", "loss", "gain")


@final
class InductionScore(Measure):
    """How much heads weigh the token after the last one like theirs: "In-context Learning and Induction Heads" (Olsson
    et al. 2022).

    Random tokens, each different, are followed by the same once more. `score` is the weight that the best head of all
    layers gives, in the second half, to the row behind the one that holds the same token, and `mean` that of all heads:
    an induction head has 1, an average 1 over how many rows there are. `loss` is that of the second half in nats a
    token, and `gain` by how much it is below that of the first, where nothing could be known.
    """

    traits: ClassVar[Traits] = {"needs": ["weights"], "sight": "past", "own": True, "often": True}

    def __init__(
        self,
        *,
        tokens: Annotated[int, "tokens before they are repeated, at most; half of dims.length", Range(2, 4096)] = 32,
        examples: Annotated[int, "sequences", Range(1)] = 16,
    ) -> None:
        self.tokens = tokens
        self.examples = examples

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return NAMES

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        tokens = repeated(model, self.tokens, self.examples)
        count = tokens.shape[1] // 2
        if count < 2:
            return dict.fromkeys(NAMES, "there is no room for two tokens and the same again")
        rows = torch.arange(count, 2 * count - 1, device=model.device)  # each but the last: nothing came after that
        heads, losses = [], []
        for some in tokens.split(8):
            batch = model.token_batch(some)
            layers = [weights[:, :, rows, rows - count + 1] for weights in model.attention_weights(batch)]  # (B, H, N)
            heads.append(torch.cat(layers, dim=1).double().mean(-1))
            losses.append(nats(model, batch)[:, [*range(count - 1), *range(count, 2 * count - 1)]])
        by_head = torch.cat(heads).mean(0)
        first, second = (float(half.mean()) for half in torch.cat(losses).split(count - 1, dim=1))
        return {"score": float(by_head.max()), "mean": float(by_head.mean()), "loss": second, "gain": first - second}


def repeated(model: EvaluatedModel, most: int, examples: int) -> Tensor:
    """(examples, 2 * N): N different tokens of text, drawn anew for each, and the same again."""
    reserved = model.vocabulary.reserved
    trial = torch.tensor([token for token in range(model.vocabulary.size) if token not in reserved])
    count = min(most, model.trial.length // 2, len(trial))
    order = model.draw(examples).uniform("induction", len(trial)).argsort(dim=1, stable=True)
    tokens = trial[order[:, :count]]
    return torch.cat([tokens, tokens], dim=1).to(model.device)

"""Induction score: attention to the token after an earlier occurrence of the current token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor

from paribus import EvaluatedModel, Measure, MeasureTraits, Range, TrialInfo
from paribus_measure.next_token import token_losses

NAMES = ("score", "mean", "loss", "gain")


@final
class InductionScore(Measure):
    """Attention weight on the token after the previous occurrence of the current token: "In-context Learning and
    Induction Heads" (Olsson et al. 2022).

    The input is a sequence of distinct random tokens, repeated once. `score` is the weight in the second half of the
    best head of all layers, and `mean` that of all heads: an induction head has 1, uniform attention 1 divided by the
    number of tokens. `loss` is the mean loss of the second half in nats, and `gain` the difference to that of the first
    half, which is unpredictable.
    """

    traits: ClassVar[MeasureTraits] = {
        "needs": ["weights"],
        "visibility": "past",
        "own_tokens": True,
        "every_evaluation": True,
    }

    def __init__(
        self,
        *,
        tokens: Annotated[int, "maximum number of repeated tokens; at most half of dims.length", Range(2, 4096)] = 32,
        examples: Annotated[int, "number of sequences", Range(1)] = 16,
    ) -> None:
        self.tokens = tokens
        self.examples = examples

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return NAMES

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        tokens = repeated_sequences(model, self.tokens, self.examples)
        count = tokens.shape[1] // 2
        if count < 2:
            return dict.fromkeys(NAMES, "dims.length is too short for two tokens and their repetition")
        positions = torch.arange(count, 2 * count - 1, device=model.device)  # the last token has no successor
        heads, losses = [], []
        for chunk in tokens.split(8):
            batch = model.token_batch(chunk)
            layers = [
                weights[:, :, positions, positions - count + 1] for weights in model.attention_weights(batch)
            ]  # (B, H, N)
            heads.append(torch.cat(layers, dim=1).double().mean(-1))
            losses.append(token_losses(model, batch)[:, [*range(count - 1), *range(count, 2 * count - 1)]])
        head_scores = torch.cat(heads).mean(0)
        first_loss, second_loss = (float(half.mean()) for half in torch.cat(losses).split(count - 1, dim=1))
        return {
            "score": float(head_scores.max()),
            "mean": float(head_scores.mean()),
            "loss": second_loss,
            "gain": first_loss - second_loss,
        }


def repeated_sequences(model: EvaluatedModel, limit: int, examples: int) -> Tensor:
    """(examples, 2 * N): N distinct random tokens of text, and the same tokens again."""
    reserved = model.vocabulary.reserved
    text_tokens = torch.tensor([token for token in range(model.vocabulary.size) if token not in reserved])
    count = min(limit, model.trial.length // 2, len(text_tokens))
    order = model.draw(examples).uniform("induction", len(text_tokens)).argsort(dim=1, stable=True)
    tokens = text_tokens[order[:, :count]]
    return torch.cat([tokens, tokens], dim=1).to(model.device)

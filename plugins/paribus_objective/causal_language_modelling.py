"""Causal language modelling: predict the next token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Protocol, final

import torch
from torch import Tensor

from paribus import (
    IGNORED,
    Draw,
    GenerationTarget,
    Norms,
    Objective,
    ObjectiveTraits,
    Prompt,
    Shape,
    Stream,
    TrainingExamples,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import vocabulary_head, z_loss


class _EndsTexts(Protocol):
    """Objective that knows the token that closes a document, if there is one."""

    end_of_text: int | None


def continue_text(self: _EndsTexts, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
    """Continue a text; an empty one starts after the end of another, as in training."""
    start = () if self.end_of_text is None else (self.end_of_text,)
    return Prompt(tuple(ids) or start, stop=self.end_of_text)


@final
class CausalLanguageModelling(Objective, WeightConverter):
    """Causal language modelling: each position predicts the next token. "Improving Language Understanding" (Radford et
    al. 2018).

    An example takes one token more than its length, so that the last position has a label as well. Padding and the
    first token of another document are not predicted. (B, T + 1) -> tokens (B, T), labels (B, T).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "corrupts": True,
        "visibility": "past",
        "parts": [],
        "segments": False,
        "needs": [],
        "likelihood": True,
        "token_terms": ["loss"],
    }
    logits = vocabulary_head.logits
    scored_hidden = vocabulary_head.body_hidden
    forward = z_loss.forward
    cost = vocabulary_head.cost
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
        bias: Annotated[bool, "add a bias for each entry of the vocabulary (CTRL: yes)"] = False,
        z: z_loss.ZWeight = 0.0,
    ) -> None:
        super().__init__()
        self.classes, self.z = shape.vocabulary, z
        self.terms = z_loss.terms(z)  # type: ignore[misc]  # the class has the terms without a z-loss
        self.end_of_text = vocabulary.end_token  # closes each document
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.build(shape, norm, transform=False, bias=bias)

    def text_length(self, length: int) -> int:
        return length + 1

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        inputs, labels = shift(streams["body"])
        return TrainingExamples({**streams, "body": inputs}, {"labels": labels})


def shift(body: Stream) -> tuple[Stream, Tensor]:
    """Return all tokens but the last as inputs, and the next token of each as its label."""
    inputs = Stream(*(None if values is None else values[:, :-1] for values in body))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
    return inputs, labels_ahead(body, 1)


def labels_ahead(body: Stream, distance: int) -> Tensor:
    """Return the token at a distance from each position, or IGNORED where it is of another document or after the end:
    (B, T + 1) -> (B, T).
    """
    labels = torch.full_like(body.tokens[:, 1:], IGNORED)
    ahead = body.tokens[:, distance:]
    if body.documents is not None:
        here, there = body.documents[:, :-distance], body.documents[:, distance:]
        ahead = ahead.masked_fill((here != there) | (there < 0), IGNORED)
    labels[:, : ahead.shape[1]] = ahead
    return labels

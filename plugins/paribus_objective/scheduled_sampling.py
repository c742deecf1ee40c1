"""Scheduled sampling: sequence to sequence with the model's own predictions as part of the decoder's inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, final

import torch
from torch import Tensor
from torch.nn import functional

from paribus import (
    Draw,
    ForwardPass,
    GenerationTarget,
    Norms,
    Objective,
    ObjectiveTraits,
    Prompt,
    Range,
    Shape,
    StepInput,
    Stream,
    TrainingExamples,
    Vocabulary,
)
from paribus_objective import gumbel, pair_objective, vocabulary_head
from paribus_objective.translation_pairs import Overlong, TranslationPairs

Feedback = Literal["sampled", "argmax", "straight-through", "soft"]
Growth = Literal["constant", "linear", "sigmoid"]


@final
class ScheduledSampling(Objective):
    """Scheduled sampling: `seq2seq` in which some inputs of the decoder are the model's predictions in place of the
    target. "Scheduled Sampling for Sequence Prediction with Recurrent Neural Networks" (Bengio et al. 2015).

    Each position is chosen independently. Its input is `sampled` from the prediction, or its `argmax`; neither has a
    gradient. The Gumbel-softmax has one: "Categorical Reparameterization with Gumbel-Softmax" (Jang et al. 2017),
    "Differentiable Scheduled Sampling for Credit Assignment" (Goyal et al. 2017). `soft` feeds the mean of embedded
    tokens; `straight-through` feeds one, with the gradient of the mean. The share of predictions grows during training
    by `growth`, from 0 to `rate`. In evaluation, all inputs are the target. Draws are keyed by example.
    (B,) -> encoder (B, S), body and labels (B, T).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "example_kind": "pairs",
        "corrupts": False,
        "visibility": "past",
        "parts": ["encoder"],
        "segments": False,
        "needs": ["pairs", "eos", "feedback"],
        "options_from_corpus": {"languages": "least"},
        "waits": True,  # for the positions of predictions
    }
    example_count = pair_objective.example_count
    example_lengths = pair_objective.example_lengths
    skipped_documents = pair_objective.skipped_documents
    form = pair_objective.form
    unigram_loss = pair_objective.unigram_loss
    logits = vocabulary_head.logits
    forward = vocabulary_head.forward
    cost = vocabulary_head.cost
    head_positions = vocabulary_head.head_positions
    metrics = vocabulary_head.exact_match_metrics
    update_metrics = vocabulary_head.update_exact_match_metrics

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: Annotated[float, "share of inputs that are predictions at the end of training", Range(0, 1)] = 0.25,
        growth: Annotated[Growth, "growth of that share during training"] = "linear",
        feedback: Annotated[Feedback, "input that is made from a prediction"] = "sampled",
        temperature: Annotated[float, "of the softmax of `straight-through` and `soft`", Range(above=0)] = 1.0,
        languages: Annotated[
            int | None, "number of languages, each with a sentinel as its token (M2M-100); null: no tokens", Range(1)
        ] = None,
        reversed: Annotated[bool, "reverse the source (Luong: yes)"] = False,
        overlong: Annotated[Overlong, "handling of pairs with a side longer than `dims.length`"] = "truncate",
    ) -> None:
        super().__init__()
        self.classes = shape.vocabulary
        self.rate, self.growth, self.feedback, self.temperature = rate, growth, feedback, temperature
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.build(shape, norm, transform=False, bias=False)
        self.pairs = TranslationPairs(
            shape, vocabulary, "scheduled-sampling", languages, overlong, reverse_source=reversed
        )

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        """Choose the positions that read a prediction, and draw a key for each example's samples."""
        use_prediction = draw.uniform("own words", streams["body"].tokens.shape[1]) < self.share(draw.progress)
        use_prediction[:, 0] = False  # there is no prediction before the start
        high, low = draw.below("key of own words", 2**31, 2).unbind(1)
        return TrainingExamples(streams, {**targets, "use_prediction": use_prediction, "keys": high * 2**31 + low})

    def share(self, progress: float) -> float:
        """Return the share of inputs that are predictions, at this share of the training."""
        growth = {"constant": 1.0, "linear": progress, "sigmoid": 1 / (1 + math.exp(6 - 12 * progress))}
        return self.rate * growth[self.growth]

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        return self.pairs.prompt(ids, wish)

    def scored_hidden(self, run: ForwardPass) -> Tensor:
        """(B, T, D): hidden states of the decoder, with predictions as inputs where they are chosen."""
        use_prediction, target = run.targets["use_prediction"], run.streams["body"].tokens
        positions = use_prediction.any(0).tolist() if self.training and self.rate else [False]
        if not any(positions):
            return run.hidden("body")

        def feed(position: int, hidden: Tensor) -> StepInput | None:
            if not positions[position]:
                return None
            scores = self.logits(hidden, run.unembed)
            return self.next_input(
                scores, position, use_prediction[:, position], target[:, position], run.targets["keys"]
            )

        return run.hidden_with_feedback(feed)

    def next_input(
        self, scores: Tensor, position: int, use_prediction: Tensor, target: Tensor, keys: Tensor
    ) -> StepInput:
        """(B, V) scores, and (B,) each -> the input of a position: the target's token, or the prediction."""
        has_gradient = self.feedback in ("straight-through", "soft")
        scores = scores if has_gradient else scores.detach()
        if self.feedback != "argmax":
            scores = scores + gumbel.noise(keys, position, scores.shape[-1]).to(scores.dtype)
        best = scores.argmax(-1)
        tokens = torch.where(use_prediction, best, target)
        if not has_gradient:
            return StepInput(tokens)
        soft = (scores / self.temperature).softmax(-1)
        one_hot = functional.one_hot(best, scores.shape[-1]).to(soft.dtype)
        baseline = one_hot if self.feedback == "soft" else soft.detach()
        return StepInput(tokens, (soft - baseline) * use_prediction.unsqueeze(-1))

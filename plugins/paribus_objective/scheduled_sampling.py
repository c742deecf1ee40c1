"""Write the other side of a pair, and be fed more and more of one's own words while learning to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, final

import torch
from torch import Tensor
from torch.nn import functional

from paribus import (
    Cost,
    Draw,
    ForwardPass,
    GenerationTarget,
    Load,
    LossTerm,
    Norms,
    Objective,
    Prompt,
    Range,
    Shape,
    StepInput,
    Stream,
    Tokens,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
)
from paribus_objective import gumbel, scoring
from paribus_objective.narrowing import Narrow
from paribus_objective.pairing import Array, Long, Pairing

if TYPE_CHECKING:
    from torchmetrics import Metric

Words = Literal["drawn", "best", "straight-through", "soft"]
Growth = Literal["constant", "linear", "sigmoid"]


@final
class ScheduledSampling(Objective):
    """`seq2seq`, but while it is trained the decoder reads, here and there, what it said itself in place of the target:
    "Scheduled Sampling for Sequence Prediction with Recurrent Neural Networks" (Bengio et al. 2015).

    A coin decides for each row. Its own word is `drawn` from its scores, or is its `best` guess; nothing is learned
    through either. Through the Gumbel-softmax something is: "Categorical Reparameterization with Gumbel-Softmax" (Jang
    et al. 2017), "Differentiable Scheduled Sampling for Credit Assignment" (Goyal et al. 2017). `soft` feeds the mean
    of embedded words; `straight-through` feeds one, and has the gradient of the mean. The share grows over training as
    `growth` says, from 0 to `rate`. Evaluated, a model is fed the target. Coins and draws are each example's own.
    (B,) -> encoder (B, S), body and labels (B, T).
    """

    traits: ClassVar[Traits] = {
        "forms": "pairs",
        "corrupts": False,
        "sight": "past",
        "parts": ["encoder"],
        "segments": False,
        "needs": ["pairs", "eos", "feedback"],
        "told": {"languages": "least"},
    }

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: Annotated[float, "share of rows that read the model's own words in the end", Range(0, 1)] = 0.25,
        growth: Annotated[Growth, "how that share grows over training"] = "linear",
        words: Annotated[Words, "what a row reads of what was said before it"] = "drawn",
        temperature: Annotated[float, "of the softmax of straight-through and soft words", Range(above=0)] = 1.0,
        languages: Annotated[
            int | None, "languages with a token each, a sentinel of the tokenizer (M2M-100); null: none", Range(1)
        ] = None,
        reversed: Annotated[bool, "whether the source is read from its end (Luong: yes)"] = False,
        long: Annotated[Long, "what becomes of pairs with a side that does not fit `dims.length`"] = "cut",
    ) -> None:
        super().__init__()
        self.classes = shape.vocabulary
        self.rate, self.growth, self.words, self.temperature = rate, growth, words, temperature
        self.narrow = Narrow(shape)
        self.pairs = Pairing(shape, vocabulary, "scheduled-sampling", languages, long, backwards=reversed)

    def example_count(self, tokens: Tokens, length: int) -> int:
        return len(self.pairs.kept(tokens))

    def example_lengths(self, tokens: Tokens, length: int) -> Array:
        return self.pairs.lengths(tokens)

    def skipped_documents(self, tokens: Tokens, length: int) -> Mapping[str, int]:
        return self.pairs.left_out(tokens)

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        return self.pairs.form(tokens, length, draw)

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        """Tosses the coins: which rows read the model's own words, and a key of each example for what is drawn."""
        own = draw.uniform("own words", streams["body"].tokens.shape[1]) < self.share(draw.progress)
        own[:, 0] = False  # nothing was said before the start
        high, low = draw.below("key of own words", 2**31, 2).unbind(1)
        return TrainingExamples(streams, {**targets, "own": own, "keys": high * 2**31 + low})

    def share(self, progress: float) -> float:
        """Which share of the rows reads the model's own words when so much of the training lies behind."""
        grown = {"constant": 1.0, "linear": progress, "sigmoid": 1 / (1 + math.exp(6 - 12 * progress))}
        return self.rate * grown[self.growth]

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        return self.pairs.prompt(ids, wish)

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float | None:
        return scoring.prior(self.pairs.counted(train), targets["labels"])

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return unembed(self.narrow(hidden))

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {"loss": scoring.cross_entropy(self._logits(run), run.targets["labels"])}

    def cost(self, load: Load) -> Cost:
        return self.narrow.cost(load)

    def head_positions(self, length: int) -> int:
        return length

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": scoring.accuracy(self.classes), "exact": scoring.exact()}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        scoring.update(metrics["accuracy"], self._logits(run), run.targets["labels"])
        scoring.update_exact(metrics["exact"], self._logits(run), run.targets["labels"])

    def _logits(self, run: ForwardPass) -> Tensor:
        return run.cached("logits", lambda: self.logits(self._hidden(run), run.unembed))

    def _hidden(self, run: ForwardPass) -> Tensor:
        """(B, T, R), of rows that read their own words where the coins say so."""
        own, target = run.targets["own"], run.streams["body"].tokens
        somewhere = own.any(0).tolist() if self.training and self.rate else [False]
        if not any(somewhere):
            return run.hidden("body")

        def feed(row: int, said: Tensor) -> StepInput | None:
            if not somewhere[row]:
                return None
            scores = self.logits(said, run.unembed)
            return self.fed(scores, row, own[:, row], target[:, row], run.targets["keys"])

        return run.hidden_with_feedback(feed)

    def fed(self, scores: Tensor, row: int, own: Tensor, target: Tensor, keys: Tensor) -> StepInput:
        """(B, V) scores, and (B,) each -> what the row reads: the target's token, or the model's own."""
        learned = self.words in ("straight-through", "soft")
        scores = scores if learned else scores.detach()
        if self.words != "best":
            scores = scores + gumbel.noise(keys, row, scores.shape[-1]).to(scores.dtype)
        best = scores.argmax(-1)
        tokens = torch.where(own, best, target)
        if not learned:
            return StepInput(tokens)
        soft = (scores / self.temperature).softmax(-1)
        hard = functional.one_hot(best, scores.shape[-1]).to(soft.dtype) if self.words == "soft" else soft.detach()
        return StepInput(tokens, (soft - hard) * own.unsqueeze(-1))

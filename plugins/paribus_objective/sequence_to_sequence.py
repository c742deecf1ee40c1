"""Write the other side of a pair: translation, and whatever else is one text for another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, final

from torch import Tensor

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
    Tokens,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
)
from paribus_objective import scoring
from paribus_objective.narrowing import Narrow
from paribus_objective.pairing import Array, Long, Pairing

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class SequenceToSequence(Objective):
    """The decoder writes a target, a token at a time, of which it is fed what came before: "Sequence to Sequence
    Learning with Neural Networks" (Sutskever et al. 2014), "Attention Is All You Need" (Vaswani et al. 2017).

    Both sides end in eos; the decoder is fed its labels shifted by one, behind pad (bos where there is no pad), or
    behind the token of a language where languages have some. Smoothing is torch's, and none is left when a model is
    evaluated. `exact` is the share of pairs of which every token is the first guess: those that greedy decoding writes.
    (B,) -> encoder (B, S), body and labels (B, T).
    """

    traits: ClassVar[Traits] = {
        "forms": "pairs",
        "corrupts": False,
        "sight": "past",
        "parts": ["encoder"],
        "segments": False,
        "needs": ["pairs", "eos"],
        "told": {"languages": "least"},
    }

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        smoothing: Annotated[
            float, "share of a label that is spread over the vocabulary (Transformer: 0.1)", Range(0, below=1)
        ] = 0.0,
        languages: Annotated[
            int | None, "languages with a token each, a sentinel of the tokenizer (M2M-100); null: none", Range(1)
        ] = None,
        reversed: Annotated[bool, "whether the source is read from its end (Luong: yes)"] = False,
        long: Annotated[Long, "what becomes of pairs with a side that does not fit `dims.length`"] = "cut",
    ) -> None:
        super().__init__()
        self.classes = shape.vocabulary
        self.smoothing = smoothing
        self.narrow = Narrow(shape)
        self.pairs = Pairing(shape, vocabulary, "seq2seq", languages, long, backwards=reversed)

    def example_count(self, tokens: Tokens, length: int) -> int:
        return len(self.pairs.kept(tokens))

    def example_lengths(self, tokens: Tokens, length: int) -> Array:
        return self.pairs.lengths(tokens)

    def skipped_documents(self, tokens: Tokens, length: int) -> Mapping[str, int]:
        return self.pairs.left_out(tokens)

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        return self.pairs.form(tokens, length, draw)

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        """Of two languages the source is in the other one, unless it begins with the token of its own."""
        return self.pairs.prompt(ids, wish)

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float | None:
        return scoring.prior(self.pairs.counted(train), targets["labels"])

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return unembed(self.narrow(hidden))

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        smoothing = self.smoothing if self.training else 0.0
        return {"loss": scoring.cross_entropy(self._logits(run), run.targets["labels"], smoothing)}

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
        return run.cached("logits", lambda: self.logits(run.hidden("body"), run.unembed))

"""Take spans out of a text, and write down what was taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, final

import numpy as np
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
    Problem,
    Prompt,
    Range,
    Shape,
    SpecError,
    Stream,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
)
from paribus_objective import scoring, vocabulary_head
from paribus_objective.spans import Array, amount, apart, sides
from paribus_objective.two_sides import Sides

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class SpanCorruption(Objective):
    """The encoder reads a text with a sentinel for each span that was taken out, the decoder writes each sentinel and
    what it stands for: "Exploring the Limits of Transfer Learning" (Raffel et al. 2020).

    As in T5's own code both sides end in eos, and no closing sentinel stands before it. The decoder is fed its labels
    shifted by one, behind pad (bos where there is no pad). An example eats more text than it has rows: 568 for 512.
    (B, n) -> encoder (B, S), body and labels (B, T); S and T follow from n alone.
    """

    traits: ClassVar[Traits] = {
        "corrupts": True,
        "sight": "past",
        "parts": ["encoder"],
        "segments": False,
        "needs": ["sentinels", "eos"],
    }

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        rate: Annotated[float, "share of the text that is taken out", Range(above=0, below=1)] = 0.15,
        mean_span: Annotated[float, "tokens of a span, on average", Range(1)] = 3.0,
    ) -> None:
        super().__init__()
        self.classes = shape.vocabulary
        self.rate, self.mean_span = rate, mean_span
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.made(shape, norm, transform=False, bias=False)
        self.sides = Sides(vocabulary, "span-corruption")
        self.sentinels = np.array(vocabulary.sentinels, dtype=np.int64)
        self._check(shape.length)

    def text_length(self, length: int) -> int:
        """The longest text of which both sides fit `length` rows."""
        text = 2
        while max(sides(text + 1, amount(text + 1, self.rate, self.mean_span))) <= length:
            text += 1
        return text

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        tokens: Array = streams["body"].tokens.numpy()
        of = amount(tokens.shape[1], self.rate, self.mean_span)
        return self.sides.formed(streams, *apart(tokens, of, self.sentinels, draw))

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        """A text with sentinels in it is read, and what they stand for is written."""
        return self.sides.prompt(ids)

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return vocabulary_head.logits(self, hidden, unembed)

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {"loss": scoring.cross_entropy(self._logits(run), run.targets["labels"])}

    def cost(self, load: Load) -> Cost:
        return vocabulary_head.cost(self, load)

    def head_positions(self, length: int) -> int:
        text = self.text_length(length)
        return sides(text, amount(text, self.rate, self.mean_span))[1]

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": scoring.accuracy(self.classes)}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        scoring.update(metrics["accuracy"], self._logits(run), run.targets["labels"])

    def _logits(self, run: ForwardPass) -> Tensor:
        return run.cached("logits", lambda: self.logits(run.hidden("body"), run.unembed))

    def _check(self, length: int) -> None:
        if length < 3:
            what = f"span-corruption needs rows for a token, a sentinel and eos, but there are {length}"
            raise SpecError(Problem(code="too-short", path="dims.length", message=what, valid="≥ 3"))
        text = self.text_length(length)
        needed = amount(text, self.rate, self.mean_span).spans
        if needed > len(self.sentinels):
            what = (
                f"span-corruption takes {needed} spans (rate {self.rate:g}, mean_span {self.mean_span:g}) out of "
                f"{text} tokens, and needs a sentinel for each, but the tokenizer has {len(self.sentinels)}"
            )
            raise SpecError(Problem(code="too-few-sentinels", path="tokenizer", message=what, valid=f"≥ {needed}"))

"""Complete a prompt: its answer is predicted token by token, and nothing else is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, final

import numpy as np
from torch import Tensor, nn

from paribus import (
    ConvertedTensor,
    Cost,
    Draw,
    ForwardPass,
    GenerationTarget,
    Load,
    LossTerm,
    Norms,
    Objective,
    Prompt,
    Shape,
    Tokens,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import scoring, vocabulary_head
from paribus_objective.answers import Answers, Long

if TYPE_CHECKING:
    from torchmetrics import Metric

Ints = np.ndarray[tuple[int, ...], np.dtype[Any]]


@final
class Completion(Objective, WeightConverter):
    """Causal language modelling of pairs: the source is a prompt, read and never predicted, the target its answer.

    So "Zoology: Measuring and Improving Recall in Efficient Language Models" (Arora et al. 2023) and others score their
    tasks, as a loss over what no row could know would hide the answer. A task that has a mark of its own between the
    two, or needs none, is asked without a `separator`; one whose answers are of one length without a `stop`. `exact` is
    the share of pairs of which every label is the first guess. (B,) -> rows (B, T), labels (B, T).
    """

    traits: ClassVar[Traits] = {
        "forms": "pairs",
        "corrupts": False,
        "sight": "past",
        "parts": [],
        "segments": False,
        "needs": ["pairs", "eos"],
        "told": {"marks": "same"},
    }

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        separator: Annotated[bool, "whether sep stands between prompt and answer"] = True,
        stop: Annotated[bool, "whether eos is predicted behind the answer"] = True,
        marks: Annotated[bool, "whether labels say which sentences of the target count, and which are given"] = False,
        long: Annotated[Long, "what becomes of pairs that are too long; prompts are cut in front"] = "drop",
        bias: Annotated[bool, "whether each entry of the vocabulary has a bias"] = False,
    ) -> None:
        super().__init__()
        self.classes = shape.vocabulary
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.made(shape, norm, transform=False, bias=bias)
        self.pairs = Answers(shape, vocabulary, "completion", separator=separator, stop=stop, marks=marks, long=long)

    def example_count(self, tokens: Tokens, length: int) -> int:
        return len(self.pairs.kept(tokens).at)

    def example_lengths(self, tokens: Tokens, length: int) -> Ints:
        return self.pairs.lengths(tokens)

    def skipped_documents(self, tokens: Tokens, length: int) -> Mapping[str, int]:
        return self.pairs.left_out(tokens)

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        return self.pairs.form(tokens, length, draw)

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        return Prompt((*ids, *self.pairs.sep), stop=self.pairs.eos)

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float | None:
        return scoring.prior(self.pairs.counted(train), targets["labels"])

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return vocabulary_head.logits(self, hidden, unembed)

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {"loss": scoring.cross_entropy(self._logits(run), run.targets["labels"])}

    def cost(self, load: Load) -> Cost:
        return vocabulary_head.cost(self, load)

    def head_positions(self, length: int) -> int:
        return length

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": scoring.accuracy(self.classes), "exact": scoring.exact()}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        logits, labels = self._logits(run), run.targets["labels"]
        scoring.update(metrics["accuracy"], logits, labels)
        scoring.update_exact(metrics["exact"], logits, labels)

    def _logits(self, run: ForwardPass) -> Tensor:
        return run.cached("logits", lambda: self.logits(run.hidden("body"), run.unembed))

    def convert_weights(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        return vocabulary_head.adopted(self, other)

"""Predict the next token from those before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, final

from torch import Tensor, nn

from paribus import (
    IGNORED,
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
    Stream,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
    WeightConverter,
)
from paribus_objective import scoring, vocabulary_head

if TYPE_CHECKING:
    from torchmetrics import Metric


@final
class CausalLanguageModelling(Objective, WeightConverter):
    """Each row predicts the token after it: "Improving Language Understanding" (Radford et al. 2018).

    An example eats one token more than it has rows, so that the last row has a label as well. Neither padding nor the
    first token of another document is predicted: no row could know it. (B, T + 1) -> rows (B, T), labels (B, T).
    """

    traits: ClassVar[Traits] = {
        "corrupts": True,
        "sight": "past",
        "parts": [],
        "segments": False,
        "needs": [],
        "likelihood": True,
    }

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        bias: Annotated[bool, "whether each entry of the vocabulary has a bias (CTRL: yes)"] = False,
    ) -> None:
        super().__init__()
        self.classes = shape.vocabulary
        self.mark = vocabulary.specials.get("eos", vocabulary.specials.get("sep"))  # that closes each document
        self.narrow, self.dense, self.norm, self.bias = vocabulary_head.made(shape, norm, transform=False, bias=bias)

    def text_length(self, length: int) -> int:
        return length + 1

    def corrupt(self, streams: Mapping[str, Stream], targets: Mapping[str, Tensor], draw: Draw) -> TrainingExamples:
        body = streams["body"]
        labels = body.tokens[:, 1:].clone()  # not a view: whoever changes a label must not change a token
        if body.documents is not None:
            here, next_ = body.documents[:, :-1], body.documents[:, 1:]
            labels = labels.masked_fill((here != next_) | (next_ < 0), IGNORED)
        rows = Stream(*(None if vector is None else vector[:, :-1] for vector in body))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
        return TrainingExamples({**streams, "body": rows}, {"labels": labels})

    def prompt(self, ids: Sequence[int], wish: GenerationTarget = GenerationTarget()) -> Prompt:
        """A text goes on as it began; an empty one begins, as all but the first did, behind the end of another."""
        return Prompt(tuple(ids) or (() if self.mark is None else (self.mark,)), stop=self.mark)

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        return vocabulary_head.logits(self, hidden, unembed)

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {"loss": scoring.cross_entropy(self._logits(run), run.targets["labels"])}

    def cost(self, load: Load) -> Cost:
        return vocabulary_head.cost(self, load)

    def head_positions(self, length: int) -> int:
        return length

    def metrics(self) -> Mapping[str, Metric]:
        return {"accuracy": scoring.accuracy(self.classes)}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        scoring.update(metrics["accuracy"], self._logits(run), run.targets["labels"])

    def _logits(self, run: ForwardPass) -> Tensor:
        return run.cached("logits", lambda: self.logits(run.hidden("body"), run.unembed))

    def convert_weights(self, other: nn.Module) -> Mapping[str, ConvertedTensor]:
        return vocabulary_head.adopted(self, other)

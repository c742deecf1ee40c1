"""A fake model with given attention weights and scores, so that a test can compute measures by hand."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import Batch, Draw, GeneratedPair, Shape, Stream, TrialInfo, Vocabulary

SHAPE = Shape(width=8, heads=2, head_width=4, length=16, vocabulary=24, layers=1)


@dataclass
class FakeModel:
    """Fake `paribus.EvaluatedModel` with given batches, weights and scores."""

    batch_list: Sequence[Batch] = ()
    attention_of: Any = None  # batch -> weights of each layer
    logits_of: Any = None  # batch -> scores of each row
    generate_pairs: Any = None  # number of pairs and options -> generated pairs
    causal: bool = True
    learning_curve: Sequence[Mapping[str, float]] = ()
    trial: TrialInfo = TrialInfo(("clm/loss",), 16)
    vocabulary: Vocabulary = Vocabulary(24, {"pad": 0, "eos": 1})
    device: torch.device = torch.device("cpu")
    requests: list[tuple[int, int]] = field(default_factory=list)

    @property
    def shape(self) -> Shape:
        return Shape(**{**vars(SHAPE), "causal": self.causal})

    def batches(self, examples: int, *, times: int = 1) -> Iterator[Batch]:
        self.requests.append((examples, times))
        yield from self.batch_list

    def metrics(self, batches: Iterable[Batch]) -> dict[str, float]:
        return {}

    def token_batch(self, tokens: Tensor) -> Batch:
        return rows(tokens)

    def logits(self, batch: Batch) -> Tensor:
        scores: Tensor = self.logits_of(batch)
        return scores

    def attention_weights(self, batch: Batch) -> list[Tensor]:
        values: list[Tensor] = self.attention_of(batch)
        return values

    def generate(self, examples: int, **manner: Any) -> Sequence[GeneratedPair]:
        values: Sequence[GeneratedPair] = self.generate_pairs(examples, **manner)
        return values

    def draw(self, examples: int) -> Draw:
        return Draw(0, 0, torch.arange(examples))


def rows(tokens: Tensor, documents: Tensor | None = None) -> Batch:
    return Batch({"body": Stream(tokens, documents)}, {}, torch.arange(len(tokens)))


@pytest.fixture
def fake_model() -> type[FakeModel]:
    return FakeModel

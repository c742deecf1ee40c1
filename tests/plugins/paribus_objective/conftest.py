"""A forward pass of one embedding table, and small corpora of ids, for tests of objectives."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paribus import ForwardPass, Objective, Shape, StepInputFunction, Stream, Tokens, TrainingExamples, Vocabulary
from paribus.parts.chunked_loss import head_loss
from paribus_objective import objective

SPECIALS = {"pad": 0, "cls": 1, "sep": 2, "mask": 3, "bos": 4, "eos": 5}


class TablePass:
    """Forward pass of an embedding table: each row depends on its token alone."""

    def __init__(self, formed: TrainingExamples, table: nn.Embedding) -> None:
        self.streams: Mapping[str, Stream] = formed.streams
        self.targets: Mapping[str, Tensor] = formed.targets
        self.table = table
        self.cache: dict[str, Any] = {}

    def hidden(self, part: str = "body", *, tokens: Tensor | None = None, key: str = "") -> Tensor:
        tokens = self.streams[part].tokens if tokens is None else tokens
        rows: Tensor = self.table(tokens)
        return rows + tokens.cos().unsqueeze(-1).to(rows.dtype)

    def last_layer_input(self) -> Tensor:
        return self.hidden().sin()

    def captured(self, layer: int, name: str) -> Tensor:
        raise AssertionError("a table has no layers")

    def embedded(self) -> Tensor:
        raise AssertionError("a table has no layers")

    def run_layer(self, layer: nn.Module, x: Tensor) -> Tensor:
        raise AssertionError("a table has no layers")

    def rerun_last_layer(self, asking: Tensor, at: Tensor, times: int = 1) -> Tensor:
        """Fake last layer: add its input to each row and halve the sum, once per pass."""
        where = self.last_layer_input().gather(1, at.unsqueeze(-1).expand_as(asking))
        return (asking + where) * 0.5**times

    def hidden_with_feedback(self, feed: StepInputFunction) -> Tensor:
        """Rows of a decoder with feedback: a row depends on its own token, which the previous row may replace."""
        tokens = self.streams["body"].tokens.clone()
        for row in range(1, tokens.shape[1]):
            fed = feed(row, self.hidden(tokens=tokens)[:, row - 1])
            tokens[:, row] = tokens[:, row] if fed is None else fed.tokens
        return self.hidden(tokens=tokens)

    def unembed(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        return nn.functional.linear(h, self.table.weight, bias)

    def summed_cross_entropy(
        self,
        head: Callable[[Tensor], Tensor],
        hidden: Tensor,
        labels: Tensor,
        classes: int,
        *,
        smoothing: float = 0.0,
        weights: Tensor | None = None,
        z: float = 0.0,
    ) -> Tensor:
        return head_loss(head, hidden, labels, smoothing, weights, z > 0)

    def cached(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self.cache:
            self.cache[name] = make()
        return self.cache[name]

    def head_logits(self, of: str | None = None) -> Tensor:
        return self.unembed(self.hidden())

    @property
    def teacher(self) -> ForwardPass:
        raise AssertionError("a table has no teacher")


@dataclass
class GivenPass:
    """Forward pass with given rows and scores of student and teacher."""

    rows: Tensor
    scored: Tensor
    targets: Mapping[str, Tensor]
    teacher_pass: ForwardPass | None = None
    layers: Mapping[tuple[int, str], Tensor] = dataclasses.field(default_factory=dict)

    @property
    def streams(self) -> Mapping[str, Stream]:
        return {}

    def hidden(self, part: str = "body", *, tokens: Tensor | None = None, key: str = "") -> Tensor:
        return self.rows

    def last_layer_input(self) -> Tensor:
        raise AssertionError("rows are given")

    def captured(self, layer: int, name: str) -> Tensor:
        return self.layers[layer, name]

    def embedded(self) -> Tensor:
        raise AssertionError("rows are given")

    def run_layer(self, layer: nn.Module, x: Tensor) -> Tensor:
        raise AssertionError("rows are given")

    def rerun_last_layer(self, asking: Tensor, at: Tensor, times: int = 1) -> Tensor:
        raise AssertionError("rows are given")

    def hidden_with_feedback(self, feed: StepInputFunction) -> Tensor:
        raise AssertionError("rows are given")

    def unembed(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        raise AssertionError("scores are given")

    def summed_cross_entropy(
        self,
        head: Callable[[Tensor], Tensor],
        hidden: Tensor,
        labels: Tensor,
        classes: int,
        *,
        smoothing: float = 0.0,
        weights: Tensor | None = None,
        z: float = 0.0,
    ) -> Tensor:
        return head_loss(head, hidden, labels, smoothing, weights, z > 0)

    def cached(self, name: str, make: Callable[[], Any]) -> Any:
        return make()

    def head_logits(self, of: str | None = None) -> Tensor:
        return self.scored

    @property
    def teacher(self) -> ForwardPass:
        assert self.teacher_pass is not None
        return self.teacher_pass


@dataclass
class Corpus:
    ids: Any
    sentences: Any
    documents: Any
    targets: Tokens | None = None
    languages: Any = None
    labels: Any = None


@pytest.fixture
def vocabulary() -> Vocabulary:
    """100 ids: six special tokens, 74 words and 20 sentinels."""
    return Vocabulary(100, SPECIALS, tuple(range(80, 100)))


@pytest.fixture
def build() -> Callable[..., Objective]:
    """Build an objective by name, with random float64 parameters."""

    def built(
        name: str, vocabulary: Vocabulary, length: int = 32, table_width: int | None = None, **options: Any
    ) -> Objective:
        torch.manual_seed(0)
        shape = Shape(8, 2, 4, length, vocabulary.size, layers=1, table_width=table_width)
        shape = dataclasses.replace(shape, other_shapes=(dataclasses.replace(shape, stack="generator"),))
        made = objective()[name](shape, vocabulary, lambda width=None: nn.LayerNorm(width or 8), **options)
        return made.double()

    return built


@pytest.fixture
def table() -> nn.Embedding:
    """The only parameter of the model that `passed` runs."""
    torch.manual_seed(1)
    return nn.Embedding(100, 8).double()


@pytest.fixture
def passed(table: nn.Embedding) -> Callable[[TrainingExamples], ForwardPass]:
    """Run a small random model on the examples of an objective."""
    return lambda formed: TablePass(formed, table)


@pytest.fixture
def corpus() -> Callable[[Sequence[Sequence[int]]], Tokens]:
    """Build documents from lengths of sentences; ids count up from 100, so each id gives its position."""

    def of(documents: Sequence[Sequence[int]]) -> Tokens:
        lengths = [length for document in documents for length in document]
        sentences = np.cumsum([0, *lengths])
        ends = np.cumsum([0, *(len(document) for document in documents)])
        return Corpus(np.arange(100, 100 + sentences[-1]).astype(np.uint16), sentences, ends)

    return of

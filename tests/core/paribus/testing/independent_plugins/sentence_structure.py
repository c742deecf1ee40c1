"""Sentence structure: classify whether a sentence follows another, comes before it, or is of another document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import (
    PADDING,
    Cost,
    DataError,
    Draw,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    ObjectiveTraits,
    Problem,
    Range,
    Role,
    Shape,
    SpecError,
    Stream,
    Tokens,
    TrainingExamples,
    Unembed,
    Vocabulary,
    at_least_float32,
    hookimpl,
)

if TYPE_CHECKING:
    from torchmetrics import Metric

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]
NEXT, PREVIOUS, OTHER = 0, 1, 2
MARKS = 3  # cls, and a sep after each sentence


class Sentences(NamedTuple):
    """Sentences of a corpus that have tokens."""

    start: Array  # (S,) first id
    length: Array  # (S,)
    document: Array  # (S,) number of the document
    bounds: Array  # (D + 1,) first sentence of each document that has one, and the end
    first: Array  # (N,) first sentence of each example; the next one is of the same document


@final
class SentenceStructure(Objective):
    """Sentence structural objective. Label 0: B follows A in their document; 1: B comes directly before A; 2: B is a
    random sentence of another document. "StructBERT" (Wang et al. 2020).

    There is an example for each two neighbouring sentences. Sentences are cut at the end, the longer one first.
    (B, T, D) -> (B, 3), from the first token.
    """

    traits: ClassVar[ObjectiveTraits] = {
        "example_kind": "segments",
        "corrupts": False,
        "visibility": "both",
        "parts": [],
        "segments": True,
        "needs": ["cls", "sep", "sentences", "documents"],
        "unembeds": False,
    }
    roles: ClassVar[Mapping[str, Role]] = {"dense.weight": "head", "scores.weight": "head"}

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        other: Annotated[float, "share of examples with label 2; the rest is halved", Range(above=0, below=1)] = 1 / 3,
    ) -> None:
        super().__init__()
        missing = [name for name in ("cls", "sep") if name not in vocabulary.specials]
        if missing or shape.length < MARKS + 2:
            message = f"sentence-structure needs cls, sep and {MARKS + 2} positions"
            raise SpecError(Problem(code="does-not-fit", path="objective", message=message))
        self.other = other
        self.cls, self.sep = vocabulary.specials["cls"], vocabulary.specials["sep"]
        self.pad = vocabulary.specials.get("pad", self.sep)
        self._read: tuple[Tokens, Sentences] | None = None
        self.dense, self.scores = nn.Linear(shape.width, shape.width), nn.Linear(shape.width, 3)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_read": None}  # copies and other processes read the corpus again

    def sentences(self, tokens: Tokens) -> Sentences:
        if self._read is None or self._read[0] is not tokens:
            self._read = (tokens, read_sentences(tokens))
        return self._read[1]

    def example_count(self, tokens: Tokens, length: int) -> int:
        sentences = self.sentences(tokens)
        if len(sentences.bounds) < 3 or not len(sentences.first):
            message = "sentence-structure needs two documents, one of which has two sentences"
            raise DataError(Problem(code="too-few-documents", path="corpus", message=message))
        return len(sentences.first)

    def example_lengths(self, tokens: Tokens, length: int) -> Array:
        """Return upper bounds: the other sentence may be any."""
        sizes = self.sentences(tokens).length
        longest: Array = np.maximum(sizes[:-1], sizes[1:])[self.sentences(tokens).first] + sizes.max() + MARKS
        return longest.clip(max=length)

    def skipped_documents(self, tokens: Tokens, length: int) -> Mapping[str, int]:
        bounds = self.sentences(tokens).bounds
        return {"documents of fewer than two sentences": len(tokens.documents) - 1 - int((np.diff(bounds) > 1).sum())}

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        sentences = self.sentences(tokens)
        a = sentences.first[draw.index.numpy()]
        kind = draw.uniform("kind", 1)[:, 0].double().numpy()
        labels = np.where(kind < self.other, OTHER, np.where(kind < (1 + self.other) / 2, PREVIOUS, NEXT))
        b = np.where(labels == OTHER, random_other(sentences, a, draw), a + 1)
        a, b = np.where(labels == PREVIOUS, b, a), np.where(labels == PREVIOUS, a, b)
        limit = length - MARKS
        length_a, length_b = sentences.length[a], sentences.length[b]
        length_a = np.minimum(length_a, np.maximum(limit - length_b, (limit + 1) // 2))
        length_b = np.minimum(length_b, limit - length_a)
        position, middle = np.arange(length), 1 + length_a[:, None]
        end = middle + 1 + length_b[:, None]
        in_a, in_b = (position > 0) & (position < middle), (position > middle) & (position < end)
        start_a, start_b = sentences.start[a][:, None] - 1, sentences.start[b][:, None] - middle - 1
        source = np.where(in_a, start_a, np.where(in_b, start_b, -position)) + position
        ids = np.where(in_a | in_b, np.asarray(tokens.ids[source]).astype(np.int64), self.pad)
        ids = np.where((position == middle) | (position == end), self.sep, ids)
        ids[:, 0] = self.cls
        languages = None
        if tokens.languages is not None:
            side = np.where(position <= middle, sentences.document[a][:, None], sentences.document[b][:, None])
            languages = torch.from_numpy(np.asarray(tokens.languages)[side].astype(np.int64))
        body = Stream(
            torch.from_numpy(ids),
            documents=torch.from_numpy(np.where(position <= end, 0, PADDING)),
            segments=torch.from_numpy(((position > middle) & (position <= end)).astype(np.int64)),
            special=torch.from_numpy(~(in_a | in_b)),
            languages=languages,
        )
        return TrainingExamples({"body": body}, {"labels": torch.from_numpy(labels)})

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        scores: Tensor = self.scores(self.dense(hidden).tanh())
        return scores

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        labels = run.targets["labels"]
        loss = functional.cross_entropy(at_least_float32(self.class_logits(run)), labels, reduction="sum")
        return {"loss": LossTerm(loss, torch.ones_like(labels).sum())}

    def class_logits(self, run: ForwardPass) -> Tensor:
        """(B, 3)."""
        return run.cached("logits", lambda: self.logits(run.hidden()[:, 0], run.unembed))

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.head_positions * (self.dense.weight.numel() + self.scores.weight.numel()))

    def head_positions(self, length: int) -> int:
        return 1

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float:
        shares = torch.tensor([(1 - self.other) / 2, (1 - self.other) / 2, self.other], dtype=torch.float64)
        return float(-shares.log()[targets["labels"]].mean())

    def metrics(self) -> Mapping[str, Metric]:
        from torchmetrics.classification import MulticlassAccuracy

        return {"accuracy": MulticlassAccuracy(3, average="micro", validate_args=False)}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        metrics["accuracy"].update(self.class_logits(run).argmax(-1), run.targets["labels"])


def read_sentences(tokens: Tokens) -> Sentences:
    starts = np.asarray(tokens.sentences, dtype=np.int64)
    counts = np.diff(np.asarray(tokens.documents, dtype=np.int64))
    document = np.repeat(np.arange(len(counts)), counts)
    lengths = np.diff(starts)
    kept = np.flatnonzero(lengths > 0)
    document = document[kept]
    is_first = np.append(True, document[1:] != document[:-1])[: len(document)]
    first = np.flatnonzero(document[:-1] == document[1:])
    return Sentences(starts[kept], lengths[kept], document, np.append(np.flatnonzero(is_first), len(kept)), first)


def random_other(sentences: Sentences, a: Array, draw: Draw) -> Array:
    """(B,) -> (B,): a random sentence of a random other document."""
    bounds = sentences.bounds
    own = np.searchsorted(bounds, a, side="right") - 1
    other = (draw.uniform("document", 1)[:, 0].double().numpy() * (len(bounds) - 2)).astype(np.int64)
    other += other >= own
    offset = draw.uniform("sentence", 1)[:, 0].double().numpy() * (bounds[other + 1] - bounds[other])
    chosen: Array = bounds[other] + offset.astype(np.int64)
    return chosen


@hookimpl
def objective() -> Mapping[str, type[Objective]]:
    return {"sentence-structure": SentenceStructure}

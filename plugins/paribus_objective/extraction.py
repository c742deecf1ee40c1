"""Find in a context what answers a question."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from paribus import (
    Cost,
    DataError,
    Draw,
    ForwardPass,
    Load,
    LossTerm,
    Norms,
    Objective,
    Problem,
    Range,
    Role,
    Shape,
    SpecError,
    Tokens,
    TrainingExamples,
    Traits,
    Unembed,
    Vocabulary,
)
from paribus_objective import labelled, scoring
from paribus_objective.segments import MARKS, Layout, Span
from paribus_objective.windows import Array, Contexts, Once, contexts

if TYPE_CHECKING:
    from torchmetrics import Metric

MEASURED = ("exact", "f1")
NONE = -1  # the place of an answer that is not there


@final
class Extraction(Objective):
    """First and last row of the answer in `[cls] question [sep] context [sep]`, or `[cls]` for both where nothing
    answers: "BERT" (Devlin et al. 2019), 4.2 and 4.3, on data shaped like SQuAD.

    A context for which there are too few rows is cut into windows that begin `stride` tokens apart, each an example of
    its own; in one that does not have the whole answer nothing answers. Only rows of the context and `[cls]` are
    scored, so that neither padding nor the question is in the sum of a softmax. (B, T, D) -> (B, T, 2).
    """

    traits: ClassVar[Traits] = {
        "forms": "pairs",
        "corrupts": False,
        "sight": "both",
        "parts": [],
        "segments": True,
        "needs": ["cls", "sep", "documents", "pairs", "answers"],
        "unembeds": False,
    }
    roles: ClassVar[Mapping[str, Role]] = {"head.weight": "head"}

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        question: Annotated[int, "most tokens of a question, which is cut behind them", Range(1)] = 64,
        stride: Annotated[int, "tokens between the beginnings of two windows of a context", Range(1)] = 128,
        answer: Annotated[int, "most tokens of an answer that is given", Range(1)] = 30,
        threshold: Annotated[float, "by how much `[cls]` must score more for there to be no answer"] = 0.0,
    ) -> None:
        super().__init__()
        if shape.length < MARKS + 2:
            what = f"extract needs rows for cls, two sep, a question and a context, but there are {shape.length}"
            raise SpecError(Problem(code="too-short", path="dims.length", message=what, valid=f"≥ {MARKS + 2}"))
        most = shape.length - MARKS
        self.answer = answer
        self.threshold = threshold
        self.layout = Layout(shape, vocabulary, "extract")
        # At least half of the rows are the context's: a question that left it none could never be answered.
        self.windows = Once(partial(contexts, most=most, question=min(question, most // 2), stride=stride))
        self.head = nn.Linear(shape.width, 2)

    def example_count(self, tokens: Tokens, length: int) -> int:
        _checked(tokens)
        return len(self.windows(tokens).start)

    def example_lengths(self, tokens: Tokens, length: int) -> Array:
        found = self.windows(tokens)
        rows: Array = np.minimum(found.asked + found.length + MARKS, length)
        return rows

    def skipped_documents(self, tokens: Tokens, length: int) -> Mapping[str, int]:
        found = self.windows(tokens)
        every = np.arange(len(tokens.documents) - 1)
        answers, whole = _answers(tokens, found.document), np.zeros(len(every), dtype=bool)
        np.logical_or.at(whole, found.document, _inside(answers, found))
        asked = found.asked[np.searchsorted(found.document, every)]
        return {
            "answers that no window has whole": int((~whole & (_answers(tokens, every)[:, 0] != NONE)).sum()),
            "tokens of questions that are longer than asked for": int(
                (labelled.whole(tokens, every).length - asked).sum()
            ),
        }

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        assert tokens.targets is not None, "the rules let only a corpus of pairs come here"
        found = Contexts(*(column[draw.index.numpy()] for column in self.windows(tokens)))
        begins = labelled.whole(tokens.targets, found.document).start + found.start
        a = Span(labelled.whole(tokens, found.document).start, found.asked)
        stream = self.layout(tokens, a, Span(begins, found.length), length, other=tokens.targets)
        answers = _answers(tokens, found.document)
        row = 2 + found.asked  # the first of the context
        labels = np.where(_inside(answers, found)[:, None], answers + (row - found.start)[:, None], 0)
        place = np.arange(length)[None, :]
        open_ = (place == 0) | ((place >= row[:, None]) & (place < (row + found.length)[:, None]))
        targets = {"labels": labels, "open": open_, "answers": answers, "document": found.document}
        offset = found.start - row  # from a row to the context's own count
        return TrainingExamples(
            {"body": stream},
            {name: torch.from_numpy(value) for name, value in {**targets, "offset": offset}.items()},
        )

    def logits(self, hidden: Tensor, unembed: Unembed) -> Tensor:
        scores: Tensor = self.head(hidden)
        return scores

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {"loss": scoring.cross_entropy(self._scores(run), run.targets["labels"])}

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float:
        """Nothing answers as often as in `train`, and else any row of the window is as likely as another."""
        found = self.windows(train)
        none = ~_inside(_answers(train, found.document), found)
        share = (none.sum() + 1) / (len(none) + 2)
        rows = targets["open"].sum(1).double() - 1  # without the first
        nats = torch.where((targets["labels"] == 0).all(1), -math.log(share), rows.log() - math.log(1 - share))
        return float(nats.mean())

    def cost(self, load: Load) -> Cost:
        return Cost(flops=2 * load.head_positions * self.head.weight.numel())

    def head_positions(self, length: int) -> int:
        return length

    def metrics(self) -> Mapping[str, Metric]:
        from paribus_objective import measures

        return {name: measures.Spans(exact=name == "exact", threshold=self.threshold) for name in MEASURED}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        targets = run.targets
        best = spanned(self._scores(run), self.answer)
        span = torch.stack([best.first, best.last], dim=1) + targets["offset"].unsqueeze(1)
        for name in MEASURED:
            metrics[name].update(targets["document"], span, targets["answers"], best.score, best.none)

    def _scores(self, run: ForwardPass) -> Tensor:
        """(B, 2, T) of first and last, lowest where nothing can be."""

        def made() -> Tensor:
            scores = self.logits(run.hidden("body"), run.unembed).transpose(1, 2)
            return scores.masked_fill(~run.targets["open"].unsqueeze(1), torch.finfo(scores.dtype).min)

        return run.cached("scores", made)


class Best(NamedTuple):
    """The best span of each window, as its rows, and the score of there being none."""

    first: Tensor
    last: Tensor
    score: Tensor
    none: Tensor


def spanned(scores: Tensor, most: int) -> Best:
    """(B, 2, T) -> the best of all spans of up to `most` rows, none of which is the first row."""
    first, last = scores.double().unbind(1)  # (B, T): the lowest of a float32 twice is still a number
    none = first[:, 0] + last[:, 0]
    first, last = first[:, 1:], last[:, 1:]
    sizes = range(min(most, first.shape[1]))
    sums = [first[:, : first.shape[1] - size] + last[:, size:] for size in sizes]
    best = torch.stack([each.max(1).values for each in sums], dim=1)  # (B, sizes)
    score, size = best.max(1)
    starts = torch.stack([each.argmax(1) for each in sums], dim=1).gather(1, size.unsqueeze(1)).squeeze(1) + 1
    return Best(starts, starts + size, score, none)


def _inside(answers: Array, found: Contexts) -> Array:
    """(B,) whether a window has the whole answer."""
    inside: Array = (answers[:, 0] >= found.start) & (answers[:, 1] < found.start + found.length)
    return inside


def _answers(tokens: Tokens, document: Array) -> Array:
    """(B, 2) first and last token of each answer, counted from its context's first; NONE where there is none."""
    assert tokens.targets is not None, "the rules let only a corpus of pairs come here"
    words = labelled.told(tokens).values.reshape(-1, 2)[document].astype(np.int64)
    bounds, documents = np.asarray(tokens.targets.sentences), np.asarray(tokens.targets.documents)
    at = documents[document][:, None] + np.maximum(words, 0) + np.array([0, 1])
    found: Array = bounds[at] - bounds[documents[document]][:, None] - np.array([0, 1])
    return np.where(words < 0, NONE, found)


def _checked(tokens: Tokens) -> None:
    """Refuses answers that are none of their contexts'."""
    assert tokens.targets is not None, "the rules let only a corpus of pairs come here"
    told = labelled.told(tokens)
    counts = np.diff(told.documents)
    if (counts != 2).any():
        at = int(np.flatnonzero(counts != 2)[0])
        what = (
            f"document {at:,} has {counts[at]} labels, and extract takes two of each: where an answer begins and ends"
        )
        raise DataError(Problem(code="labels", path="corpus", message=what, valid="two labels a document"))
    first, last = told.values.reshape(-1, 2).T
    words = np.diff(np.asarray(tokens.targets.documents))
    none = (first == NONE) & (last == NONE)
    wrong = np.flatnonzero(~none & ((first < 0) | (last < first) | (last >= words)))
    if wrong.size:
        at = int(wrong[0])
        what = f"document {at:,} has the answer {first[at]:g} to {last[at]:g}, in a context of {words[at]} words"
        valid = f"0 ≤ first ≤ last < {words[at]}, or -1 and -1 where nothing answers"
        raise DataError(Problem(code="labels", path="corpus", message=what, valid=valid))

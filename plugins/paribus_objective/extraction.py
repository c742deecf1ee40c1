"""Extractive question answering: find the span of a context that answers a question."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from paribus import (
    DataError,
    Draw,
    ForwardPass,
    LossTerm,
    Norms,
    Objective,
    ObjectiveTraits,
    Prediction,
    Problem,
    Range,
    Role,
    Shape,
    SpecError,
    Tokens,
    TrainingExamples,
    Vocabulary,
)
from paribus_objective import class_head, labelled, scoring
from paribus_objective.segments import MARKS, SegmentLayout, Span
from paribus_objective.windows import Array, ContextWindows, CorpusCache, context_windows

if TYPE_CHECKING:
    from torchmetrics import Metric

METRICS: Final = ("exact", "f1")
NO_ANSWER: Final = -1  # position


@final
class Extraction(Objective):
    """Extractive question answering: scores of the first and the last token of the answer in `[cls] question [sep]
    context [sep]`, or `[cls]` for both without an answer. "BERT" (Devlin et al. 2019), 4.2 and 4.3, on data like SQuAD.

    A context that is too long is split into windows that start `stride` tokens apart, each an example; a window without
    the whole answer has no answer. The softmax is over the context and `[cls]` only, without question and padding.
    (B, T, D) -> (B, T, 2).
    """

    traits: ClassVar[ObjectiveTraits] = {
        "example_kind": "pairs",
        "corrupts": False,
        "visibility": "both",
        "parts": [],
        "segments": True,
        "needs": ["cls", "sep", "documents", "pairs", "answers"],
        "unembeds": False,
        "predicts": "answer",
    }
    roles: ClassVar[Mapping[str, Role]] = {"head.weight": "head"}
    logits = class_head.logits
    cost = class_head.linear_cost
    head_positions = class_head.every_position

    def __init__(
        self,
        shape: Shape,
        vocabulary: Vocabulary,
        norm: Norms,
        *,
        max_question_length: Annotated[int, "question tokens; a longer one is truncated at the end", Range(1)] = 64,
        stride: Annotated[int, "distance in tokens between the starts of two windows of a context", Range(1)] = 128,
        max_answer_length: Annotated[int, "maximum length in tokens of a predicted answer", Range(1)] = 30,
        null_threshold: Annotated[float, "margin by which `[cls]` must score higher to predict no answer"] = 0.0,
    ) -> None:
        super().__init__()
        if shape.length < MARKS + 2:
            message = "extract needs positions for cls, two sep, a question and a context"
            message += f"; got a length of {shape.length}"
            raise SpecError(Problem(code="too-short", path="dims.length", message=message, valid=f"≥ {MARKS + 2}"))
        limit = shape.length - MARKS
        self.max_answer_length = max_answer_length
        self.null_threshold = null_threshold
        self.layout = SegmentLayout(shape, vocabulary, "extract")
        # The context gets half of the sequence or more: without room for it, a question could never be answered.
        question_limit = min(max_question_length, limit // 2)
        self.windows = CorpusCache(
            partial(context_windows, limit=limit, max_question_length=question_limit, stride=stride)
        )
        self.head = nn.Linear(shape.width, 2, bias=False)  # a bias would be the same for all tokens

    def example_count(self, tokens: Tokens, length: int) -> int:
        _check_answers(tokens)
        return len(self.windows(tokens).start)

    def example_lengths(self, tokens: Tokens, length: int) -> Array:
        windows = self.windows(tokens)
        lengths: Array = np.minimum(windows.question_length + windows.length + MARKS, length)
        return lengths

    def skipped_documents(self, tokens: Tokens, length: int) -> Mapping[str, int]:
        windows = self.windows(tokens)
        documents = np.arange(len(tokens.documents) - 1)
        is_covered = np.zeros(len(documents), dtype=bool)
        np.logical_or.at(is_covered, windows.document, _is_inside(_answers(tokens, windows.document), windows))
        has_answer = _answers(tokens, documents)[:, 0] != NO_ANSWER
        question_length = windows.question_length[np.searchsorted(windows.document, documents)]
        truncated = labelled.document_spans(tokens, documents).length - question_length
        return {
            "answers that are not whole in any window": int((~is_covered & has_answer).sum()),
            "tokens truncated from questions longer than max_question_length": int(truncated.sum()),
        }

    def form(self, tokens: Tokens, length: int, draw: Draw) -> TrainingExamples:
        assert tokens.targets is not None, "the engine checks that the corpus has pairs"
        windows = ContextWindows(*(column[draw.index.numpy()] for column in self.windows(tokens)))
        context_start = labelled.document_spans(tokens.targets, windows.document).start + windows.start
        question = Span(labelled.document_spans(tokens, windows.document).start, windows.question_length)
        context = Span(context_start, windows.length)
        stream = self.layout(tokens, question, context, length, other=tokens.targets)
        answers = _answers(tokens, windows.document)
        first = 2 + windows.question_length  # position of the first token of the context
        is_inside = _is_inside(answers, windows)[:, None]
        labels = np.where(is_inside, answers + (first - windows.start)[:, None], 0)
        position = np.arange(length)[None, :]
        in_context = (position >= first[:, None]) & (position < (first + windows.length)[:, None])
        targets = {
            "labels": labels,
            "candidates": (position == 0) | in_context,
            "answers": answers,
            "document": windows.document,
            "offset": windows.start - first,  # from positions in the sequence to positions in the context
        }
        return TrainingExamples({"body": stream}, {name: torch.from_numpy(values) for name, values in targets.items()})

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {"loss": scoring.cross_entropy(self._scores(run), run.targets["labels"])}

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float:
        """Return the loss of predicting no answer as often as in `train`, and uniform positions otherwise."""
        windows = self.windows(train)
        is_null = ~_is_inside(_answers(train, windows.document), windows)
        share = (is_null.sum() + 1) / (len(is_null) + 2)
        candidates = targets["candidates"].sum(1).double() - 1  # without the first token
        is_null_target = (targets["labels"] == 0).all(1)
        losses = torch.where(is_null_target, -math.log(share), candidates.log() - math.log(1 - share))
        return float(losses.mean())

    def metrics(self) -> Mapping[str, Metric]:
        from paribus_objective import metrics

        return {name: metrics.SpanMatch(exact=name == "exact", threshold=self.null_threshold) for name in METRICS}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        targets = run.targets
        best = best_span(self._scores(run), self.max_answer_length)
        span = torch.stack([best.start, best.end], dim=1) + targets["offset"].unsqueeze(1)
        for name in METRICS:
            metrics[name].update(targets["document"], span, targets["answers"], best.score, best.null_score)

    def predict(self, run: ForwardPass, tokens: Tokens) -> list[Prediction]:
        """Return the best answer of all windows of each context, in words, or none as `SpanMatch` decides."""
        assert tokens.targets is not None, "the engine checks that there are pairs"
        best, document = best_span(self._scores(run), self.max_answer_length), self.windows(tokens).document
        bounds, documents = np.asarray(tokens.targets.sentences), np.asarray(tokens.targets.documents)
        results = []
        for number in range(len(documents) - 1):
            windows = torch.from_numpy(np.flatnonzero(document == number)).to(best.score.device)
            window = windows[best.score[windows].argmax()]
            margin = float(best.score[window] - best.null_score[windows].min())
            offset = int(run.targets["offset"][window]) + bounds[documents[number]]
            span = [int(best.start[window]) + offset, int(best.end[window]) + offset]
            first, last = np.searchsorted(bounds, span, side="right") - 1 - documents[number]
            is_none = margin < -self.null_threshold
            answer = (NO_ANSWER, NO_ANSWER) if is_none else (int(first), int(last))
            results.append(Prediction(answer=answer, score=margin))
        return results

    def _scores(self, run: ForwardPass) -> Tensor:
        """(B, 2, T) scores of the first and the last token; the minimum for tokens that cannot be either."""

        def compute() -> Tensor:
            scores = self.logits(run.hidden("body"), run.unembed).transpose(1, 2)
            return scores.masked_fill(~run.targets["candidates"].unsqueeze(1), torch.finfo(scores.dtype).min)

        return run.cached("scores", compute)


class BestSpan(NamedTuple):
    """The best span of each window, (B,): its first and last position and its score, and the score of no answer."""

    start: Tensor
    end: Tensor
    score: Tensor
    null_score: Tensor


def best_span(scores: Tensor, max_length: int) -> BestSpan:
    """(B, 2, T) -> the best of all spans of up to `max_length` tokens without the first token."""
    start, end = scores.double().unbind(1)  # (B, T): the sum of two minima of float32 is finite in float64
    null_score = start[:, 0] + end[:, 0]
    start, end = start[:, 1:], end[:, 1:]
    sizes = range(min(max_length, start.shape[1]))
    sums = [start[:, : start.shape[1] - size] + end[:, size:] for size in sizes]
    best_scores = torch.stack([size_sums.max(1).values for size_sums in sums], dim=1)  # (B, sizes)
    score, size = best_scores.max(1)
    best_starts = torch.stack([size_sums.argmax(1) for size_sums in sums], dim=1)
    first = best_starts.gather(1, size.unsqueeze(1)).squeeze(1) + 1
    return BestSpan(first, first + size, score, null_score)


def _is_inside(answers: Array, windows: ContextWindows) -> Array:
    """(B,) bool: the window has the whole answer."""
    is_inside: Array = (answers[:, 0] >= windows.start) & (answers[:, 1] < windows.start + windows.length)
    return is_inside


def _answers(tokens: Tokens, document: Array) -> Array:
    """(B, 2) first and last token of each answer, counted from the start of its context; or NO_ANSWER."""
    assert tokens.targets is not None, "the engine checks that the corpus has pairs"
    words = labelled.require_labels(tokens).values.reshape(-1, 2)[document].astype(np.int64)
    bounds, documents = np.asarray(tokens.targets.sentences), np.asarray(tokens.targets.documents)
    word = documents[document][:, None] + np.maximum(words, 0) + np.array([0, 1])
    positions: Array = bounds[word] - bounds[documents[document]][:, None] - np.array([0, 1])
    return np.where(words < 0, NO_ANSWER, positions)


def _check_answers(tokens: Tokens) -> None:
    """Raise a DataError if an answer does not lie in its context."""
    assert tokens.targets is not None, "the engine checks that the corpus has pairs"
    labels = labelled.require_labels(tokens)
    counts = np.diff(labels.documents)
    if (counts != 2).any():
        document = int(np.flatnonzero(counts != 2)[0])
        message = "extract expects two labels per document, the first and last word of the answer; document "
        message += f"{document:,} has {counts[document]}"
        raise DataError(Problem(code="labels", path="corpus", message=message, valid="two labels per document"))
    first, last = labels.values.reshape(-1, 2).T
    words = np.diff(np.asarray(tokens.targets.documents))
    is_null = (first == NO_ANSWER) & (last == NO_ANSWER)
    wrong = np.flatnonzero(~is_null & ((first < 0) | (last < first) | (last >= words)))
    if wrong.size:
        document = int(wrong[0])
        message = f"document {document:,} has the answer {first[document]:g} to {last[document]:g} in a context of "
        message += f"{words[document]} words"
        valid = f"0 ≤ first ≤ last < {words[document]}, or -1 and -1 without an answer"
        raise DataError(Problem(code="labels", path="corpus", message=message, valid=valid))

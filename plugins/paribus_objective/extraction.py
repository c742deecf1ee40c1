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
from paribus_objective.answers import (
    NO_ANSWER,
    match_positions,
    match_texts,
    positions,
    read_answers,
)
from paribus_objective.segments import MARKS, SegmentLayout, Span
from paribus_objective.windows import Array, ContextWindows, CorpusCache, context_windows

if TYPE_CHECKING:
    from torchmetrics import Metric

METRICS: Final = ("exact", "f1")


@final
class Extraction(Objective):
    """Extractive question answering: scores of the first and the last token of the answer in `[cls] question [sep]
    context [sep]`, or `[cls]` for both without an answer. "BERT" (Devlin et al. 2019), 4.2 and 4.3, on data like SQuAD.

    A context that is too long is split into windows that start `stride` tokens apart, each an example; a window without
    the whole answer has no answer. The softmax is over the context and `[cls]` only, without question and padding.
    `exact` and `f1` are the best of all accepted answers, the first of which is trained on. They compare texts as the
    script of SQuAD does, without case, punctuation and articles, if the corpus has their words (`squad`), and otherwise
    positions, so that the same words elsewhere are wrong. For a question without an answer, predicting none gives 1 and
    every span gives 0. (B, T, D) -> (B, T, 2).
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
        self.answers = CorpusCache(read_answers)
        self.head = nn.Linear(shape.width, 2, bias=False)  # a bias would be the same for all tokens

    def example_count(self, tokens: Tokens, length: int) -> int:
        self.answers(tokens)
        return len(self.windows(tokens).start)

    def example_lengths(self, tokens: Tokens, length: int) -> Array:
        windows = self.windows(tokens)
        lengths: Array = np.minimum(windows.question_length + windows.length + MARKS, length)
        return lengths

    def skipped_documents(self, tokens: Tokens, length: int) -> Mapping[str, int]:
        windows = self.windows(tokens)
        documents = np.arange(len(tokens.documents) - 1)
        is_covered = np.zeros(len(documents), dtype=bool)
        np.logical_or.at(is_covered, windows.document, _is_inside(self._places(tokens, windows.document), windows))
        has_answer = self._places(tokens, documents)[:, 0] != NO_ANSWER
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
        answers = self._places(tokens, windows.document)
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
            **self._accepted(tokens, windows.document),
            **self._texts(tokens, windows.document, context_start[:, None] + position - first[:, None], in_context),
        }
        return TrainingExamples({"body": stream}, {name: torch.from_numpy(values) for name, values in targets.items()})

    def forward(self, run: ForwardPass) -> Mapping[str, LossTerm]:
        return {"loss": scoring.cross_entropy(self._scores(run), run.targets["labels"])}

    def unigram_loss(self, train: Tokens, targets: Mapping[str, Tensor]) -> float:
        """Return the loss of predicting no answer as often as in `train`, and uniform positions otherwise."""
        windows = self.windows(train)
        is_null = ~_is_inside(self._places(train, windows.document), windows)
        share = (is_null.sum() + 1) / (len(is_null) + 2)
        candidates = targets["candidates"].sum(1).double() - 1  # without the first token
        is_null_target = (targets["labels"] == 0).all(1)
        losses = torch.where(is_null_target, -math.log(share), candidates.log() - math.log(1 - share))
        return float(losses.mean())

    def metrics(self) -> Mapping[str, Metric]:
        from paribus_objective import metrics

        return {name: metrics.AnswerMatch(threshold=self.null_threshold) for name in METRICS}

    def update_metrics(self, run: ForwardPass, metrics: Mapping[str, Metric]) -> None:
        targets = run.targets
        best = best_span(self._scores(run), self.max_answer_length)
        if "gold" in targets:
            *matches, null = match_texts(targets, best.start, best.end)
        else:
            accepted = targets.get("accepted", targets["answers"].unsqueeze(1))
            span = torch.stack([best.start, best.end], dim=1) + targets["offset"].unsqueeze(1)
            *matches, null = match_positions(span, accepted)
        for name, match in zip(METRICS, matches, strict=True):
            metrics[name].update(targets["document"], match, null, best.score, best.null_score)

    def _places(self, tokens: Tokens, document: Array) -> Array:
        """(B, 2) first and last token of the first answer, counted from the start of its context; or NO_ANSWER."""
        return positions(tokens, document, self.answers(tokens).first(document))

    def _accepted(self, tokens: Tokens, document: Array) -> Mapping[str, Array]:
        """Return the target (B, A, 2) with the positions of all answers, if a question has several."""
        answers = self.answers(tokens)
        return {"accepted": positions(tokens, document, answers.accepted(document))} if answers.most > 1 else {}

    def _texts(self, tokens: Tokens, document: Array, token: Array, in_context: Array) -> Mapping[str, Array]:
        """Return targets by which texts are compared, if the corpus has them: the `words` of `token`, (B, T), their
        `numbers`, and the numbers of all answers, `gold`, (B, A, W), padded with 0.
        """
        answers = self.answers(tokens)
        if not answers.has_texts or tokens.targets is None:
            return {}
        bounds, documents = np.asarray(tokens.targets.sentences), np.asarray(tokens.targets.documents)
        first_word = documents[document][:, None]
        words = np.searchsorted(bounds, np.where(in_context, token, bounds[first_word]), side="right") - 1 - first_word
        accepted = answers.accepted(document)
        first, sizes = accepted[..., :1], accepted[..., 1:] - accepted[..., :1] + 1
        place = np.arange(answers.longest)
        is_word = (place < sizes) & (first >= 0)
        gold = answers.numbers(document[:, None, None], np.where(is_word, first + place, 0))
        return {
            "words": words,
            "numbers": np.where(in_context, answers.numbers(document[:, None], words), 0),
            "gold": np.where(is_word, gold, 0),
        }

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

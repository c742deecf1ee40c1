"""Answers that a corpus accepts, and their comparison with a predicted one by position or by text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paribus import DataError, Problem, Tokens
from paribus_objective import labelled
from paribus_objective.windows import Array

NO_ANSWER: Final = -1  # position
TEXTS: Final = -3  # in the labels of a document, before the numbers of the words of its context
EMPTY, ARTICLE = 1, 2  # numbers of words of which SQuAD's normalization leaves nothing


class Answers(NamedTuple):
    """Labels of all documents: pairs of the first and the last word of an answer, and perhaps numbers of words."""

    values: Array
    starts: Array  # (documents,) first label of each document
    stops: Array  # (documents,) label after its last pair
    has_texts: bool  # the words of the contexts have numbers
    most: int  # largest number of answers of a question: targets of all batches have one size
    longest: int  # largest number of words of an answer

    def first(self, document: Array) -> Array:
        """(B, 2): the first answer to each question, in words of the context."""
        words: Array = self.values[self.starts[document][:, None] + np.array([0, 1])].astype(np.int64)
        return words

    def accepted(self, document: Array) -> Array:
        """(B, A, 2): all answers; a question with fewer than the others has its first one repeatedly."""
        counts = (self.stops[document] - self.starts[document]) // 2
        number = np.arange(self.most)[None, :]
        place = self.starts[document][:, None] + 2 * np.where(number < counts[:, None], number, 0)
        words: Array = self.values[place[..., None] + np.array([0, 1])].astype(np.int64)
        return words

    def numbers(self, document: Array, word: Array) -> Array:
        """Return the numbers of words of contexts, counted from the start of each context."""
        numbers: Array = self.values[self.stops[document] + 1 + word].astype(np.int64)
        return numbers


def read_answers(tokens: Tokens) -> Answers:
    """Return the answers of a corpus; raise a DataError if one does not lie in its context."""
    assert tokens.targets is not None, "the engine checks that the corpus has pairs"
    labels = labelled.require_labels(tokens)
    values, bounds = np.asarray(labels.values), np.asarray(labels.documents)
    words = np.diff(np.asarray(tokens.targets.documents))
    stops = bounds[1:].copy()
    marks = np.flatnonzero(values == TEXTS)
    stops[np.searchsorted(bounds, marks, side="right") - 1] = marks
    counts, rest = stops - bounds[:-1], bounds[1:] - stops
    wrong = np.flatnonzero((counts < 2) | (counts % 2 > 0) | (rest != (words + 1 if len(marks) else 0)))
    if wrong.size:
        message = "extract expects two labels for each answer, its first and last word; document "
        message += f"{wrong[0]:,} has {counts[wrong[0]]}, and {rest[wrong[0]]} more for {words[wrong[0]]} words"
        raise DataError(Problem(code="labels", path="corpus", message=message, valid="two labels for each answer"))
    document = np.repeat(np.arange(len(counts)), counts // 2)
    pair = np.arange(len(document)) - np.repeat(np.cumsum(counts // 2) - counts // 2, counts // 2)
    place = bounds[document] + 2 * pair
    first, last = values[place], values[place + 1]
    _check_places(first, last, document, words)
    most, longest = int(counts.max(initial=2)) // 2, int((last - first).max(initial=0)) + 1
    return Answers(values, bounds[:-1], stops, bool(len(marks)), most, longest)


def _check_places(first: Array, last: Array, document: Array, words: Array) -> None:
    is_null = (first == NO_ANSWER) & (last == NO_ANSWER)
    wrong = np.flatnonzero(~is_null & ((first < 0) | (last < first) | (last >= words[document])))
    if wrong.size:
        answer = int(wrong[0])
        size = words[document[answer]]
        message = f"document {document[answer]:,} has the answer {first[answer]:g} to {last[answer]:g} in a context of "
        message += f"{size} words"
        valid = f"0 ≤ first ≤ last < {size}, or -1 and -1 without an answer"
        raise DataError(Problem(code="labels", path="corpus", message=message, valid=valid))


def positions(tokens: Tokens, document: Array, words: Array) -> Array:
    """(B, …, 2) first and last word of answers -> their first and last token in the context; or NO_ANSWER."""
    assert tokens.targets is not None, "the engine checks that the corpus has pairs"
    bounds, documents = np.asarray(tokens.targets.sentences), np.asarray(tokens.targets.documents)
    first_word = documents[document].reshape(-1, *[1] * (words.ndim - 1))
    word = first_word + np.maximum(words, 0) + np.array([0, 1])
    places: Array = bounds[word] - bounds[first_word] - np.array([0, 1])
    return np.where(words < 0, NO_ANSWER, places)


# --- comparison by position ---


def match_positions(span: Tensor, accepted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(B, 2), (B, A, 2) -> (B,) float64 each: exact match and F1 of tokens, of the best answer, and both of no
    answer.
    """
    start, end = span[:, None].double().unbind(-1)
    gold_start, gold_end = accepted.double().unbind(-1)
    is_same = ((start == gold_start) & (end == gold_end)).double()
    overlap = (torch.minimum(end, gold_end) - torch.maximum(start, gold_start) + 1).clamp(min=0)
    f1 = 2 * overlap / (end - start + gold_end - gold_start + 2)
    f1 = torch.where((start < 0) | (gold_start < 0), is_same, f1)
    return is_same.amax(1), f1.amax(1), (accepted == NO_ANSWER).all(-1).any(-1).double()


# --- comparison by text ---


def match_texts(targets: Mapping[str, Tensor], start: Tensor, end: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return exact match and F1 of spans, given by positions in the sequence, and both of no answer: (B,) float64 each.

    They are the best of all accepted answers, compared as the script of SQuAD does.
    """
    scores = []
    rows = zip(
        *(targets[name].tolist() for name in ("numbers", "words", "gold")), start.tolist(), end.tolist(), strict=True
    )
    for numbers, words, gold, first, last in rows:
        places = [place for place in range(first, last + 1) if place == first or words[place] != words[place - 1]]
        found = normalized([numbers[place] for place in places])
        answers = [normalized([number for number in answer if number]) for answer in gold]
        scores.append((*best_scores(found, answers), best_scores([], answers)[0]))
    exact, f1, null = torch.tensor(scores, dtype=torch.float64, device=start.device).reshape(-1, 3).unbind(1)
    return exact, f1, null


def normalized(numbers: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the words that SQuAD compares, from numbers of words and punctuation marks.

    A negative number has no space before it and belongs to the word before; words without text and articles are left
    out. Unlike in the script, an article next to a mark that is not of ASCII, such as a typographic quote, stays.
    """
    groups: list[list[int]] = []
    for place, number in enumerate(numbers):
        if number > 0 or place == 0:
            groups.append([])
        groups[-1] += [abs(number)] if abs(number) != EMPTY else []
    return [tuple(group) for group in groups if group not in ([], [ARTICLE])]


def best_scores(found: list[tuple[int, ...]], gold: Sequence[list[tuple[int, ...]]]) -> tuple[float, float]:
    """Return exact match and F1 of words, each with the answer for which it is the highest.

    As in the script of SQuAD 2.0, answers without words count only if there is no other.
    """
    answers = [answer for answer in gold if answer] or [[]]
    return max(float(found == answer) for answer in answers), max(_f1(found, answer) for answer in answers)


def _f1(found: list[tuple[int, ...]], answer: list[tuple[int, ...]]) -> float:
    if not found or not answer:
        return float(found == answer)
    return 2 * sum((Counter(found) & Counter(answer)).values()) / (len(found) + len(answer))

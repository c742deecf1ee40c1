"""Log-likelihoods of labels after a prompt, under a model that predicts the next token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from paribus.errors import join_names

MAX_SCORES: Final = 1 << 26  # next-token scores of one forward pass
Normalize = Literal["none", "tokens", "bytes"]
Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]


class ScoredText(NamedTuple):
    """Ids of a prompt with a label, whose log-likelihood is that of the tokens from `start` on."""

    ids: tuple[int, ...]
    start: int


def encode_labels(encode: Encode, prompts: Sequence[str], labels: Sequence[Sequence[str]]) -> list[list[ScoredText]]:
    """Return each prompt with each of its labels.

    A prompt and a label are encoded as one text, whose tokens from the first that differs from those of the prompt are
    the label's. So a space at the end of the prompt belongs to the label, as where words carry the space before them.
    """
    texts = [prompt + label for prompt, names in zip(prompts, labels, strict=True) for label in names]
    rows = iter([tuple(ids) for ids in encode(texts)])
    stripped = [tuple(ids) for ids in encode([prompt.rstrip() for prompt in prompts])]
    scored = []
    for ids, names in zip(stripped, labels, strict=True):
        candidates = [next(rows) for _ in names]
        start = min(_common(ids, candidate) for candidate in candidates)
        scored.append([ScoredText(candidate, start) for candidate in candidates])
    return scored


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of equal ids at the beginning of two sequences."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def label_problem(scored: Sequence[ScoredText], labels: Sequence[str], unknown: int | None, normalize: str) -> str:
    """Return why the scores of labels after one prompt cannot be compared; empty if they can."""
    rows = [text.ids[text.start :] for text in scored]
    if any(text.start < 1 for text in scored):
        return "the prompt has no token before the label"
    without = [label for row, label in zip(rows, labels, strict=True) if not row or unknown in row]
    if without:
        return f"the tokenizer does not know the label {without[0]!r}"
    for row, label in zip(rows, labels, strict=True):
        same = [other for tokens, other in zip(rows, labels, strict=True) if other != label and tokens == row]
        longer = [other for tokens, other in zip(rows, labels, strict=True) if tokens[: len(row)] == row != tokens]
        if same:
            return f"the labels {join_names([label, *same])} have the same tokens"
        if longer and normalize == "none":
            return f"the label {label!r} begins {longer[0]!r}, so it is never less likely; normalize by tokens or bytes"
    return ""


def label_scores(
    logits: Callable[[Tensor], Tensor],
    scored: Sequence[Sequence[ScoredText]],
    labels: Sequence[Sequence[str]],
    vocabulary: int,
    normalize: str = "none",
) -> list[Tensor]:
    """Return the scores, (C,) float64, of the labels of each prompt: log-likelihoods in nats.

    `normalize` divides each by the number of tokens of its label, or by that of its bytes in UTF-8.
    """
    totals = log_likelihoods(logits, [text for texts in scored for text in texts], vocabulary)
    scores = []
    for texts, names, total in zip(scored, labels, totals.split([len(texts) for texts in scored]), strict=True):
        sizes = {
            "none": [1] * len(texts),
            "tokens": [len(text.ids) - text.start for text in texts],
            "bytes": [len(name.encode("utf-8", "surrogatepass")) for name in names],
        }[normalize]
        scores.append(total / torch.tensor(sizes, dtype=torch.float64))
    return scores


def log_likelihoods(logits: Callable[[Tensor], Tensor], texts: Sequence[ScoredText], vocabulary: int) -> Tensor:
    """(N,) float64: summed log-likelihood, in nats, of the tokens of each text from its start on.

    `logits` returns the scores of the next token at each position, (B, T) -> (B, T, V). Texts that differ in their last
    token only are run once. Padding follows a text, where a causal model does not see it.
    """
    rows: dict[tuple[int, ...], list[int]] = {}
    for number, text in enumerate(texts):
        rows.setdefault(text.ids[:-1], []).append(number)
    totals = torch.zeros(len(texts), dtype=torch.float64)
    for chunk in _chunks(sorted(rows, key=len), vocabulary):
        width = len(chunk[-1])
        scores_BTV = logits(torch.tensor([[*row, *(0,) * (width - len(row))] for row in chunk]))
        for index, row in enumerate(chunk):
            first = min(texts[number].start for number in rows[row])
            shares_TV = scores_BTV[index, first - 1 : len(row)].double().log_softmax(-1)
            for number in rows[row]:
                text = texts[number]
                targets = torch.tensor(text.ids[text.start :], device=shares_TV.device)
                totals[number] = shares_TV[text.start - first :].gather(1, targets[:, None]).sum()
    return totals


def _chunks(rows: Sequence[tuple[int, ...]], vocabulary: int) -> Iterator[Sequence[tuple[int, ...]]]:
    """Yield rows, shortest first, as many as have at most `MAX_SCORES` scores together."""
    chunk: list[tuple[int, ...]] = []
    for row in rows:
        if chunk and (len(chunk) + 1) * len(row) * vocabulary > MAX_SCORES:
            yield chunk
            chunk = []
        chunk.append(row)
    if chunk:
        yield chunk

"""Log-likelihoods of labels, against sums over single positions."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from paribus import encode_labels, label_problem, label_scores
from paribus.parts import label_scores as module
from paribus.parts.label_scores import ScoredText, log_likelihoods

VOCABULARY = 128


def encode(texts: Sequence[str]) -> list[list[int]]:
    """ASCII codes, where a space and the letter after it are one token."""
    rows = []
    for text in texts:
        marked = text.replace(" a", "\x01").replace(" b", "\x02")
        rows.append([ord(character) for character in marked])
    return rows


def logits(tokens: Tensor) -> Tensor:
    """(B, T, V) scores that depend on the sum of all tokens so far."""
    table = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return table[tokens.cumsum(1) % VOCABULARY]


def by_hand(text: ScoredText) -> float:
    """Sum the logarithm of the share of each token after those before it, one forward pass for each."""
    total = 0.0
    for position in range(text.start, len(text.ids)):
        shares = logits(torch.tensor([text.ids[:position]]))[0, -1].softmax(-1)
        total += float(shares[text.ids[position]].log())
    return total


def test_log_likelihoods_are_sums_over_the_tokens_of_the_label(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [
        ScoredText((5, 6, 7), 2), ScoredText((5, 6, 8), 2), ScoredText((9, 9, 1, 2, 3), 1), ScoredText((4, 3), 1),
    ]  # fmt: skip
    expected = torch.tensor([by_hand(text) for text in texts], dtype=torch.float64)
    torch.testing.assert_close(log_likelihoods(logits, texts, VOCABULARY), expected)
    monkeypatch.setattr(module, "MAX_SCORES", 1)  # one text at a time
    torch.testing.assert_close(log_likelihoods(logits, texts, VOCABULARY), expected)


def test_labels_with_the_same_tokens_before_them_are_run_once() -> None:
    shapes = []

    def counted(tokens: Tensor) -> Tensor:
        shapes.append(tuple(tokens.shape))
        return logits(tokens)

    log_likelihoods(counted, [ScoredText((5, 6, token), 2) for token in range(10)], VOCABULARY)
    assert shapes == [(1, 2)]


def test_the_space_before_a_label_belongs_to_the_label() -> None:
    ((a, b),) = encode_labels(encode, ["x = "], [["a", "bc"]])
    assert a == ScoredText((*map(ord, "x ="), 1), 3)
    assert b == ScoredText((*map(ord, "x ="), 2, ord("c")), 3)


@pytest.mark.parametrize(("normalize", "sizes"), [("none", (1, 1)), ("tokens", (1, 2)), ("bytes", (1, 3))])
def test_scores_are_divided_by_the_size_of_the_label(normalize: str, sizes: tuple[int, int]) -> None:
    labels = [["a", "b\u00e9"]]

    def encode_bytes(texts: Sequence[str]) -> list[list[int]]:
        return encode([text.replace("\u00e9", "e") for text in texts])

    scored = encode_labels(encode_bytes, ["x = "], labels)
    (scores,) = label_scores(logits, scored, labels, VOCABULARY, normalize)
    expected = [by_hand(text) / size for text, size in zip(scored[0], sizes, strict=True)]
    torch.testing.assert_close(scores, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    ("labels", "unknown", "normalize", "values"),
    [
        (["a", "b"], None, "none", []),
        (["a", "ax"], None, "none", ["'a'", "'ax'", "normalize"]),
        (["a", "ax"], None, "bytes", []),
        (["a", "b"], 2, "none", ["'b'"]),
        (["c", ""], None, "none", ["''"]),
        (["\x01", " a"], None, "none", ["same tokens"]),
    ],
)
def test_labels_that_cannot_be_compared_have_a_reason(
    labels: list[str], unknown: int | None, normalize: str, values: list[str]
) -> None:
    (scored,) = encode_labels(encode, ["x ="], [labels])
    if labels in (["a", "b"], ["a", "ax"]):
        (scored,) = encode_labels(encode, ["x = "], [labels])
    reason = label_problem(scored, labels, unknown, normalize)
    assert bool(reason) == bool(values)
    assert all(value in reason for value in values)


def test_a_prompt_without_a_token_has_a_reason() -> None:
    (scored,) = encode_labels(encode, [" "], [["a", "b"]])
    assert "before the label" in label_problem(scored, ["a", "b"], None, "none")

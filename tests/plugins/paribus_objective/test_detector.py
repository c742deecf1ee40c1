"""Detector head: layers, padding and loss."""

import math

import torch
from torch import nn

from paribus import IGNORED, PADDING, Stream
from paribus_objective.detector import Detector, loss, not_padding


def gelu(x: torch.Tensor) -> torch.Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def test_the_head_is_a_gelu_layer_and_one_score() -> None:
    objective, hidden = Detector(6, None).double(), torch.randn(2, 5, 6, dtype=torch.float64)
    inner = gelu(hidden @ objective.dense.weight.T + objective.dense.bias)
    torch.testing.assert_close(
        objective(hidden), inner @ objective.scores.weight.T + objective.scores.bias, rtol=0, atol=1e-12
    )


def test_with_a_norm_the_first_token_is_added_to_each() -> None:
    plain, objective = Detector(6, None).double(), Detector(6, lambda width=None: nn.LayerNorm(6)).double()  # type: ignore[arg-type]  # a callable in place of a norm
    objective.load_state_dict(plain.state_dict(), strict=False)
    hidden = torch.randn(2, 5, 6, dtype=torch.float64)
    for position in range(5):
        normalized = nn.functional.layer_norm(hidden[:, 0] + hidden[:, position], (6,))
        torch.testing.assert_close(objective(hidden)[:, position], plain(normalized), rtol=0, atol=1e-12)


def test_all_tokens_but_padding_are_normalized() -> None:
    stream = Stream(torch.arange(6).view(2, 3), documents=torch.tensor([[0, 1, PADDING], [PADDING, 0, 0]]))
    assert not_padding(stream).tolist() == [[0, 0, IGNORED], [IGNORED, 0, 0]]
    assert not not_padding(Stream(stream.tokens)).any()


def test_zero_scores_have_the_loss_of_a_coin_toss() -> None:
    term = loss(torch.zeros(2, 3), torch.tensor([[0, 1, IGNORED], [1, 0, 0]]), 3.0)
    assert (int(term.count), term.weight) == (5, 3.0)
    assert float(term.total) == 5 * torch.tensor(2.0).log()

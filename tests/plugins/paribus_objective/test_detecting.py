"""The head that tells rows apart, and which rows it is asked about."""

import math

import torch
from torch import nn

from paribus import IGNORED, PADDING, Stream
from paribus_objective.detecting import Detector, loss, told


def gelu(x: torch.Tensor) -> torch.Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def test_it_is_dense_gelu_and_one_score() -> None:
    made, hidden = Detector(6, None).double(), torch.randn(2, 5, 6, dtype=torch.float64)
    inner = gelu(hidden @ made.dense.weight.T + made.dense.bias)
    torch.testing.assert_close(made(hidden), inner @ made.scores.weight.T + made.scores.bias, rtol=0, atol=1e-12)


def test_with_a_norm_it_is_told_of_the_first_row() -> None:
    plain, made = Detector(6, None).double(), Detector(6, lambda width=None: nn.LayerNorm(6)).double()  # type: ignore[arg-type]  # a norm, in all but name
    made.load_state_dict(plain.state_dict(), strict=False)
    hidden = torch.randn(2, 5, 6, dtype=torch.float64)
    for row in range(5):
        told_of = nn.functional.layer_norm(hidden[:, 0] + hidden[:, row], (6,))
        torch.testing.assert_close(made(hidden)[:, row], plain(told_of), rtol=0, atol=1e-12)


def test_all_are_told_of_but_padding() -> None:
    stream = Stream(torch.arange(6).view(2, 3), documents=torch.tensor([[0, 1, PADDING], [PADDING, 0, 0]]))
    assert told(stream).tolist() == [[0, 0, IGNORED], [IGNORED, 0, 0]]
    assert not told(Stream(stream.tokens)).any()


def test_the_loss_is_that_of_a_coin_where_nothing_is_known() -> None:
    found = loss(torch.zeros(2, 3), torch.tensor([[0, 1, IGNORED], [1, 0, 0]]), 3.0)
    assert (int(found.count), found.weight) == (5, 3.0)
    assert float(found.total) == 5 * torch.tensor(2.0).log()

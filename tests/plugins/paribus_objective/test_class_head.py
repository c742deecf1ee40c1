"""Class head, compared with its formula."""

import torch

from paribus_objective.class_head import PooledHead


def test_the_head_is_a_tanh_layer_and_a_score_for_each_class() -> None:
    torch.manual_seed(0)
    head = PooledHead(4, 3).double()
    hidden = torch.randn(5, 4, dtype=torch.float64)
    inner = torch.tanh(hidden @ head.dense.weight.T + head.dense.bias)
    torch.testing.assert_close(head(hidden), inner @ head.scores.weight.T + head.scores.bias, rtol=0, atol=1e-12)

"""A parameter that no gradient ever reaches is found, and one that has its first gradient late is not."""

import torch
from torch import nn

from paribus.train.trial_callback import EACH, looked_at, untouched


def test_none_and_zero_throughout_are_no_gradient_and_one_number_is_one() -> None:
    model = nn.ParameterDict({name: nn.Parameter(torch.ones(3)) for name in ("none", "zero", "some")})
    model["zero"].grad = torch.zeros(3)
    model["some"].grad = torch.tensor([0.0, 0.0, -1e-30])
    assert untouched(model, ["none", "zero", "some"]) == ["none", "zero"]
    model["zero"].grad = torch.ones(3)
    assert untouched(model, ["none", "zero"]) == ["none"]
    assert untouched(model, ["none"]) == ["none"]


def test_a_sparse_gradient_is_one() -> None:
    table = nn.Embedding(10, 2, sparse=True)
    assert untouched(table, ["weight"]) == ["weight"]
    table(torch.tensor([3])).sum().backward()
    assert untouched(table, ["weight"]) == []


def test_the_first_steps_and_the_last_are_looked_at_and_few_between() -> None:
    assert [step for step in range(1000) if looked_at(step, 1000)] == [*range(EACH), 8, 16, 32, 64, 128, 256, 512, 999]

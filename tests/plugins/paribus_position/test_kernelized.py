"""KERPLE: the paper's two forms."""

import pytest
import torch

from paribus import Pair, Shape
from paribus_position.kernelized import Kernelized


def pair() -> Pair:
    return Pair(None, None, torch.tensor([[0, 1, 5]]), torch.tensor([[0, 3]]), 1.0, 4, dtype=torch.float64)


@pytest.mark.parametrize("form", ["log", "power"])
def test_matches_the_formula(form: str, shape: Shape) -> None:
    position = Kernelized(shape, form=form).double()  # type: ignore[arg-type]  # one of the two forms
    a, b = torch.tensor([0.5, 1.0, 2.0, -1.0]), torch.tensor([0.3, 1.0, 3.0, -1.0])
    position.factor.data, position.curve.data = a.double(), b.double()
    distances = torch.tensor([[0, 3], [1, 2], [5, 2]], dtype=torch.float64)
    a, b = (values.double().clamp(min=0.01).view(4, 1, 1) for values in (a, b))
    expected = -a * ((1 + b * distances).log() if form == "log" else distances ** b.clamp(max=2))
    torch.testing.assert_close(position.bias(pair()), expected.unsqueeze(0))


def test_the_gradient_at_distance_0_is_0(shape: Shape) -> None:
    position = Kernelized(shape, form="power").double()
    torch.nn.init.ones_(position.factor)
    torch.nn.init.ones_(position.curve)
    position.bias(pair())[0, :, 0, 0].sum().backward()
    assert position.factor.grad is not None
    assert position.curve.grad is not None
    assert not position.factor.grad.any()
    assert not position.curve.grad.any()

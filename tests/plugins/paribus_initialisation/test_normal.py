"""Normal initialisation."""

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor

from paribus import ParameterInfo, Role
from paribus_initialisation.normal import Normal

DRAWN = sorted(set(get_args(Role)) - {"bias", "gain"})


@pytest.mark.parametrize("role", DRAWN)
def test_every_role_has_the_same_standard_deviation(
    role: Role, parameter_info: Callable[..., ParameterInfo], unit: Tensor
) -> None:
    sample = Normal(std=0.05).draw(unit, parameter_info(role))
    assert sample.std().item() == pytest.approx(0.05, rel=0.01)
    assert sample.mean().item() == pytest.approx(0, abs=0.05 / 50)


def test_given_draws_are_scaled(parameter_info: Callable[..., ParameterInfo], unit: Tensor) -> None:
    sample = Normal().draw(unit, parameter_info())
    assert sample.dtype == unit.dtype
    torch.testing.assert_close(sample / 0.02, unit)


def test_the_gain_of_the_placement_is_applied(parameter_info: Callable[..., ParameterInfo], unit: Tensor) -> None:
    torch.testing.assert_close(Normal().draw(unit, parameter_info(gain=0.5)), Normal().draw(unit, parameter_info()) / 2)

"""GPT-2 initialisation."""

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor

from paribus import ParameterInfo, Role
from paribus_initialisation.gpt2 import Gpt2
from paribus_initialisation.normal import Normal

OTHERS = sorted(set(get_args(Role)) - {"bias", "gain", "residual"})


@pytest.mark.parametrize("layers", [1, 12])
def test_a_residual_matrix_has_the_published_standard_deviation(
    layers: int, parameter_info: Callable[..., ParameterInfo], unit: Tensor
) -> None:
    sample = Gpt2().draw(unit, parameter_info("residual", branches=2 * layers))
    assert sample.std().item() == pytest.approx(0.02 / (2 * layers) ** 0.5, rel=0.01)


@pytest.mark.parametrize("role", OTHERS)
def test_other_roles_do_not_depend_on_depth(
    role: Role, parameter_info: Callable[..., ParameterInfo], unit: Tensor
) -> None:
    assert torch.equal(
        Gpt2(std=0.05).draw(unit, parameter_info(role)), Normal(std=0.05).draw(unit, parameter_info(role))
    )


def test_parameters_outside_a_stack_do_not_depend_on_depth(
    parameter_info: Callable[..., ParameterInfo], unit: Tensor
) -> None:
    torch.testing.assert_close(Gpt2().draw(unit, parameter_info("residual", branches=0)), unit * 0.02)


def test_the_gain_of_the_placement_is_applied(parameter_info: Callable[..., ParameterInfo], unit: Tensor) -> None:
    plain = Gpt2().draw(unit, parameter_info("residual"))
    torch.testing.assert_close(Gpt2().draw(unit, parameter_info("residual", gain=0.5)), plain / 2)

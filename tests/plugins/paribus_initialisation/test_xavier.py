"""Xavier initialisation."""

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from paribus import ParameterInfo, Role
from paribus_initialisation.xavier import Xavier

MATRICES = sorted(set(get_args(Role)) - {"bias", "gain", "embedding"})


@pytest.mark.parametrize("role", MATRICES)
def test_the_standard_deviation_of_a_matrix_matches_torch(
    role: Role, parameter_info: Callable[..., ParameterInfo], unit: Tensor
) -> None:
    reference = nn.init.xavier_normal_(torch.empty(300, 200), generator=torch.Generator().manual_seed(4))
    assert Xavier().draw(unit, parameter_info(role)).std().item() == pytest.approx(reference.std().item(), rel=0.02)


def test_a_square_matrix_preserves_variance(parameter_info: Callable[..., ParameterInfo]) -> None:
    unit = torch.randn(256, 256, generator=torch.Generator().manual_seed(5))
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(6))
    mapped = x @ Xavier().draw(unit, parameter_info(shape=(256, 256))).T
    assert mapped.var().item() == pytest.approx(1, rel=0.1)


def test_embedding_vectors_have_a_norm_of_about_1(parameter_info: Callable[..., ParameterInfo], unit: Tensor) -> None:
    sample = Xavier().draw(unit, parameter_info("embedding"))
    assert sample.norm(dim=-1).mean().item() == pytest.approx(1, rel=0.01)


def test_the_gain_of_the_placement_is_applied(parameter_info: Callable[..., ParameterInfo], unit: Tensor) -> None:
    torch.testing.assert_close(Xavier().draw(unit, parameter_info(gain=0.5)), Xavier().draw(unit, parameter_info()) / 2)

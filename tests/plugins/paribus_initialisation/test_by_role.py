"""Initialisation by role, compared with closed forms and with the schemes that it contains."""

from collections.abc import Callable
from typing import get_args

import pytest
import torch
from torch import Tensor

import paribus
from paribus import ParameterInfo, Role, Stream
from paribus_initialisation.by_role import ByRole, Stds
from paribus_initialisation.gpt2 import Gpt2
from paribus_initialisation.normal import Normal

DRAWN = sorted(set(get_args(Role)) - {"bias", "gain"})
STDS = {role: 0.1 * number for number, role in enumerate(DRAWN, start=1) if role not in ("weight", "vector")}


@pytest.mark.parametrize("role", DRAWN)
def test_each_role_has_its_standard_deviation(
    role: Role, parameter_info: Callable[..., ParameterInfo], unit: Tensor
) -> None:
    about, expected = parameter_info(role, gain=0.5), unit * (STDS.get(role, 3.0) * 0.5)
    torch.testing.assert_close(ByRole(std=3.0, stds=Stds(**STDS)).draw(unit, about), expected)
    scaled = ByRole(std=3.0, stds=Stds(**STDS), fan_in=True).draw(unit, about)
    torch.testing.assert_close(scaled, expected if role == "embedding" else expected / 200**0.5)


@pytest.mark.parametrize("role", DRAWN)
def test_the_defaults_are_those_of_normal_and_of_gpt2(
    role: Role, parameter_info: Callable[..., ParameterInfo], unit: Tensor
) -> None:
    about = parameter_info(role)
    torch.testing.assert_close(ByRole().draw(unit, about), Normal().draw(unit, about), rtol=0, atol=0)
    torch.testing.assert_close(ByRole(deep=True).draw(unit, about), Gpt2().draw(unit, about))


@torch.no_grad()
def test_layers_with_zero_residual_projections_start_as_the_identity() -> None:
    changes = ("initialisation={name: by-role, stds: {residual: 0}}", "dims.vocabulary=300", "norm=none", "dropout=0")
    model = paribus.assemble(paribus.spec("gpt2-tiny", *changes)).double().eval()
    tokens = torch.arange(12).view(2, 6)
    output = model.topology.run({"body": Stream(tokens)}, "body", capture=paribus.Capture(hidden=(0,)))
    assert torch.equal(output.hidden, output.captured[0]["input"])

"""Initialisation for gated linear units."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import paribus
from paribus import Capture, ParameterInfo, Stream
from paribus_initialisation.gated_linear_unit import GatedLinearUnit


def test_a_gated_linear_unit_keeps_the_variance(parameter_info: Callable[..., ParameterInfo]) -> None:
    unit = torch.randn(512, 256, generator=torch.Generator().manual_seed(5))
    x = 0.1 * torch.randn(64, 256, generator=torch.Generator().manual_seed(6))  # as small as embedded tokens
    y = functional.glu(x @ GatedLinearUnit().draw(unit, parameter_info("inner", shape=(512, 256))).T)
    assert y.var().item() == pytest.approx(x.var().item(), rel=0.1)


def test_other_matrices_keep_it_without_a_gate(parameter_info: Callable[..., ParameterInfo], unit: Tensor) -> None:
    draw = GatedLinearUnit().draw
    assert torch.equal(2 * draw(unit, parameter_info("query")), draw(unit, parameter_info("inner")))
    assert draw(unit, parameter_info("embedding")).std().item() == pytest.approx(0.1, rel=0.02)


def test_the_gain_of_the_placement_is_applied(parameter_info: Callable[..., ParameterInfo], unit: Tensor) -> None:
    scheme = GatedLinearUnit()
    torch.testing.assert_close(scheme.draw(unit, parameter_info(gain=0.5)), scheme.draw(unit, parameter_info()) / 2)


@pytest.mark.thorough
def test_twenty_layers_of_convs2s_keep_the_scale_of_their_input() -> None:
    sizes = ("dims.width=128", "dims.layers=20", "initialisation=gated", "tokenizer=bytes", "corpus=null")
    model = paribus.assemble(paribus.spec("convs2s-tiny", *sizes)).eval()
    stream = Stream(torch.randint(200, (4, 30), generator=torch.Generator().manual_seed(0)))
    with torch.no_grad():
        output = model.topology.run({"encoder": stream}, "encoder", capture=Capture(hidden=(0,)))
    assert 0.5 < float(output.hidden.std() / output.captured[0]["input"].std()) < 2

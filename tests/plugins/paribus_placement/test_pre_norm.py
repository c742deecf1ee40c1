"""Pre-norm."""

import dataclasses
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

import paribus
from paribus import Load, Shape
from paribus_norm.layer_norm import LayerNorm
from paribus_placement.pre_norm import PreNorm

Sublayers = Mapping[str, Callable[[Tensor], Tensor]]


def distinct(placement: PreNorm) -> None:
    """Give each norm a different gain, so that using the wrong one shows."""
    for index, parameter in enumerate(placement.parameters()):
        parameter.data = torch.linspace(0.5, 1.5 + index, 8, dtype=torch.float64)


def test_matches_the_formula(shape: Shape, sublayers: Sublayers) -> None:
    placement = PreNorm(shape, lambda: LayerNorm(8)).double()
    distinct(placement)
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    a = x + sublayers["attention"](placement.norms["attention"](x))
    b = a + sublayers["cross"](placement.norms["cross"](a))
    c = b + sublayers["feedforward"](placement.norms["feedforward"](b))
    torch.testing.assert_close(placement(x, sublayers), c, atol=1e-12, rtol=0)


def test_it_is_the_identity_for_sublayers_that_return_zero(shape: Shape) -> None:
    placement = PreNorm(shape, lambda: LayerNorm(8)).double()
    distinct(placement)
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    assert torch.equal(placement(x, dict.fromkeys(shape.sublayers, torch.zeros_like)), x)


def test_a_norm_follows_the_last_layer() -> None:
    assert PreNorm.traits["final_norm"] is True


def test_norms_are_named_by_sublayer(shape: Shape) -> None:
    paths = {name for name, _ in PreNorm(shape, lambda: LayerNorm(8, bias=False)).named_parameters()}
    assert paths == {"norms.attention.weight", "norms.cross.weight", "norms.feedforward.weight"}


def test_bare_first_removes_the_first_norm(shape: Shape, sublayers: Sublayers) -> None:
    start = dataclasses.replace(shape, layer=0)
    placement = PreNorm(start, lambda: LayerNorm(8), bare_first=True).double()
    distinct(placement)
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    a = x + sublayers["attention"](x)
    b = a + sublayers["cross"](placement.norms["cross"](a))
    c = b + sublayers["feedforward"](placement.norms["feedforward"](b))
    torch.testing.assert_close(placement(x, sublayers), c, atol=1e-12, rtol=0)


def test_bare_first_removes_no_other_norm(shape: Shape) -> None:
    second = PreNorm(dataclasses.replace(shape, layer=1), lambda: LayerNorm(8), bare_first=True)
    assert second.state_dict().keys() == PreNorm(shape, lambda: LayerNorm(8)).state_dict().keys()


def test_bare_first_is_rejected_for_shared_layers(shape: Shape) -> None:
    with pytest.raises(ValueError, match="bare_first: false, or"):
        PreNorm(shape, lambda: LayerNorm(8), bare_first=True)


def test_matches_a_layer_of_modernbert() -> None:
    from transformers.models.modernbert.modeling_modernbert import ModernBertConfig, ModernBertEncoderLayer

    config = ModernBertConfig(hidden_size=8, num_attention_heads=2, intermediate_size=16, num_hidden_layers=2)
    shape = Shape(width=8, heads=2, head_width=4, length=16, vocabulary=11, layers=2, layer=0)
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    for layer in (0, 1):
        reference = ModernBertEncoderLayer(config, layer).double()
        reference.attn = torch.nn.Identity()
        reference.attn.forward = lambda h, **_: (h.roll(1, -1) * 2, None)
        actual = PreNorm(
            dataclasses.replace(shape, layer=layer), lambda: LayerNorm(8, bias=False), bare_first=True
        ).double()
        distinct(actual)
        reference.mlp_norm.weight.data = actual.norms["feedforward"].weight.data
        if layer:
            reference.attn_norm.weight.data = actual.norms["attention"].weight.data
        y = actual(x, {"attention": lambda h: h.roll(1, -1) * 2, "feedforward": reference.mlp})
        torch.testing.assert_close(y, reference(x), atol=1e-12, rtol=0)


def test_by_depth_divides_norms_by_the_root_of_the_layer(shape: Shape, sublayers: Sublayers) -> None:
    placement = PreNorm(dataclasses.replace(shape, layer=4), lambda: LayerNorm(8), by_depth=True).double()
    distinct(placement)
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    a = x + sublayers["attention"](placement.norms["attention"](x) / 5**0.5)
    b = a + sublayers["cross"](placement.norms["cross"](a) / 5**0.5)
    c = b + sublayers["feedforward"](placement.norms["feedforward"](b) / 5**0.5)
    torch.testing.assert_close(placement(x, sublayers), c, atol=1e-12, rtol=0)


def test_by_depth_needs_a_layer(shape: Shape) -> None:
    with pytest.raises(ValueError, match="`by_depth` needs layers"):
        PreNorm(dataclasses.replace(shape, layer=None), lambda: LayerNorm(8), by_depth=True)


def test_gates_multiply_projected_outputs_of_attentions(shape: Shape, sublayers: Sublayers) -> None:
    placement = PreNorm(shape, lambda: LayerNorm(8), gate=True).double()
    for path, parameter in placement.named_parameters():
        parameter.data = torch.randn_like(parameter) if path.startswith("gates.") else parameter.data
    x = torch.randn(2, 3, 8, dtype=torch.float64)

    def gated(name: str, h: Tensor) -> Tensor:
        return sublayers[name](h) / (1 + (-h @ placement.get_parameter(f"gates.{name}.weight").T).exp())

    a = x + gated("attention", placement.norms["attention"](x))
    b = a + gated("cross", placement.norms["cross"](a))
    c = b + sublayers["feedforward"](placement.norms["feedforward"](b))
    torch.testing.assert_close(placement(x, sublayers), c, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("attention", "position"), [("{name: restricted, window: 3}", "rope"), ("mla", "alibi"), ("gated-delta", "none")]
)
def test_gates_decode_step_by_step_as_in_one_pass(attention: str, position: str) -> None:
    overrides = f"attention={attention}", f"position={position}", "placement={name: pre, gate: true}"
    model = paribus.assemble(paribus.spec("gpt-tiny", *overrides)).double()
    tokens = torch.randint(0, 200, (2, 9))
    states = model.start(2, 9)
    steps = [model.hidden(chunk, states) for chunk in tokens.split([4, 1, 3, 1], dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), model.hidden(tokens), atol=1e-10, rtol=0)


def test_gates_count_in_the_cost_of_a_placement(shape: Shape) -> None:
    gated = PreNorm(shape, lambda: LayerNorm(8), gate=True)
    assert gated.cost(Load(queries=5, keys=5)).flops == 2 * 2 * 5 * 8 * 8
    assert PreNorm(shape, lambda: LayerNorm(8)).cost(Load(queries=5, keys=5)).flops == 0

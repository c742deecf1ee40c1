"""T5 initialisation, compared with its code and with a random model."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import paribus
from paribus import ParameterInfo, Role
from paribus_initialisation.t5 import T5


@pytest.mark.parametrize(
    ("role", "path", "std"),
    [
        ("query", "body.layers.0.attention.heads.q.weight", (200 * 25) ** -0.5),
        ("key", "body.layers.0.attention.heads.k.weight", 200**-0.5),
        ("value", "body.layers.0.attention.heads.v.weight", 200**-0.5),
        ("residual", "body.layers.0.attention.heads.o.weight", 200**-0.5),
        ("inner", "body.layers.0.feedforward.inner.weight", 200**-0.5),
        ("embedding", "embedding.tokens.weight", 1.0),
        ("head", "embedding.head.weight", 1.0),
        ("head", "objectives.mlm.transform.weight", 200**-0.5),
        ("embedding", "body.position.0.table.weight", 200**-0.5),
        ("weight", "body.position.0.outer.weight", 200**-0.5),
    ],
)
def test_each_role_has_its_standard_deviation(
    role: Role, path: str, std: float, parameter_info: Callable[..., ParameterInfo], unit: Tensor
) -> None:
    assert torch.equal(T5().draw(unit, parameter_info(role, path=path)), unit * std)


def test_residual_projections_use_their_fan_in(parameter_info: Callable[..., ParameterInfo]) -> None:
    unit = torch.ones(200, 50)
    torch.testing.assert_close(T5().draw(unit, parameter_info("residual", shape=(200, 50))), unit * 50**-0.5)


def test_the_gain_and_the_factor_are_applied(parameter_info: Callable[..., ParameterInfo], unit: Tensor) -> None:
    plain = T5().draw(unit, parameter_info("query"))
    torch.testing.assert_close(T5().draw(unit, parameter_info("query", gain=0.5)), plain / 2)
    torch.testing.assert_close(T5(factor=2.0).draw(unit, parameter_info("query")), plain * 2)


def test_initial_weights_have_the_spread_of_t5() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=96, d_kv=16, num_heads=4, d_ff=160, num_layers=1, num_decoder_layers=1, vocab_size=300,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    torch.manual_seed(0)
    reference = dict(T5ForConditionalGeneration(config).named_parameters())
    overrides = ("dims.width=96", "dims.heads=4", "dims.head_width=16", "dims.layers=1")
    glu = ("feedforward=glu", "feedforward.activation=gelu-tanh", "feedforward.inner=160", "initialisation=t5")
    actual = dict(paribus.assemble(paribus.spec("seq2seq-tiny", *overrides, *glu)).named_parameters())
    pairs = {
        "embedding.tokens.weight": "shared.weight",
        **{
            f"body.layers.0.{actual}.heads.{name}.weight": f"decoder.block.0.layer.{place}.{name}.weight"
            for actual, place in (("attention", "0.SelfAttention"), ("cross", "1.EncDecAttention"))
            for name in "qkvo"
        },
        **{
            f"{stack}.layers.0.feedforward.{name}.weight": f"{hf_name}.DenseReluDense.{hf_module}.weight"
            for stack, hf_name in (("encoder", "encoder.block.0.layer.1"), ("body", "decoder.block.0.layer.2"))
            for name, hf_module in (("gate", "wi_0"), ("inner", "wi_1"), ("outer", "wo"))
        },
    }
    for path, hf_module in pairs.items():
        assert actual[path].std().item() == pytest.approx(reference[hf_module].std().item(), rel=0.05), path

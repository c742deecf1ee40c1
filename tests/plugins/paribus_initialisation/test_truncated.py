"""Truncated normal initialisation, compared with torch and with the distribution."""

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import paribus
from paribus import ParameterInfo
from paribus_initialisation.gpt2 import Gpt2
from paribus_initialisation.truncated import Truncated, truncated


@pytest.mark.parametrize("cutoff", [0.5, 2.0, 3.0])
def test_draws_have_the_truncated_distribution(cutoff: float, unit: Tensor) -> None:
    truncated_draws = truncated(unit, cutoff).double().flatten()
    assert truncated_draws.abs().max().item() <= cutoff
    assert stats.kstest(truncated_draws.numpy(), stats.truncnorm(-cutoff, cutoff).cdf).pvalue > 0.01


@pytest.mark.parametrize("cutoff", [0.5, 2.0, 3.0])
def test_draws_keep_their_quantile(cutoff: float) -> None:
    unit = torch.linspace(-5, 5, 101, dtype=torch.float64)
    shares = stats.norm.cdf(unit.numpy())
    expected = torch.from_numpy(stats.truncnorm(-cutoff, cutoff).ppf(shares))
    torch.testing.assert_close(truncated(unit, cutoff), expected, atol=1e-9, rtol=0)


def test_no_draw_changes_its_sign_or_its_rank(unit: Tensor) -> None:
    truncated_draws = truncated(unit.double(), 2.0)
    assert torch.equal(torch.signbit(truncated_draws), torch.signbit(unit))
    assert torch.equal(truncated_draws.flatten().argsort(), unit.double().flatten().argsort())


def test_a_large_cutoff_changes_nothing(unit: Tensor) -> None:
    torch.testing.assert_close(truncated(unit, 8.0), unit)


@pytest.mark.parametrize("largest", [6.7, -6.7, 40.0])
def test_the_largest_draws_stay_finite(largest: float) -> None:
    assert truncated(torch.tensor([largest]), 2.0).item() == pytest.approx(math.copysign(2.0, largest))
    assert math.isfinite(truncated(torch.tensor([largest]), 100.0).item())


def test_the_standard_deviation_matches_torch(parameter_info: Callable[..., ParameterInfo], unit: Tensor) -> None:
    reference = nn.init.trunc_normal_(
        torch.empty(300, 200), std=0.02, a=-0.04, b=0.04, generator=torch.Generator().manual_seed(1)
    )
    actual = Truncated().draw(unit, parameter_info("inner"))
    assert actual.std().item() == pytest.approx(reference.std().item(), rel=0.02)
    assert actual.abs().max().item() <= 0.04


def test_residual_projections_are_divided_as_in_gpt2(
    parameter_info: Callable[..., ParameterInfo], unit: Tensor
) -> None:
    deep, shallow = Truncated(cutoff=8.0), Truncated(cutoff=8.0, deep=False)
    torch.testing.assert_close(
        deep.draw(unit, parameter_info("residual")), Gpt2().draw(unit, parameter_info("residual"))
    )
    torch.testing.assert_close(shallow.draw(unit, parameter_info("residual")), unit * 0.02)


def test_heads_may_have_another_standard_deviation(parameter_info: Callable[..., ParameterInfo], unit: Tensor) -> None:
    plain = Truncated().draw(unit, parameter_info("head"))
    torch.testing.assert_close(Truncated(head=0.005).draw(unit, parameter_info("head")), plain / 4)
    assert torch.equal(
        Truncated(head=0.005).draw(unit, parameter_info("inner")), Truncated().draw(unit, parameter_info("inner"))
    )


def test_the_gain_of_the_placement_is_applied(parameter_info: Callable[..., ParameterInfo], unit: Tensor) -> None:
    torch.testing.assert_close(
        Truncated().draw(unit, parameter_info(gain=0.5)), Truncated().draw(unit, parameter_info()) / 2
    )


def test_initial_weights_have_the_spread_of_modernbert() -> None:
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    config = ModernBertConfig(
        hidden_size=96, num_attention_heads=4, intermediate_size=160, num_hidden_layers=2, vocab_size=300,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    reference = dict(ModernBertForMaskedLM(config).named_parameters())
    glu = ("feedforward=glu", "feedforward.activation=gelu", "feedforward.inner=160")
    scheme = ("initialisation=truncated", f"initialisation.head={0.02 / 4**0.5}", "objective.transform=true")
    spec = paribus.spec("encoder-tiny", "dims.width=96", "dims.heads=4", "dims.layers=2", *glu, *scheme)
    actual = dict(paribus.assemble(spec).named_parameters())
    pairs = {
        "embedding.tokens.weight": "model.embeddings.tok_embeddings.weight",
        "body.layers.1.attention.heads.k.weight": "model.layers.1.attn.Wqkv.weight",
        "body.layers.1.attention.heads.o.weight": "model.layers.1.attn.Wo.weight",
        "body.layers.1.feedforward.gate.weight": "model.layers.1.mlp.Wi.weight",
        "body.layers.1.feedforward.outer.weight": "model.layers.1.mlp.Wo.weight",
        "objectives.mlm.dense.weight": "head.dense.weight",
    }
    for path, hf_module in pairs.items():
        assert actual[path].std().item() == pytest.approx(reference[hf_module].std().item(), rel=0.05), path
        assert actual[path].abs().max().item() == pytest.approx(reference[hf_module].abs().max().item(), rel=0.01), path

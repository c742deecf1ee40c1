"""Sandwich norm."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from paribus import Placement, Shape
from paribus_norm.layer_norm import LayerNorm
from paribus_norm.root_mean_square_norm import RootMeanSquareNorm
from paribus_placement.pre_norm import PreNorm
from paribus_placement.sandwich_norm import SandwichNorm

Sublayers = Mapping[str, Callable[[Tensor], Tensor]]
Randomise = Callable[[Placement], Placement]


def test_branches_have_norms_before_and_after(
    shape: Shape, sublayers: Sublayers, randomise: Randomise, x: Tensor
) -> None:
    placement = randomise(SandwichNorm(shape, lambda: LayerNorm(8)))
    norm, behind = placement.get_submodule("norms"), placement.get_submodule("behind")
    y = x
    for name in ("attention", "cross", "feedforward"):
        y = y + behind.get_submodule(name)(sublayers[name](norm.get_submodule(name)(y)))
    torch.testing.assert_close(placement(x, sublayers), y, atol=1e-12, rtol=0)


def test_branch_outputs_have_mean_0_and_variance_1(shape: Shape, x: Tensor) -> None:
    placement = SandwichNorm(shape, lambda: LayerNorm(8, eps=1e-12)).double()
    added = placement(x, {"attention": lambda h: 1000 * h.cumsum(-1) + 5}) - x
    torch.testing.assert_close(added.mean(-1), torch.zeros(2, 3, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(added.var(-1, correction=0), torch.ones(2, 3, dtype=torch.float64), atol=1e-9, rtol=0)


def test_it_is_the_identity_for_sublayers_that_return_zero(shape: Shape, x: Tensor) -> None:
    placement = SandwichNorm(shape, lambda: LayerNorm(8)).double()
    assert torch.equal(placement(x, dict.fromkeys(shape.sublayers, torch.zeros_like)), x)


def test_it_has_the_norms_of_pre_norm_and_as_many_after(shape: Shape) -> None:
    actual = set(SandwichNorm(shape, lambda: LayerNorm(8)).state_dict())
    reference = set(PreNorm(shape, lambda: LayerNorm(8)).state_dict())
    assert actual - reference == {path.replace("norms.", "behind.") for path in reference}
    assert SandwichNorm.traits["final_norm"] is True


def test_matches_a_layer_of_olmo_2_without_norms_of_inputs(randomise: Randomise, x: Tensor) -> None:
    from transformers.models.olmo2.modeling_olmo2 import Olmo2Config, Olmo2DecoderLayer

    config = Olmo2Config(hidden_size=8, num_attention_heads=2, intermediate_size=16, rms_norm_eps=1e-6)
    reference = Olmo2DecoderLayer(config, 0).double()
    reference.self_attn.forward = lambda hidden_states, **_: (hidden_states.roll(1, -1) * 2, None)
    plain = Shape(width=8, heads=2, head_width=4, length=16, vocabulary=11, layers=2)
    actual = randomise(SandwichNorm(plain, lambda: RootMeanSquareNorm(8), inputs=False))
    twins = {"attention": reference.post_attention_layernorm, "feedforward": reference.post_feedforward_layernorm}
    assert set(actual.state_dict()) == {f"behind.{name}.weight" for name in twins}
    for name, hf_module in twins.items():
        hf_module.weight.data = actual.get_parameter(f"behind.{name}.weight").data
    y = actual(x, {"attention": lambda h: h.roll(1, -1) * 2, "feedforward": reference.mlp})
    torch.testing.assert_close(y, reference(x, position_embeddings=None).double(), atol=1e-5, rtol=1e-5)


def test_matches_a_layer_of_gemma_2(randomise: Randomise, x: Tensor) -> None:
    from transformers.models.gemma2.modeling_gemma2 import Gemma2Config, Gemma2DecoderLayer

    config = Gemma2Config(
        hidden_size=8, num_attention_heads=2, num_key_value_heads=1, head_dim=4, intermediate_size=16, rms_norm_eps=1e-6
    )
    reference = Gemma2DecoderLayer(config, 0).double()
    reference.self_attn.forward = lambda hidden_states, **_: (hidden_states.roll(1, -1) * 2, None)
    plain = Shape(width=8, heads=2, head_width=4, length=16, vocabulary=11, layers=2)
    actual = randomise(SandwichNorm(plain, lambda: RootMeanSquareNorm(8)))
    twins = {
        "norms.attention": reference.input_layernorm,
        "behind.attention": reference.post_attention_layernorm,
        "norms.feedforward": reference.pre_feedforward_layernorm,
        "behind.feedforward": reference.post_feedforward_layernorm,
    }
    for path, hf_module in twins.items():
        hf_module.weight.data = actual.get_parameter(f"{path}.weight").data - 1  # Gemma multiplies by 1 + weight
    y = actual(x, {"attention": lambda h: h.roll(1, -1) * 2, "feedforward": reference.mlp})
    # Gemma normalises in float32, in any precision.
    torch.testing.assert_close(y, reference(x, position_embeddings=None).double(), atol=1e-5, rtol=1e-5)

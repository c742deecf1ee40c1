"""Parallel sublayers."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from paribus import Placement, Shape
from paribus_norm.layer_norm import LayerNorm
from paribus_placement.parallel import Parallel

Sublayers = Mapping[str, Callable[[Tensor], Tensor]]
Randomise = Callable[[Placement], Placement]


def test_sublayers_share_one_norm(shape: Shape, sublayers: Sublayers, randomise: Randomise, x: Tensor) -> None:
    placement = randomise(Parallel(shape, lambda: LayerNorm(8)))
    h = placement.get_submodule("norms.attention")(x)
    y = x + sublayers["attention"](h) + sublayers["cross"](h) + sublayers["feedforward"](h)
    torch.testing.assert_close(placement(x, sublayers), y, atol=1e-12, rtol=0)
    assert placement.state_dict().keys() == {"norms.attention.weight", "norms.attention.bias"}


def test_sublayers_may_have_separate_norms(shape: Shape, sublayers: Sublayers, randomise: Randomise, x: Tensor) -> None:
    placement = randomise(Parallel(shape, lambda: LayerNorm(8), shared_norm=False))
    y = x + sum(sublayers[name](placement.get_submodule(f"norms.{name}")(x)) for name in shape.sublayers)
    torch.testing.assert_close(placement(x, sublayers), y, atol=1e-12, rtol=0)


def test_the_order_of_sublayers_does_not_matter(shape: Shape, sublayers: Sublayers, x: Tensor) -> None:
    placement = Parallel(shape, lambda: LayerNorm(8)).double()
    turned = dict(reversed(list(sublayers.items())))
    torch.testing.assert_close(placement(x, sublayers), placement(x, turned), atol=1e-12, rtol=0)


def test_it_is_the_identity_for_sublayers_that_return_zero(shape: Shape, x: Tensor) -> None:
    placement = Parallel(shape, lambda: LayerNorm(8)).double()
    assert torch.equal(placement(x, dict.fromkeys(shape.sublayers, torch.zeros_like)), x)
    assert Parallel.traits["final_norm"] is True


def test_matches_a_layer_of_gpt_neox(randomise: Randomise, x: Tensor) -> None:
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXConfig, GPTNeoXLayer

    reference = (
        GPTNeoXLayer(GPTNeoXConfig(hidden_size=8, num_attention_heads=2, intermediate_size=16), 0).double().eval()
    )
    reference.attention.forward = lambda h, **_: (h.roll(1, -1) * 2, None)
    plain = Shape(width=8, heads=2, head_width=4, length=16, vocabulary=11, layers=2)
    actual = randomise(Parallel(plain, lambda: LayerNorm(8), shared_norm=False))
    reference.input_layernorm.load_state_dict(actual.get_submodule("norms.attention").state_dict())
    reference.post_attention_layernorm.load_state_dict(actual.get_submodule("norms.feedforward").state_dict())
    y = actual(x, {"attention": lambda h: h.roll(1, -1) * 2, "feedforward": reference.mlp})
    torch.testing.assert_close(y, reference(x), atol=1e-12, rtol=0)


def test_matches_a_layer_of_gpt_j(randomise: Randomise, x: Tensor) -> None:
    from transformers.models.gptj.modeling_gptj import GPTJBlock, GPTJConfig

    config = GPTJConfig(n_embd=8, n_head=2, rotary_dim=4, n_inner=16, attn_implementation="eager")
    reference = GPTJBlock(config, 0).double().eval()
    reference.attn.forward = lambda hidden_states, **_: (hidden_states.roll(1, -1) * 2, None)
    plain = Shape(width=8, heads=2, head_width=4, length=16, vocabulary=11, layers=2)
    actual = randomise(Parallel(plain, lambda: LayerNorm(8)))
    reference.ln_1.load_state_dict(actual.get_submodule("norms.attention").state_dict())
    y = actual(x, {"attention": lambda h: h.roll(1, -1) * 2, "feedforward": reference.mlp})
    torch.testing.assert_close(y, reference(x)[0], atol=1e-12, rtol=0)

"""Keys and values that successive layers share (`share_kv` of `gqa`)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import paribus
from paribus import PADDING, Load, Memory, ScoreOptions, Shape, Stack, TokenLayout
from paribus.parts.stack import Layer
from paribus_attention import attention

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
RAMP = torch.arange(9).unsqueeze(0)
PACKED = TokenLayout(RAMP % 5, torch.tensor([[0] * 5 + [1] * 4, [0] * 5 + [1] * 2 + [PADDING] * 2]))
SHAPE = Shape(12, 4, 4, 64, 11, 4, causal=True)
TINY = ("dims.width=32", "dims.heads=4", "dims.layers=5", "dims.length=16", "dims.vocabulary=300")
SHARED = ("attention={name: gqa, share_kv: 2, scores: {qk_norm: true}}", *TINY)


def reference(stack: Stack, x: Tensor, share: int, visible: Tensor) -> Tensor:
    """Layers in float64, in which all of a group attend to the keys and values of its first layer."""
    k = v = torch.empty(0)
    for index, layer in enumerate(stack.layers):
        module: Any = layer
        heads = module.attention.heads
        if index % share == 0:
            k, v = (part(x).repeat_interleave(2, 1) for part in (heads.keys, heads.values))
        scores = heads.queries(x) @ k.mT / 2  # the root of a head width of 4
        x = x + heads.merge(scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v)
    return x


@pytest.mark.parametrize("share", [2, 3, 9])
def test_layers_of_a_group_read_keys_and_values_of_the_first(share: int, build_stack: BuildStack, randn: Randn) -> None:
    stack, x = build_stack("gqa", layers=5, residual=True, share_kv=share), randn(2, 9, 12)
    expected = reference(stack, x, share, torch.ones(9, 9, dtype=torch.bool).tril())
    assert torch.allclose(stack(x, TokenLayout(RAMP)).hidden, expected, rtol=0, atol=1e-12)
    names = {name for name, _ in stack.named_parameters() if ".k." in name or ".v." in name}
    assert {int(name.split(".")[1]) for name in names} == set(range(0, 5, share))


def test_packed_documents_equal_separate_ones(build_stack: BuildStack, randn: Randn) -> None:
    stack, x = build_stack("gqa", "rope", layers=3, residual=True, share_kv=2), randn(2, 9, 12)
    together = stack(x, PACKED).hidden
    for row, start, stop in ((0, 0, 5), (0, 5, 9), (1, 0, 5), (1, 5, 7)):
        alone = stack(x[row : row + 1, start:stop], TokenLayout(RAMP[:, : stop - start])).hidden
        assert torch.allclose(together[row, start:stop], alone[0], rtol=0, atol=1e-12)


def test_only_first_layers_have_a_cache_and_decoding_equals_one_pass(build_stack: BuildStack, randn: Randn) -> None:
    stack, x = build_stack("gqa", "rope", layers=5, residual=True, share_kv=2), randn(2, 9, 12)
    states = stack.start(2, 9)
    assert [sorted(layer["attention"]) for layer in states.layers] == [["k", "v"], [], ["k", "v"], [], ["k", "v"]]
    parts = [
        stack(x[:, start:stop], TokenLayout(RAMP[:, start:stop]), states=states).hidden
        for start, stop in ((0, 4), (4, 5), (5, 9))
    ]
    assert torch.allclose(torch.cat(parts, 1), stack(x, TokenLayout(RAMP)).hidden, rtol=0, atol=1e-12)


def test_cross_attention_shares_keys_of_the_memory(build_stack: BuildStack, randn: Randn) -> None:
    stack = build_stack("gqa", layers=2, residual=True, memory_width=12, share_kv=2)
    x, memory = randn(2, 3, 12), Memory(randn(2, 5, 12, seed=1), TokenLayout(torch.arange(5).unsqueeze(0)))
    ramp = TokenLayout(torch.arange(3).unsqueeze(0))
    expected = stack(x, ramp, memory).hidden
    states = stack.start(2, 3)
    steps = [stack(x[:, t : t + 1], TokenLayout(torch.tensor([[t]])), memory, states=states).hidden for t in range(3)]
    assert torch.allclose(torch.cat(steps, 1), expected, rtol=0, atol=1e-12)


def test_costs_leave_out_what_a_layer_reads() -> None:
    first, second = (attention()["gqa"](replace(SHAPE, layer=layer), share_kv=2) for layer in (0, 1))
    load = Load(8, 8)
    assert first.cost(load).flops - second.cost(load).flops == 2 * 2 * 8 * 12 * 8  # two maps of 12 columns to 8
    assert (first.cost(load).state, second.cost(load).state) == (2 * 8 * 8, 0)


def test_recomputed_activations_give_the_same_gradients() -> None:
    model = paribus.assemble(paribus.spec("gpt-tiny", *SHARED)).double().train()
    tokens = torch.randint(0, 200, (2, 16), generator=torch.Generator().manual_seed(0))
    gradients = []
    for recomputes in (False, True):
        for module in model.modules():
            if isinstance(module, Layer):
                module.recomputes = recomputes
        model.zero_grad()
        model(tokens)[0].square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    assert len(gradients[0]) == len(list(model.parameters()))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        (SHAPE, {}, "dims.groups"),
        (replace(SHAPE, layer=1), {"scores": ScoreOptions(kernel=4)}, "scores.kernel"),
        (replace(SHAPE, layer=1), {"scores": ScoreOptions(value_residual=True)}, "scores.value_residual"),
    ],
)
def test_options_of_keys_that_a_layer_does_not_have_are_rejected(
    shape: Shape, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        attention()["gqa"](shape, share_kv=2, **options)


def test_a_first_layer_with_other_keys_is_an_error() -> None:
    kinds = "attention=[mha, {name: gqa, share_kv: 2}]"
    model = paribus.assemble(paribus.spec("gpt-tiny", *TINY, kinds))
    with pytest.raises(ValueError, match=r"layer 1 .* of layer 0"):
        model(torch.zeros(1, 4, dtype=torch.long))

"""Query stream: tokens appended behind the keys that attend but are never attended to."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import PADDING, Capture, Load, TokenLayout, append_copies
from paribus.complexity.counting import flop_counter
from paribus.kernels import KERNELS
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.testing.small_model import SmallModel, max_difference, noise

TINY = ("dims={width: 16, layers: 2, heads: 4, length: 32}", "placement=post")
LENGTH = 7
AT = torch.tensor([[3, 0, 5], [6, 6, 2]])
ORDER = torch.tensor([[0, 0, 4, 2, 0, 6, 0], [0, 2, 0, 0, 4, 0, 6]])
DOCUMENTS = torch.tensor([[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0, PADDING]])


@pytest.fixture(scope="module")
def components() -> Registry:
    return installed(no_plugins=True)


def make_model(components: Registry, *overrides: str, **options: Any) -> SmallModel:
    return SmallModel(resolved("encoder-tiny", *TINY, *overrides, registry=components), components, **options)


def streams(kind: str) -> tuple[TokenLayout, TokenLayout]:
    """Return the layout of all tokens, and that of the keys."""
    ramp = torch.arange(LENGTH).unsqueeze(0)
    keys = {
        "plain": TokenLayout(ramp, None, None, ramp),
        "ordered": TokenLayout(ramp, None, ORDER),
        "apart": TokenLayout(ramp, DOCUMENTS, ORDER),
        "padded": TokenLayout(ramp - 2, DOCUMENTS),
    }[kind]
    rows = keys.append_copies(AT)
    if rows.order is not None:
        rows = rows._replace(order=torch.cat([rows.order[:, :LENGTH], rows.order[:, LENGTH:] - 1], dim=1))
    return rows, keys


def reference_stack(specimen: SmallModel, x: Tensor, rows: TokenLayout, keys: TokenLayout) -> Tensor:
    """Compute the stack token by token."""
    stack: Any = specimen.stack()
    shape = stack.shape
    for layer in stack.layers:
        heads, norms = layer.attention.heads, layer.placement.norms
        mixed = torch.zeros_like(x)
        for b in range(x.shape[0]):
            for i in range(x.shape[1]):
                q = heads.q(x[b, i]).view(shape.heads, -1)
                visible_keys = [j for j in range(LENGTH) if sees(rows, keys, b, i, j)]
                head_outputs = torch.zeros_like(q)
                for h in range(shape.heads if visible_keys else 0):
                    k = [heads.k(x[b, j]).view(shape.heads, -1)[h] for j in visible_keys]
                    v = [heads.v(x[b, j]).view(shape.heads, -1)[h] for j in visible_keys]
                    scores = torch.stack([q[h] @ key for key in k]) / math.sqrt(shape.head_width)
                    head_outputs[h] = sum(weight * value for weight, value in zip(scores.softmax(0), v, strict=True))
                mixed[b, i] = heads.o(head_outputs.flatten())
        x = norms["attention"](x + mixed)
        x = norms["feedforward"](x + layer.feedforward(x)[0])
    return x


def sees(rows: TokenLayout, keys: TokenLayout, b: int, i: int, j: int) -> bool:
    if rows.order is not None and keys.order is not None and int(keys.order[b, j]) > int(rows.order[b, i]):
        return False
    if rows.documents is None or keys.documents is None:
        return True
    return 0 <= int(keys.documents[b, j]) == int(rows.documents[b, i])


@pytest.mark.parametrize("kind", ["plain", "ordered", "apart", "padded"])
def test_appended_queries_equal_a_reference_in_loops(kind: str, components: Registry) -> None:
    specimen = make_model(components, "position=none")
    rows, keys = streams(kind)
    x = noise("rows", 2, LENGTH + AT.shape[1], 16)
    with torch.no_grad():
        got = specimen.stack()(x, rows, keys=keys).hidden
        torch.testing.assert_close(got, reference_stack(specimen, x, rows, keys), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["plain", "ordered", "apart"])
@pytest.mark.parametrize(
    "overrides",
    [
        ("position=rope",),
        ("position=learned",),
        ("position=t5", "attention=gqa"),
        ("position=fire", "attention={name: mha, scores: {sinks: true, value_residual: true, qk_norm: true}}"),
        ("position=disentangled", "attention=mqa"),
        ("position=transformer-xl",),
        ("position=rope", "attention=mla"),
        ("position=rope", "attention={name: restricted, window: 3}"),
        ("position=none", "attention={name: block-sparse, block_size: 2}"),
    ],
    ids=" ".join,
)
def test_every_kernel_equals_eager_with_appended_queries(
    overrides: tuple[str, ...], kind: str, components: Registry
) -> None:
    *faster, readable = KERNELS
    rows, keys = streams(kind)
    x = noise("rows", 2, LENGTH + AT.shape[1], 16)
    results = []
    for kernels in (faster, [readable]):
        specimen = make_model(components, *overrides, kernels=[*kernels, readable])
        hidden = specimen.stack()(x, rows, keys=keys).hidden
        loss = (hidden * noise("loss", *hidden.shape)).sum()
        grads = torch.autograd.grad(loss, list(specimen.stack().layers.parameters()))
        results.append([hidden, *(grad.reshape(1, -1) for grad in grads)])
    assert max(map(max_difference, *results)) < 1e-9


def test_rerunning_the_last_layer_equals_appended_queries(components: Registry) -> None:
    specimen = make_model(components, "attention={name: mha, scores: {value_residual: true}}", "placement=pre")
    stack = specimen.stack()
    _, keys = streams("plain")
    x, queries = noise("rows", 2, LENGTH, 16), noise("asking", 2, 3, 16)
    with torch.no_grad():
        output = stack(x, keys, capture=Capture(last_layer_input=True))
        assert output.last_layer_input is not None
        index = AT.unsqueeze(-1).expand(-1, -1, 16)
        rerun = stack.rerun_last_layer(output.last_layer_input, output.last_layer_input.x.gather(1, index), AT, 1)
        torch.testing.assert_close(rerun, output.hidden.gather(1, index), rtol=0, atol=1e-12)
        first_pass = last_layer(stack, output.last_layer_input.x, queries, keys)
        torch.testing.assert_close(
            stack.rerun_last_layer(output.last_layer_input, queries, AT, 1), stack.norm(first_pass), rtol=0, atol=1e-12
        )
        second_pass = last_layer(stack, output.last_layer_input.x, first_pass, keys)
        torch.testing.assert_close(
            stack.rerun_last_layer(output.last_layer_input, queries, AT, 2), stack.norm(second_pass), rtol=0, atol=1e-12
        )


def last_layer(stack: Any, content: Tensor, queries: Tensor, keys: TokenLayout) -> Tensor:
    """Compute the last layer on content and queries, before the final norm, with the values of the first layer."""
    last_layer, first_attention = stack.layers[-1], stack.layers[0].attention
    both = torch.cat([content, queries], dim=1)
    normed = last_layer.placement.norms["attention"]
    q, k = last_layer.attention.heads.q(normed(both)), last_layer.attention.heads.k(normed(content))
    first_values = first_attention.heads.v(stack.layers[0].placement.norms["attention"](noise("rows", 2, LENGTH, 16)))
    share = 0.5 + last_layer.attention.attend.own_share
    v = share * last_layer.attention.heads.v(normed(content)) + (1 - share) * first_values
    positions = keys.append_copies(AT).positions
    turn = stack.position[0]
    q, k, v = (x.view(2, -1, 4, 4).transpose(1, 2) for x in (q, k, v))
    q = turn.rotate(q, turn.tables(positions, 4), "query")
    k = turn.rotate(k, turn.tables(keys.positions, 4), "key")
    mixed = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
    x = both + last_layer.attention.heads.o(mixed.transpose(1, 2).flatten(-2))
    output: Tensor = (x + last_layer.feedforward(last_layer.placement.norms["feedforward"](x))[0])[:, LENGTH:]
    return output


def test_a_given_order_decides_which_tokens_are_visible(components: Registry) -> None:
    specimen = make_model(components)
    x, ramp = noise("rows", 2, LENGTH, 16), torch.arange(LENGTH).unsqueeze(0)
    baseline = specimen.stack()(x, TokenLayout(ramp, None, ORDER)).hidden
    x[:, 2] += 1
    changed = (specimen.stack()(x, TokenLayout(ramp, None, ORDER)).hidden - baseline).abs().amax(-1) > 1e-12
    assert changed.tolist() == (ORDER[:, 2:3] <= ORDER).tolist()


def test_appended_queries_of_a_causal_model_need_an_order(components: Registry) -> None:
    specimen = SmallModel(resolved("gpt-tiny", registry=components), components)
    ramp = torch.arange(LENGTH).unsqueeze(0)
    with pytest.raises(AssertionError, match="expected an order for extra queries"):
        specimen.stack()(noise("rows", 2, 10, 64), TokenLayout(ramp).append_copies(AT), keys=TokenLayout(ramp))


def test_appended_queries_do_not_support_decoding_states(components: Registry) -> None:
    specimen = SmallModel(resolved("gpt-tiny", registry=components), components)
    rows, keys = streams("ordered")
    with pytest.raises(AssertionError, match="whole sequences"):
        specimen.stack()(noise("rows", 2, 10, 64), rows, None, specimen.topology.start(2, 12), keys=keys)


@pytest.mark.parametrize("attention", ["mha", "gqa", "mla", "talking-heads", "differential", "dot"])
def test_costs_of_an_attention_include_appended_queries_but_no_keys(attention: str, components: Registry) -> None:
    position = "position=none" if attention == "differential" else "position=transformer-xl"
    specimen = make_model(components, f"attention={attention}", position, initialized=False)
    specimen.topology.to("meta")
    stack: Any = specimen.stack()
    ramp = torch.arange(LENGTH, device="meta").unsqueeze(0)
    x, query_positions = torch.empty(1, LENGTH + 3, 16, device="meta"), AT[:1].to("meta")
    with flop_counter() as counter:
        stack(x.double(), TokenLayout(ramp).append_copies(query_positions), keys=TokenLayout(ramp))
    load = Load(LENGTH + 3, LENGTH)
    costs = [
        part.cost(load)
        for stack_layer in stack.layers
        for part in (stack_layer.attention, stack_layer.feedforward, stack.position[0])
    ]
    assert sum(cost.flops for cost in costs) == counter.get_total_flops()


def test_append_copies_expands_a_shared_row() -> None:
    both = append_copies(torch.arange(LENGTH).unsqueeze(0), AT)
    assert both.tolist() == [[*range(LENGTH), 3, 0, 5], [*range(LENGTH), 6, 6, 2]]

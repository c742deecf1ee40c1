"""MUDD, compared with its equations; and attentions that read separate inputs of queries, keys and values."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor
from torch.nn import functional

import paribus
from paribus import Context, Shape, TokenLayout
from paribus.registry import installed
from paribus_norm.layer_norm import LayerNorm
from paribus_placement.multiway_dense import MultiwayDense
from paribus_placement.pre_norm import PreNorm

Sublayers = Mapping[str, Callable[[Any], Tensor]]
LAYOUT = TokenLayout(torch.arange(3).unsqueeze(0))
ONE_DOCUMENT = Context((), LAYOUT, LAYOUT)
TINY = ("dims.width=16", "dims.heads=4", "dims.layers=3", "dims.length=16", "tokenizer=bytes", "corpus=null")
READING = sorted(
    name for name, entry in installed().index.entries["attention"].items() if entry.traits.get("separate_inputs")
)


def make_stack(shape: Shape, layers: int) -> list[MultiwayDense]:
    places = [dataclasses.replace(shape, layers=layers, layer=index) for index in range(layers)]
    return [MultiwayDense(place, lambda: LayerNorm(8)).double() for place in places]


def run(placements: list[MultiwayDense], x: Tensor, sublayers: Sublayers) -> Tensor:
    streams = placements[0].begin(x)
    for placement in placements:
        streams = placement.advance(streams, sublayers, ONE_DOCUMENT)
    return placements[-1].end(streams)


@pytest.fixture
def multiway(sublayers: Sublayers) -> Sublayers:
    """Return sublayers of which attention distinguishes its three inputs."""

    def attend(h: Tensor | tuple[Tensor, Tensor, Tensor]) -> Tensor:
        q, k, v = (h, h, h) if isinstance(h, Tensor) else h
        return (q * k.roll(1, -1)).tanh() * v

    return {**sublayers, "attention": attend}


def test_four_averages_of_all_outputs_depend_on_the_token(shape: Shape, multiway: Sublayers, x: Tensor) -> None:
    placements, generator = make_stack(shape, 3), torch.Generator().manual_seed(0)
    for placement in placements:
        for parameter in placement.parameters():
            parameter.data += torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 4
    outputs = [x]

    def averages(part: Any, count: int) -> Tensor:
        inner = functional.gelu(functional.rms_norm(outputs[-1], (8,), eps=1e-6) @ part.read.weight.T)
        weights = (inner @ part.write + part.weights).unflatten(-1, (count, len(outputs)))
        weights = weights + torch.eye(len(outputs), dtype=torch.float64)[-1]
        return torch.einsum("b t c n, n b t d -> c b t d", weights, torch.stack(outputs))

    for placement in placements:
        queries, keys, values, y = averages(placement.averages, 4) if len(outputs) > 1 else (x, x, x, x)
        names: Any = placement.norms
        if len(outputs) > 1:
            assert placement.key_norm is not None
            assert placement.value_norm is not None
            keys, values = placement.key_norm(keys), placement.value_norm(values)
        else:
            keys = values = names["attention"](x)
        y = y + multiway["attention"]((names["attention"](queries), keys, values))
        for name in ("cross", "feedforward"):
            y = y + multiway[name](names[name](y))
        outputs.append(y)
    expected = averages(placements[-1].output_average, 1)[0]
    torch.testing.assert_close(run(placements, x, multiway), expected, atol=1e-10, rtol=1e-12)


def test_it_starts_as_pre_norm(shape: Shape, multiway: Sublayers, x: Tensor) -> None:
    y = x
    for _ in range(3):
        y = PreNorm(shape, lambda: LayerNorm(8)).double()(y, multiway)
    torch.testing.assert_close(run(make_stack(shape, 3), x, multiway), y, atol=1e-10, rtol=1e-12)


def attention_and_inputs(name: str, *overrides: str) -> tuple[Any, Tensor, Context]:
    """Return the attention of the first layer, and the inputs that it has in a pass."""
    model = paribus.assemble(
        paribus.spec("gpt-tiny", *TINY, "initialisation=xavier", f"attention={name}", *overrides)
    ).eval()
    attention = next(module for module in model.modules() if isinstance(module, paribus.Attention))
    given: list[Any] = []
    handle = attention.register_forward_pre_hook(lambda module, inputs: given.append(inputs))
    model.hidden(torch.arange(24).view(2, 12))
    handle.remove()
    return (attention, *given[0])


@pytest.mark.parametrize("name", READING)
def test_attention_reads_each_of_separate_inputs(name: str) -> None:
    needed = {
        "block-sparse": "block_size: 2",
        "moba": "block_size: 2",
        "dilated": "window: 3",
        "restricted": "window: 3",
    }
    options = needed.get(name, "")
    position = "position=alibi" if name in ("additive", "mlp-score") else "position=rope"
    attention, x, ctx = attention_and_inputs(f"{{name: {name}, {options}}}", position)
    inputs = (x, x, x)
    plain = attention(x, ctx)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y: Tensor = attention(q, ctx._replace(key_input=k, value_input=v, carry={}))
        return y

    torch.testing.assert_close(attend(*inputs), plain, rtol=0, atol=0)
    for index in range(3):
        changed = [h.flip(-1) if place == index else h for place, h in enumerate(inputs)]
        assert (attend(*changed) - plain).abs().max() > 1e-6


def test_values_are_linear_in_their_input() -> None:
    attention, x, ctx = attention_and_inputs("{name: mha, scores: {bias: false}}")
    y = attention(x, ctx._replace(key_input=x.sin(), value_input=x.cos()))
    doubled = attention(x, ctx._replace(key_input=x.sin(), value_input=2 * x.cos()))
    torch.testing.assert_close(doubled, 2 * y)


@pytest.mark.parametrize("name", ["mla", "linear", "identity"])
def test_attention_with_one_input_is_refused(name: str) -> None:
    with raises_problem(paribus.SpecError, "does-not-fit", "mudd", name, "mha"):
        paribus.spec("gpt-tiny", *TINY, "position=none", "placement=mudd", f"attention={name}")

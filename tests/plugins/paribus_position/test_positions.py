"""Declared traits of positions, compared with their behaviour."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from paribus import Pair, Position, Shape
from paribus_position import position
from paribus_position.contextual import Contextual

Randomise = Callable[[nn.Module], nn.Module]
READING = {name: component for name, component in position().items() if component.traits["bias"] == "content"}


@pytest.mark.parametrize(("name", "component"), position().items())
def test_declared_moments_match_the_methods(name: str, component: type[Position], shape: Shape) -> None:
    moments = set(component.traits["hooks"])
    overridden = {moment for moment in ("embed", "rotate", "bias", "mix") if moment in vars(component)}
    assert moments == overridden
    assert (component.traits["bias"] != "none") == ("bias" in moments)
    module = component(shape)
    assert (module.position_limit() is not None) == component.traits.get("table", False)


@pytest.mark.parametrize(("name", "component"), position().items())
def test_every_position_but_none_distinguishes_tokens(
    name: str, component: type[Position], shape: Shape, randomise: Randomise, make_pair: Callable[..., Pair]
) -> None:
    module = component(shape)
    randomise(module)
    positions = torch.arange(4).unsqueeze(0)
    x, heads = torch.ones(1, 4, 8), torch.ones(1, 2, 4, 6)
    outputs = [module.embed(x, positions)[0], module.rotate(heads, module.tables(positions, 6), "key")[0, 0]]
    if "bias" in component.traits["hooks"]:
        pair = make_pair(module, positions, positions)
        same = torch.ones(2, 4, 4, 6).double()
        visible = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
        outputs.append(module.bias(pair._replace(q=same, k=same, visible=visible))[0, 0])
    assert any((rows[0] != rows[1]).any() for rows in outputs) == (name != "none")


def test_positions_of_padding_are_arbitrary(shape: Shape) -> None:
    positions = torch.tensor([[-7, -1, 0, 1, 15]])
    for component in position().values():
        module = component(shape)
        assert torch.isfinite(module.embed(torch.ones(1, 5, 8), positions)).all()
        assert torch.isfinite(module.rotate(torch.ones(1, 2, 5, 6), module.tables(positions, 6), "key")).all()


@pytest.mark.parametrize(("name", "component"), [it for it in position().items() if not it[1].traits.get("table")])
def test_distant_positions_are_finite(
    name: str, component: type[Position], shape: Shape, randomise: Randomise, make_pair: Callable[..., Pair]
) -> None:
    positions = torch.tensor([[-(10**6), 0, 10**6]])
    module = component(shape)
    randomise(module)
    sides: tuple[Literal["query", "key"], ...] = ("query", "key")
    for side in sides:
        assert torch.isfinite(module.rotate(torch.ones(1, 2, 3, 6), module.tables(positions, 6), side)).all()
    if "bias" in component.traits["hooks"]:
        assert torch.isfinite(module.bias(make_pair(module, positions, positions))).all()


@pytest.mark.parametrize("name", [name for name, it in position().items() if it.traits["bias"] == "positions"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_block_of_a_bias_matches_the_whole(name: str, causal: bool, shape: Shape) -> None:
    module = position()[name](replace(shape, causal=causal))
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3], [-3, -2, -1, 0, 1, 2, 3]])
    full_output = module.bias(Pair(None, None, positions, positions, 1.0, 4))
    assert full_output.shape == (2, 4, 7, 7)
    block = module.bias(Pair(None, None, positions[:, 4:6], positions[:, 1:5], 1.0, 4))
    assert torch.allclose(block, full_output[:, :, 4:6, 1:5], rtol=0, atol=1e-6)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("component", READING.values(), ids=READING)
def test_a_block_of_a_content_bias_matches_the_whole(
    component: type[Position],
    places: tuple[Tensor, Tensor],
    shape: Shape,
    randomise: Randomise,
    make_pair: Callable[..., Pair],
) -> None:
    module = component(shape)
    randomise(module)
    pair = make_pair(module, *places)
    assert pair.q is not None
    assert pair.k is not None
    full_output = module.bias(pair)
    assert full_output.shape == (2, 4, places[0].shape[1], places[1].shape[1])
    assert full_output.dtype == torch.float64
    blocks = ((slice(0, 1), slice(1, 2)), (slice(-2, None), slice(0, -1)), (slice(-1, None), slice(None)))
    for positions, keys in blocks[2:] if component is Contextual else blocks:  # which counts keys
        block = pair._replace(
            q=pair.q[:, :, positions],
            k=pair.k[:, :, keys],
            q_positions=places[0][:, positions],
            k_positions=places[1][:, keys],
        )
        assert torch.allclose(module.bias(block), full_output[:, :, positions, keys], rtol=0, atol=1e-9)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("component", READING.values(), ids=READING)
def test_a_content_bias_depends_on_distances_only(
    component: type[Position],
    places: tuple[Tensor, Tensor],
    shape: Shape,
    randomise: Randomise,
    make_pair: Callable[..., Pair],
) -> None:
    module = component(shape)
    randomise(module)
    current, shifted = (make_pair(module, places[0] + shift, places[1] + shift) for shift in (0, 123))
    assert torch.allclose(module.bias(current), module.bias(shifted), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("component", READING.values(), ids=READING)
def test_a_content_bias_has_the_dtype_of_scores(
    component: type[Position], dtype: torch.dtype, shape: Shape, randomise: Randomise, make_pair: Callable[..., Pair]
) -> None:
    module, positions = component(shape), torch.arange(5).unsqueeze(0)
    randomise(module)
    exact = module.bias(make_pair(module, positions, positions))
    pair = make_pair(module, positions, positions)
    assert pair.q is not None
    assert pair.k is not None
    module.float()
    if pair.position_part is not None:
        pair.position_part.float()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        project = pair.project
        assert project is not None
        half_precision = module.bias(
            pair._replace(
                q=pair.q.to(dtype),
                k=pair.k.to(dtype),
                dtype=dtype,
                project=lambda table: tuple(item.to(dtype) for item in project(table.double())),  # type: ignore[arg-type,return-value]  # two of them
            )
        )
    assert half_precision.dtype == dtype
    assert torch.allclose(half_precision.double(), exact, rtol=0, atol=1e-4 if dtype == torch.float32 else 0.3)


@pytest.mark.thorough
@pytest.mark.parametrize("component", READING.values(), ids=READING)
def test_a_content_bias_compiles_to_one_graph(
    component: type[Position], shape: Shape, randomise: Randomise, make_pair: Callable[..., Pair]
) -> None:
    module, positions = component(shape), torch.arange(7).unsqueeze(0)
    randomise(module)
    pair = make_pair(module, positions, positions)
    compiled = torch.compile(module.bias, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(pair), module.bias(pair), rtol=0, atol=1e-9)

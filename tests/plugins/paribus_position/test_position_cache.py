"""Cache of values computed from positions."""

import copy

import pytest
import torch
from torch import Tensor

from paribus import Shape
from paribus_position.position_cache import PositionCache
from paribus_position.rotary import Rotary
from paribus_position.sinusoidal import Sinusoidal


def ramp(length: int, past: int = 0) -> Tensor:
    return torch.arange(past, past + length).unsqueeze(0)


def build(cache: PositionCache[Tensor], positions: Tensor, key: str = "key") -> Tensor:
    return cache(positions, key, positions.double)


def test_equal_positions_are_computed_once() -> None:
    cache: PositionCache[Tensor] = PositionCache()
    assert build(cache, ramp(5)) is build(cache, ramp(5))


@pytest.mark.parametrize(
    ("positions", "key"), [(ramp(6), "key"), (ramp(5, past=1), "key"), (ramp(5).flip(1), "key"), (ramp(5), "other")]
)
def test_different_positions_are_recomputed(positions: Tensor, key: str) -> None:
    cache: PositionCache[Tensor] = PositionCache()
    cached = build(cache, ramp(5))
    result = build(cache, positions, key)
    assert result is not cached
    assert torch.equal(result, positions.double())


def test_positions_changed_in_place_are_recomputed() -> None:
    cache: PositionCache[Tensor] = PositionCache()
    positions = ramp(5)
    build(cache, positions)
    positions += 1
    assert torch.equal(build(cache, positions), positions.double())


def test_positions_by_example_are_not_cached() -> None:
    cache: PositionCache[Tensor] = PositionCache()
    by_example = ramp(5).expand(2, -1)
    assert build(cache, by_example) is not build(cache, by_example)


def test_positions_on_other_devices_are_not_compared() -> None:
    cache: PositionCache[Tensor] = PositionCache()
    assert build(cache, ramp(5).to("meta")).is_meta
    assert build(cache, ramp(5).to("meta")).is_meta


def test_inference_tensors_are_not_cached(shape: Shape) -> None:
    q, x = torch.randn(1, 2, 5, 6, requires_grad=True), torch.randn(1, 5, shape.width, requires_grad=True)
    rotary, sinusoidal = Rotary(shape), Sinusoidal(shape)
    with torch.inference_mode():
        rotary.rotate(q, rotary.tables(ramp(5), 6), "query")
        sinusoidal.embed(x, ramp(5))
    rotary.rotate(q, rotary.tables(ramp(5), 6), "query").sum().backward()
    sinusoidal.embed(x * x, ramp(5)).sum().backward()
    assert q.grad is not None
    assert x.grad is not None


def test_every_dtype_has_its_own_entry(shape: Shape) -> None:
    position = Sinusoidal(shape)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = torch.zeros(1, 5, shape.width, dtype=dtype)
        assert torch.equal(position.embed(x, ramp(5)), Sinusoidal(shape).embed(x, ramp(5)))
        assert position.embed(x, ramp(5)).dtype == dtype


def test_a_model_with_a_filled_cache_can_be_copied(shape: Shape) -> None:
    position = Rotary(shape)
    position.tables(ramp(5), 6)
    x = torch.randn(1, 2, 5, 6)
    turned = [item.rotate(x, item.tables(ramp(5), 6), "key") for item in (position, copy.deepcopy(position))]
    assert torch.equal(*turned)

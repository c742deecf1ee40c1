"""Every tiny preset and every pair of attention and position on a simulated device: values of the CPU, and no waits."""

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import pytest
import torch
from torch import Tensor

import paribus
from paribus.assembly.devices import move_batch
from paribus.datamodule.tokenizer_state import TextCodec
from paribus.errors import ParibusError
from paribus.models.adapt import initial_model
from paribus.models.assemble import build_data, load_corpus
from paribus.models.evaluate import evaluate
from paribus.models.lightning_module import Model
from paribus.models.optimizer_schedule import build_optimizer
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.specs.load import load
from paribus.specs.resolve import check
from paribus.testing.matrix import AXES, UNREAD, Matrix, Row
from paribus.testing.simulated_device import NAME, SimulatedDevice, simulated_device
from paribus.testing.small_model import SmallModel, tokens

pytestmark = pytest.mark.device
PRESETS: Final = [name for name in installed().index.presets if name.endswith("-tiny")]
TOLERANCE: Final = 1e-6  # relative to the largest value, in float64
DECIMALS: Final = re.compile(r"-?\d+\.\d+(e-?\d+)?")
# Reads of values in each step, of presets whose components declare `waits`.
WAITS: Final[Mapping[str, Mapping[str, int]]] = {
    "gnmt-tiny": {"document_boundaries": 2},
    "luong-tiny": {"document_boundaries": 2},  # of source and target: a recurrent state restarts at documents
    "rnnsearch-tiny": {"document_boundaries": 2},
}
MATRIX: Final = Matrix(installed())


def near(one: Tensor, other: Tensor, scale: float) -> bool:
    return float((one - other).abs().max()) <= TOLERANCE * scale


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_takes_steps_and_is_evaluated_as_on_a_cpu(preset: str, registry: Registry) -> None:
    sizes = ("data.batch=4", "data.validation=8", "dropout=0.0")
    spec = resolved(preset, *sizes, registry=registry)
    text = load_corpus(spec, registry)
    model, data = (
        initial_model(spec, registry, text, measured=False)[0].double().train(),
        build_data(spec, registry, text),
    )
    replica, batch = copy.deepcopy(model), data.step(0)
    if model.teacher is not None:
        replica.set_teacher(copy.deepcopy(model.teacher))
    expected_loss = model.loss(batch)
    expected_loss.backward()
    scale = max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)
    with torch.no_grad():
        expected_metrics = evaluate(model, data)
    with simulated_device() as device:
        replica.to(NAME)
        metrics = evaluate(replica, data)
        optimizer, batch = build_optimizer(replica.optimizer, replica), move_batch(batch, replica.device)
        for step in range(2):
            device.waits.clear()
            loss = replica.loss(batch)
            loss.backward()
            if step == 0:
                assert near(loss.detach().cpu(), expected_loss.detach(), 1.0)
                for (name, parameter), reference in zip(replica.named_parameters(), model.parameters(), strict=True):
                    assert (parameter.grad is None) == (reference.grad is None), name
                    if parameter.grad is not None and reference.grad is not None:
                        assert near(parameter.grad.cpu(), reference.grad, scale), name
                device.waits.clear()
            optimizer.step()
            optimizer.zero_grad()
    assert metrics == pytest.approx(expected_metrics, rel=TOLERANCE)
    assert Counter(wait.place.rpartition(", in ")[2] for wait in device.waits) == WAITS.get(preset, {})


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_generates_and_answers_as_on_a_cpu(preset: str, registry: Registry) -> None:
    spec = resolved(preset, registry=registry)
    text = load_corpus(spec, registry)
    model = initial_model(spec, registry, text, measured=False)[0].double().eval()
    model.text = TextCodec.of(text)
    expected = answers(model)
    with simulated_device():
        actual = answers(model.to(NAME))
    assert actual.keys() == expected.keys()
    for name, answer in expected.items():
        assert DECIMALS.sub("", actual[name]) == DECIMALS.sub("", answer), name
        numbers = ([float(match[0]) for match in DECIMALS.finditer(text)] for text in (actual[name], answer))
        assert next(numbers) == pytest.approx(next(numbers), abs=1e-4), name  # as many digits as torch prints


def answers(model: Model) -> dict[str, str]:
    """Return what a model can be used for, as text; without what its kind does not support."""
    uses: dict[str, Callable[[], object]] = {
        "greedy": lambda: paribus.generate(model, ["ab", "abcd"], tokens=4),
        "sampled": lambda: paribus.generate(model, ["ab", "abcd"], tokens=4, temperature=1.0, n=2, seed=1),
        "beam": lambda: paribus.generate(model, ["ab", "abcd"], tokens=4, beam=3),
        "filled": lambda: paribus.fill(model, "a [MASK] b"),
        "embedded": lambda: paribus.embed(model, ["ab", "abcd"]),
        "attended": lambda: paribus.attend(model, "abcd"),
    }
    results: dict[str, str] = {}
    for name, use in uses.items():
        try:
            results[name] = str(use()).replace(f" on {NAME}", "")
        except ParibusError as error:
            results[name] = str(error)
    return results


@pytest.mark.parametrize("attention", MATRIX.axes["attention"])
def test_an_attention_with_every_position_runs_as_on_a_cpu(attention: str, cells: list[Row]) -> None:
    for row in (row for row in cells if row["attention"] == attention):
        spec = check(load(MATRIX.spec(row), (), MATRIX.index), MATRIX.index)
        model, label = SmallModel(spec, MATRIX.registry), f"{row['attention']}, {row['position']}, {row['topology']}"
        expected = passes(model)
        with simulated_device() as device:
            model.topology.to(NAME)
            with deterministic():
                passes(model, device)
                device.waits.clear()
                actual = passes(model, device)
        for one, other in zip(actual, expected, strict=True):
            assert near(one, other, float(other.abs().max())), label
        named = [(slot, row[slot]) for slot in AXES if row[slot] != UNREAD]
        declared = any(MATRIX.index.find(slot, name).traits.get("waits", False) for slot, name in named)
        waits = [wait for wait in device.waits if not wait.place.startswith(__file__)]
        assert declared or not waits, f"{label}: {waits[0]}"


@pytest.fixture(scope="module")
def cells() -> list[Row]:
    """Return a valid cell for each pair of attention and position that is valid, with changing other components."""
    return list({(row["attention"], row["position"]): row for row in MATRIX.covering()}.values())


@contextmanager
def deterministic() -> Iterator[None]:
    """Allow only operations that are deterministic on CUDA, as `trainer.deterministic: true` does."""
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def passes(model: SmallModel, device: SimulatedDevice | None = None) -> tuple[Tensor, Tensor]:
    """Return hidden states and all gradients of a pass over packed documents, where the model is."""
    place = torch.device("cpu" if device is None else NAME)
    stream = model.full_stream(model.tokens(2, 12))
    moved = stream.apply(lambda vector: vector.to(place))
    model.topology.zero_grad()
    hidden = model.hidden(moved, source=tokens(2, 6, "source").to(place))
    hidden.square().sum().backward()
    gradients = [p.grad.cpu().flatten() for p in model.topology.parameters() if p.grad is not None]
    return hidden.detach().cpu(), torch.cat(gradients)

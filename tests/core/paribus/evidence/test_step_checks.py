"""Checks of training steps: no finding for the shipped components, and no trace in the training."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from itertools import islice, product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from paribus.datamodule.data import Data
from paribus.datamodule.token_store import EncodedCorpus
from paribus.errors import ParibusError
from paribus.evidence.model_properties import broken_properties
from paribus.evidence.objective_properties import example_faults
from paribus.evidence.optimizer_properties import optimizer_faults
from paribus.evidence.parameter_bits import crc32, parameter_bits, sum_of_bits
from paribus.evidence.process_state import clock_shift
from paribus.evidence.step_checks import StepChecks
from paribus.models.assemble import build_data, build_model
from paribus.models.evaluate import evaluate
from paribus.models.lightning_module import Model
from paribus.registry import Registry, installed
from paribus.slots.tokenizer import Vocabulary
from paribus.testing.host_models import Case, base_specs, host_models

if TYPE_CHECKING:
    from lightning.pytorch.utilities.types import LRSchedulerConfig

INDEX = installed().index
TINY = sorted(name for name in INDEX.presets if name.endswith("tiny"))
SLOTS = ("attention", "position", "norm", "placement", "feedforward", "initialisation")  # presets have the others
PRECISIONS = (nullcontext, lambda: torch.autocast("cpu", torch.bfloat16))
HOSTS = 2  # models with a component that are tried
COMPONENTS = [(slot, name) for slot in SLOTS for name in sorted(INDEX.names(slot))]


def findings(model: Model, data: Data) -> dict[str, Any]:
    """Return what the checks find in one step with dropout and in an evaluation, without digests."""
    checks = StepChecks(model)
    checks.store_parameters()
    checks.repeat(data.step(0), nullcontext)
    model.train().loss(data.step(0)).backward()
    evaluate(model, data)
    checks.compare_parameters()
    kept = ("unchecked", "unrepeatable", "generators")
    found = {key: value for key, value in checks.first_step.items() if key in kept and value}
    return found | ({"changed": sorted(checks.changed)} if checks.changed else {})


@pytest.mark.slow
@pytest.mark.parametrize("preset", TINY)
def test_no_preset_has_a_finding(
    preset: str,
    assemble: Callable[..., Model],
    feed: Callable[..., Data],
    components: Registry,
    vocabulary: Vocabulary,
) -> None:
    try:
        model, data = assemble(preset, "dropout=0.1"), feed(preset, "dropout=0.1")
    except (ParibusError, AssertionError) as error:  # the small text has no labels, languages or images of this size
        pytest.skip(str(error))
    assert findings(model, data) == {}
    assert {**dict(example_faults(data)), **dict(optimizer_faults(model))} == {}
    for context in PRECISIONS:
        assert broken_properties(model, components, vocabulary, data.step(0), context) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("slot", "name"), COMPONENTS)
def test_no_component_has_a_finding(
    slot: str, name: str, components: Registry, vocabulary: Vocabulary, text: EncodedCorpus
) -> None:
    case = Case(components, components.index.find(slot, name), base_specs(None, components))
    hosts = list(islice((host.spec for host in host_models(case) if host.is_preset), HOSTS))
    assert hosts
    for host in hosts:
        spec = {**host, "dropout": 0.1}
        model, data = build_model(spec, components, vocabulary), build_data(spec, components, text)
        assert findings(model, data) == {}
        assert {**dict(example_faults(data)), **dict(optimizer_faults(model))} == {}
        for context in PRECISIONS:
            assert broken_properties(model, components, vocabulary, data.step(0), context) == {}


@pytest.mark.parametrize("hour", range(24))
def test_the_other_clock_has_another_hour_weekday_and_year(hour: int) -> None:
    now = datetime(2026, 11, 22, hour, 59, 58, tzinfo=UTC)
    other = now + timedelta(seconds=clock_shift(now.timestamp()))
    for name in ("hour", "weekday", "year", "toordinal"):
        values = [getattr(moment, name) for moment in (now, other)]
        first, second = (value() if callable(value) else value for value in values)
        assert first != second, name
    assert (other.toordinal() - now.toordinal()) % 2


CHANGES: tuple[Callable[[torch.Tensor], object], ...] = (
    lambda table: table.mul_(1.5),
    lambda table: table.copy_(table.flip(1)),
    lambda table: table.neg_(),
)


@pytest.mark.parametrize("checksum", [crc32, sum_of_bits])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex64])
def test_a_checksum_depends_on_every_bit_and_on_the_order(
    checksum: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    table = torch.arange(6.0).reshape(2, 3).to(dtype)
    before = checksum(table)
    assert torch.equal(checksum(table.clone()), before)
    for change in CHANGES:
        changed = table.clone()
        change(changed)
        assert checksum(changed) != before
    octets = table.view(torch.uint8)
    for row, column in product(range(octets.shape[0]), range(octets.shape[1])):
        for bit in range(8):
            octets[row, column] ^= 1 << bit
            assert checksum(table) != before
            octets[row, column] ^= 1 << bit


@pytest.mark.parametrize("checksum", [crc32, sum_of_bits])
def test_a_checksum_takes_tensors_of_any_shape(checksum: Callable[[torch.Tensor], torch.Tensor]) -> None:
    whole = torch.arange(24.0)
    for tensor in (torch.ones(()), torch.ones(0), torch.ones(0, 3), whole[1:6], whole.reshape(2, 3, 4).transpose(0, 2)):
        assert checksum(tensor).dtype == torch.int64
        assert torch.equal(checksum(tensor), checksum(tensor.clone()))


def test_bits_of_parameters_name_the_changed_one() -> None:
    values = nn.ParameterDict({"a": torch.arange(6.0), "b": torch.ones(())})
    bits = parameter_bits(values)
    with torch.no_grad():
        values["a"][2] = 7
    assert (parameter_bits(values) != bits).tolist() == [True, False]


def test_a_model_that_cannot_be_copied_is_reported(assemble: Callable[..., Model], feed: Callable[..., Data]) -> None:
    model, data = assemble("gpt-tiny"), feed("gpt-tiny")
    vars(model.get_submodule("body"))["lock"] = threading.Lock()
    assert findings(model, data) == {"unchecked": "TypeError: cannot pickle '_thread.lock' object"}


def test_the_checks_leave_the_process_and_the_model_alone(
    assemble: Callable[..., Model], feed: Callable[..., Data]
) -> None:
    model, data = assemble("gpt-tiny", "dropout=0.1"), feed("gpt-tiny")
    states = random.getstate(), torch.get_rng_state().tolist(), str(np.random.get_state()), time.time
    bits = parameter_bits(model)
    StepChecks(model).repeat(data.step(0), nullcontext)
    assert (random.getstate(), torch.get_rng_state().tolist(), str(np.random.get_state()), time.time) == states
    assert torch.equal(parameter_bits(model), bits)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_updates_are_counted_from_the_step_of_a_checkpoint_without_a_count() -> None:
    layer = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    checks = StepChecks(cast("Model", layer))
    checks.resume({name: value for name, value in checks.state().items() if name != "updates"})
    checks.count_updates(optimizer, 3)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert checks.updates == 4
    checks.count_updates(optimizer, 9)
    assert checks.updates == 4


def test_hooks_of_an_optimizer_and_rates_that_no_schedule_has_set_are_collected(assemble: Callable[..., Model]) -> None:
    model = assemble("gpt-tiny")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    config = cast("LRSchedulerConfig", SimpleNamespace(scheduler=schedule))
    checks = StepChecks(model)
    checks.count_updates(optimizer, 0)  # a hook of the checks themselves
    checks.check_optimizer(optimizer, [config])
    assert checks.hooked == set()
    optimizer.param_groups[0]["lr"] = 0.2
    checks.check_optimizer(optimizer, [config])
    assert checks.hooked == {"learning rate"}
    optimizer.register_step_pre_hook(lambda *_: None)
    checks.check_optimizer(optimizer, [config])
    assert checks.hooked == {"learning rate", "optimizer"}


def test_digests_of_rates_depend_on_every_rate_so_far(assemble: Callable[..., Model]) -> None:
    model = assemble("gpt-tiny")

    def digests(*rates: float, resumes: bool = False) -> dict[str, str]:
        checks = StepChecks(model)
        for step, rate in enumerate(rates):
            checks.digest_rates(torch.optim.SGD(model.parameters(), lr=rate), step)
            if resumes:
                state = checks.state()
                checks = StepChecks(model)
                checks.resume({**state, "rates": dict(sorted(state["rates"].items(), reverse=True))})
        return checks.rates

    expected = digests(*[0.1] * 12)
    assert digests(*[0.1] * 12, resumes=True) == expected
    other = digests(0.1, 0.1, 0.2, *[0.1] * 9)
    assert [step for step in expected if expected[step] != other[step]] == [str(step) for step in range(2, 12)]

"""Checks of training steps: no finding for the shipped components, and no trace in the training."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from paribus.errors import ParibusError
from paribus.registry import Registry, installed
from paribus.slots.tokenizer import Vocabulary
from paribus.testing.host_models import Case, base_specs, host_models
from paribus.train.assemble import build_data, build_model
from paribus.train.data import Data
from paribus.train.evaluate import evaluate
from paribus.train.lightning_module import Model
from paribus.train.step_checks import StepChecks, clock_shift, parameter_bits
from paribus.train.token_store import EncodedCorpus

INDEX = installed().index
TINY = sorted(name for name in INDEX.presets if name.endswith("tiny"))
SLOTS = ("attention", "position", "norm", "placement", "feedforward", "initialisation")  # presets have the others
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
def test_no_preset_has_a_finding(preset: str, assemble: Callable[..., Model], feed: Callable[..., Data]) -> None:
    try:
        model, data = assemble(preset, "dropout=0.1"), feed(preset, "dropout=0.1")
    except (ParibusError, AssertionError) as error:  # the small text has no labels, languages or images of this size
        pytest.skip(str(error))
    assert findings(model, data) == {}


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
        assert findings(build_model(spec, components, vocabulary), build_data(spec, components, text)) == {}


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


def test_bits_depend_on_values_and_their_order() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        values = nn.ParameterDict({"a": torch.arange(6.0).reshape(2, 3).to(dtype), "b": torch.ones((), dtype=dtype)})
        bits = parameter_bits(values)
        assert torch.equal(parameter_bits(values), bits)
        for change in CHANGES:
            changed = nn.ParameterDict({"a": values["a"].clone().detach(), "b": values["b"]})
            with torch.no_grad():
                change(changed["a"])
            assert (parameter_bits(changed) != bits).tolist() == [True, False]


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

"""The author's reference: installed components agree with theirs; test_mutants.py seeds faults in them."""

import math
import runpy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus.registry import Registry
from paribus.registry.component_index import BUILTIN
from paribus.testing import conform, examine
from paribus.testing.conformance import REFERENCE

FILES = (
    "attention_references",
    "mixing_references",
    "recurrence_references",
    "position_references",
    "layer_references",
    "objective_references",
    "pair_references",
    "data_references",
    "optimizer_references",
)
QUICK: dict[str, set[str]] = {  # components of slots whose comparisons take seconds; the others are slow tests
    "attention": {"conv", "dot", "uniform"},
    "position": {"alibi", "shaw", "t5"},
    "feedforward": {"mlp"},
    "embedding": set(),
    "objective": {"clm", "nsp"},
    "corpus": {"copy", "recall"},
    "measure": {"sink"},
}


def attention(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Mapping[str, Any]) -> Any:
    """Softmax attention, one head at a time, with shared key/value heads."""
    q, k, v = module.q(x), module.k(source), module.v(source)
    width = module.shape.head_width
    group = module.shape.heads // (k.shape[-1] // width)
    outputs = []
    for head in range(module.shape.heads):
        own, shared = (slice(index * width, (index + 1) * width) for index in (head, head // group))
        scores = q[:, own] @ k[:, shared].T * (1 / math.sqrt(width) if options.get("scaled", True) else 1)
        outputs.append(scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v[:, shared])
    return module.o(torch.cat(outputs, -1))


def adamw(optimizer: Any, weight: Tensor, gradients: Sequence[Tensor], options: Mapping[str, Any]) -> Any:
    mean = square = torch.zeros_like(weight)
    for step, gradient in enumerate(gradients, start=1):
        mean = options["beta1"] * mean + (1 - options["beta1"]) * gradient
        square = options["beta2"] * square + (1 - options["beta2"]) * gradient**2
        direction = mean / (1 - options["beta1"] ** step)
        direction = direction / ((square / (1 - options["beta2"] ** step)).sqrt() + options["eps"])
        decay = options["weight_decay"] if weight.ndim > 1 else 0.0
        decays = not options["cautious_decay"] or direction.sign() * weight.sign() >= 0
        weight = weight - options["lr"] * (direction + decay * weight * decays)
    return weight


def lamb(
    optimizer: Any,
    weight: Tensor,
    gradients: Sequence[Tensor],
    options: Mapping[str, Any],
    factors: Sequence[float],
) -> Any:
    mean = square = torch.zeros_like(weight)
    for step, (gradient, factor) in enumerate(zip(gradients, factors, strict=True), start=1):
        mean = options["beta1"] * mean + (1 - options["beta1"]) * gradient
        square = options["beta2"] * square + (1 - options["beta2"]) * gradient**2
        direction = mean / (1 - options["beta1"] ** step)
        direction = direction / ((square / (1 - options["beta2"] ** step)).sqrt() + options["eps"])
        if weight.ndim > 1:
            direction = direction + options["weight_decay"] * weight
            direction = direction * weight.norm() / direction.norm()
        weight = weight - factor * options["lr"] * direction
    return weight


def sgd(
    optimizer: Any,
    weight: Tensor,
    gradients: Sequence[Tensor],
    options: Mapping[str, Any],
    factors: Sequence[float],
) -> Any:
    velocity = torch.zeros_like(weight)
    for gradient, factor in zip(gradients, factors, strict=True):
        decay = options["weight_decay"] if weight.ndim > 1 else 0.0
        velocity = options["momentum"] * velocity + gradient + decay * weight
        weight = weight - factor * options["lr"] * velocity
    return weight


def stable_adamw(optimizer: Any, weight: Tensor, gradients: Sequence[Tensor], options: Mapping[str, Any]) -> Any:
    """Algorithm 2 of Wortsman et al. 2023, with unbiased means."""
    mean = square = torch.zeros_like(weight)
    for step, gradient in enumerate(gradients, start=1):
        mean = options["beta1"] * mean + (1 - options["beta1"]) * gradient
        square = options["beta2"] * square + (1 - options["beta2"]) * gradient**2
        unbiased = square / (1 - options["beta2"] ** step)
        ratio = (gradient**2 / unbiased.clamp(min=options["eps"] ** 2)).mean().sqrt()
        rate = options["lr"] / max(1.0, float(ratio))
        direction = mean / (1 - options["beta1"] ** step) / (unbiased.sqrt() + options["eps"])
        decay = options["weight_decay"] if weight.ndim > 1 else 0.0
        weight = weight - rate * decay * weight - rate * direction
    return weight


def adafactor(optimizer: Any, weight: Tensor, gradients: Sequence[Tensor], options: Mapping[str, Any]) -> Any:
    """Algorithms 4 and 5 of Shazeer & Stern 2018, one weight at a time; T5's decay is that of AdamW."""
    square = torch.zeros_like(weight)
    rows = columns = torch.zeros(()).double()
    for step, gradient in enumerate(gradients, start=1):
        beta = 1 - step ** -options["decay"]
        rows = beta * rows + (1 - beta) * (gradient**2).sum(-1, keepdim=True)
        columns = beta * columns + (1 - beta) * (gradient**2).sum(-2 if weight.ndim > 1 else 0, keepdim=True)
        square = beta * square + (1 - beta) * gradient**2
        direction = gradient / (rows @ columns / rows.sum(-2, keepdim=True) if weight.ndim > 1 else square).sqrt()
        direction = direction / max(1.0, root_mean_square(direction) / options["clip"])
        size = max(options["min_rms"], root_mean_square(weight)) * min(options["lr"], 1 / math.sqrt(step))
        decay = options["weight_decay"] if weight.ndim > 1 else 0.0
        weight = weight - options["lr"] * decay * weight - size * direction
    return weight


def root_mean_square(x: Tensor) -> float:
    return math.sqrt(float((x**2).mean()))


def adagrad(optimizer: Any, weight: Tensor, gradients: Sequence[Tensor], options: Mapping[str, Any]) -> Any:
    total = torch.full_like(weight, options["initial"])
    for gradient in gradients:
        total = total + gradient**2
        weight = weight - options["lr"] * gradient / (total.sqrt() + options["eps"])
    return weight


def adadelta(optimizer: Any, weight: Tensor, gradients: Sequence[Tensor], options: Mapping[str, Any]) -> Any:
    """Algorithm 1 of Zeiler 2012."""
    squares = steps = torch.zeros_like(weight)
    for gradient in gradients:
        squares = options["rho"] * squares + (1 - options["rho"]) * gradient**2
        change = -(steps + options["eps"]).sqrt() / (squares + options["eps"]).sqrt() * gradient
        steps = options["rho"] * steps + (1 - options["rho"]) * change**2
        weight = weight + options["lr"] * change
    return weight


def constant(schedule: Any, step: int, steps: int, options: Mapping[str, Any]) -> Any:
    warmup = round(options["warmup"] * steps)
    return (step + 1) / warmup if step < warmup else 1.0


def warmup_cosine(schedule: Any, step: int, steps: int, options: Mapping[str, Any]) -> Any:
    warmup, floor = round(options["warmup"] * steps), options["floor"]
    if step < warmup:
        return (step + 1) / warmup
    return float(floor + (1 - floor) * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2)


def polynomial(schedule: Any, step: int, steps: int, options: Mapping[str, Any]) -> Any:
    warmup, floor = round(options["warmup"] * steps), options["floor"]
    if step < warmup:
        return (step + 1) / warmup
    return float(floor + (1 - floor) * ((steps - step) / (steps - warmup)) ** options["power"])


def inverse_sqrt(schedule: Any, step: int, steps: int, options: Mapping[str, Any]) -> Any:
    """Vaswani et al. 2017, relative to the factor at the end of the warm-up; steps count from 1."""
    warmup, number = max(1, round(options["warmup"] * steps)), step + 1
    return math.sqrt(warmup) * min(number**-0.5, number * warmup**-1.5)


def trapezoid(schedule: Any, step: int, steps: int, options: Mapping[str, Any]) -> Any:
    warmup, decay = round(options["warmup"] * steps), round(options["decay"] * steps)
    if step < warmup:
        return (step + 1) / warmup
    share = max(0.0, (step - (steps - decay)) / decay) if decay else 0.0
    return 1 - share if options["decay_shape"] == "linear" else 1 - math.sqrt(share)


def halved(schedule: Any, step: int, steps: int, options: Mapping[str, Any]) -> Any:
    """Count the halvings one step after the other."""
    warmup, every = round(options["warmup"] * steps), max(1, round(options["every"] * steps))
    first = max(1, warmup, round(options["after"] * steps))
    factor = (step + 1) / warmup if step < warmup else 1.0
    for earlier in range(first, step + 1):
        factor = factor / 2 if (earlier - first) % every == 0 else factor
    return factor


REFERENCES: dict[str, Any] = {
    **{
        topic: reference
        for file in FILES
        for topic, reference in runpy.run_path(str(Path(__file__).with_name(f"{file}.py")))["REFERENCES"].items()
    },
    "by_hand": attention,
    "optimizer.adadelta": adadelta,
    "optimizer.adafactor": adafactor,
    "optimizer.adagrad": adagrad,
    "optimizer.adamw": adamw,
    "optimizer.lamb": lamb,
    "optimizer.sgd": sgd,
    "optimizer.stable-adamw": stable_adamw,
    "schedule.constant": constant,
    "schedule.halved": halved,
    "schedule.inverse-sqrt": inverse_sqrt,
    "schedule.polynomial": polynomial,
    "schedule.trapezoid": trapezoid,
    "schedule.warmup-cosine": warmup_cosine,
}


WITHOUT_REFERENCE = {
    "topology.deep-recurrent-encoder-decoder": "its layers have tests of their own",
    "topology.recurrent-encoder-decoder": "its cells, readout and feedback have tests of their own",
    "topology.scalar-mix": "its mix and its BiLSTM have tests of their own",
}


def topics() -> Iterator[Any]:
    for topic in REFERENCES:
        slot, _, name = topic.partition(".")
        if name:
            yield pytest.param(topic, marks=[] if name in QUICK.get(slot, {name}) else [pytest.mark.slow])


@pytest.mark.few(1)
@pytest.mark.parametrize("topic", list(topics()))
def test_installed_component_agrees_with_its_reference(topic: str, components: Registry) -> None:
    report = conform(topic, registry=components, reference=REFERENCES[topic], only=[REFERENCE])
    assert report.passed[-1] == REFERENCE


@pytest.mark.parametrize(
    "slot",
    [
        "attention",
        "position",
        "norm",
        "feedforward",
        "placement",
        "embedding",
        "initialisation",
        "topology",
        "optimizer",
        "schedule",
    ],
)
def test_every_installed_component_has_a_reference(slot: str, components: Registry) -> None:
    builtin = {entry.name for entry in components.index.entries[slot].values() if entry.source.distribution == BUILTIN}
    assert {f"{slot}.{name}" for name in builtin} <= REFERENCES.keys() | WITHOUT_REFERENCE.keys()


@pytest.mark.parametrize(
    ("topic", "method", "name"), [("tokenizer.bytes", "forward", "tokenizer"), ("norm.none", "gain", "norm.gain")]
)
def test_reference_of_another_slot_or_method_is_an_error(
    topic: str, method: str, name: str, components: Registry
) -> None:
    with pytest.raises(ValueError, match=f"a reference of {name} is not supported; valid: attention"):
        examine(topic, registry=components, reference={method: lambda module, x: x})


def test_reference_that_compares_nothing_is_no_pass(components: Registry) -> None:
    report = examine("norm.rmsnorm", registry=components, only=[REFERENCE], reference=lambda module, x: NotImplemented)
    assert not report.ok
    assert [finding.check for finding in report.findings] == [REFERENCE]

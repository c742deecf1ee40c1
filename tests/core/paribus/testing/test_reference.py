"""The author's reference: installed components agree with theirs; test_mutants.py seeds faults in them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus.registry import Registry
from paribus.registry.plugin_loading import BUILTIN
from paribus.testing import conform, examine
from paribus.testing.conformance import REFERENCE

Sublayers = Mapping[str, Callable[[Tensor], Tensor]]
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda y: y.clamp(min=0),
    "gelu": lambda y: y * 0.5 * (1 + torch.erf(y / math.sqrt(2))),
    "gelu-tanh": lambda y: y * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))),
    "silu": lambda y: y / (1 + torch.exp(-y)),
    "sigmoid": lambda y: 1 / (1 + torch.exp(-y)),
    "tanh": torch.tanh,
}


def attention(module: Any, x: Tensor, source: Tensor, visible: Tensor, options: Mapping[str, Any]) -> Any:
    """Softmax attention, one head at a time, with shared key/value heads, a window and the options of scores."""
    scoring = {"scaled": True, "qk_norm": False, "sinks": False, "soft_cap": None, **options.get("scores", options)}
    if scoring.get("value_residual"):
        return NotImplemented  # it needs the values of the first layer
    heads = getattr(module, "heads", module)
    q, k, v = heads.q(x), heads.k(source), heads.v(source)
    width = module.shape.head_width
    group = module.shape.heads // (k.shape[-1] // width)
    if options.get("window"):
        indices = torch.arange(len(x))
        visible = visible & ((indices.unsqueeze(1) - indices).abs() < options["window"])
    outputs = []
    for head in range(module.shape.heads):
        own, shared = (slice(index * width, (index + 1) * width) for index in (head, head // group))
        queries, keys = q[:, own], k[:, shared]
        if scoring["qk_norm"]:
            queries = root_mean_square_norm(module.attend.q_norm, queries)
            keys = root_mean_square_norm(module.attend.k_norm, keys)
        scores = queries @ keys.T * (1 / math.sqrt(width) if scoring["scaled"] else 1)
        if scoring["soft_cap"] is not None:
            scores = scoring["soft_cap"] * torch.tanh(scores / scoring["soft_cap"])
        scores = scores.masked_fill(~visible, -torch.inf)
        if scoring["sinks"]:
            scores = torch.cat([scores, module.attend.sinks[head].expand(len(x), 1)], -1)
        outputs.append(scores.softmax(-1)[:, : len(source)] @ v[:, shared])
    return heads.o(torch.cat(outputs, -1))


def layer_norm(module: Any, x: Tensor) -> Any:
    centred = x - x.mean()
    normalized = centred / math.sqrt(float(centred.square().mean()) + module.eps) * module.weight
    return normalized if module.bias is None else normalized + module.bias


def root_mean_square_norm(module: Any, x: Tensor) -> Any:
    return x / (x.square().mean(-1, keepdim=True) + module.eps).sqrt() * module.weight


def scale_norm(module: Any, x: Tensor) -> Any:
    length = math.sqrt(len(x)) + float(module.length)
    return x * length / max(float(x.norm()), module.eps)


def multi_layer_perceptron(module: Any, x: Tensor, options: Mapping[str, Any]) -> Any:
    return module.outer(ACTIVATIONS[options["activation"]](module.inner(x)))


def pre_norm(module: Any, x: Tensor, sublayers: Sublayers) -> Any:
    for name, sublayer in sublayers.items():
        x = x + sublayer(module.norms[name](x) if name in module.norms else x)
    return x


def post_norm(module: Any, x: Tensor, sublayers: Sublayers) -> Any:
    for name, sublayer in sublayers.items():
        x = module.norms[name](x + sublayer(x))
    return x


def deep_norm(module: Any, x: Tensor, sublayers: Sublayers) -> Any:
    alpha = (3 * 2) ** 0.25 if "cross" in sublayers else (2 * 2) ** 0.25
    for name, sublayer in sublayers.items():
        x = module.norms[name](alpha * x + sublayer(x))
    return x


def alibi(module: Any, q: Tensor, k: Tensor, i: int, j: int, head: int) -> Any:
    return q @ k - 2.0 ** (-2 * (head + 1)) * abs(i - j)  # 4 heads


def rope(module: Any, q: Tensor, k: Tensor, i: int, j: int, head: int, options: Mapping[str, Any]) -> Any:
    """Rotate pairs of channels as complex numbers."""
    if options["scaling"]["kind"] != "none":
        return NotImplemented
    rotated = round(len(q) * options["fraction"])
    half, score = rotated // 2, q[rotated:] @ k[rotated:]
    for pair in range(half):
        first, second = (2 * pair, 2 * pair + 1) if options["interleaved"] else (pair, pair + half)
        angle = (i - j) * options["theta"] ** (-2 * pair / rotated)
        product = torch.complex(q[first], q[second]) * torch.complex(k[first], -k[second])
        score = score + (product * complex(math.cos(angle), math.sin(angle))).real
    return score


def learned(module: Any, x: Tensor, i: int, options: Mapping[str, Any]) -> Any:
    return x + module.table.weight[i + options["offset"]]


def token_table(module: Any, token: int, part: Any, options: Mapping[str, Any]) -> Any:
    vector = module.tokens.weight[token] * (math.sqrt(module.tokens.weight.shape[1]) if options["scale"] else 1)
    for table in (module.segments, module.languages):
        vector = vector if table is None else vector + table.weight[0]
    return vector if part is None else part["norm"](vector)


def normal(scheme: Any, unit: Tensor, about: Any) -> Any:
    return unit * scheme.std * about.gain


def xavier(scheme: Any, unit: Tensor, about: Any) -> Any:
    rows, columns = unit.shape
    return unit * about.gain * math.sqrt(1 / columns if about.role == "embedding" else 2 / (rows + columns))


def adamw(optimizer: Any, weight: Tensor, gradients: Sequence[Tensor], options: Mapping[str, Any]) -> Any:
    mean = square = torch.zeros_like(weight)
    for step, gradient in enumerate(gradients, start=1):
        mean = options["beta1"] * mean + (1 - options["beta1"]) * gradient
        square = options["beta2"] * square + (1 - options["beta2"]) * gradient**2
        direction = mean / (1 - options["beta1"] ** step)
        direction = direction / ((square / (1 - options["beta2"] ** step)).sqrt() + options["eps"])
        decay = options["weight_decay"] if weight.ndim > 1 else 0.0
        weight = weight - options["lr"] * (direction + decay * weight)
    return weight


def lamb(optimizer: Any, weight: Tensor, gradients: Sequence[Tensor], options: Mapping[str, Any]) -> Any:
    mean = square = torch.zeros_like(weight)
    for step, gradient in enumerate(gradients, start=1):
        mean = options["beta1"] * mean + (1 - options["beta1"]) * gradient
        square = options["beta2"] * square + (1 - options["beta2"]) * gradient**2
        direction = mean / (1 - options["beta1"] ** step)
        direction = direction / ((square / (1 - options["beta2"] ** step)).sqrt() + options["eps"])
        if weight.ndim > 1:
            direction = direction + options["weight_decay"] * weight
            direction = direction * weight.norm() / direction.norm()
        weight = weight - options["lr"] * direction
    return weight


def sgd(optimizer: Any, weight: Tensor, gradients: Sequence[Tensor], options: Mapping[str, Any]) -> Any:
    velocity = torch.zeros_like(weight)
    for gradient in gradients:
        decay = options["weight_decay"] if weight.ndim > 1 else 0.0
        velocity = options["momentum"] * velocity + gradient + decay * weight
        weight = weight - options["lr"] * velocity
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
    rows, columns = torch.zeros(len(weight), 1).double(), torch.zeros(1, weight.shape[-1]).double()
    for step, gradient in enumerate(gradients, start=1):
        beta = 1 - step ** -options["decay"]
        rows = beta * rows + (1 - beta) * (gradient**2).sum(-1, keepdim=True)
        columns = beta * columns + (1 - beta) * (gradient**2).sum(0, keepdim=True)
        square = beta * square + (1 - beta) * gradient**2
        direction = gradient / (rows @ columns / rows.sum() if weight.ndim > 1 else square).sqrt()
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


REFERENCES: dict[str, Callable[..., Any]] = {
    "by_hand": attention,
    "attention.mha": attention,
    "attention.mqa": attention,
    "attention.gqa": attention,
    "attention.restricted": attention,
    "norm.layernorm": layer_norm,
    "norm.rmsnorm": root_mean_square_norm,
    "norm.scalenorm": scale_norm,
    "norm.none": lambda module, x: x,
    "feedforward.mlp": multi_layer_perceptron,
    "placement.pre": pre_norm,
    "placement.post": post_norm,
    "placement.deepnorm": deep_norm,
    "position.alibi": alibi,
    "position.rope": rope,
    "position.learned": learned,
    "embedding.tokens": token_table,
    "initialisation.normal": normal,
    "initialisation.xavier": xavier,
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


@pytest.mark.parametrize("topic", [topic for topic in REFERENCES if topic != "by_hand"])
def test_installed_component_agrees_with_its_reference(topic: str, components: Registry) -> None:
    base = {"preset": "encoder-tiny", "dims.width": 16} if topic == "placement.deepnorm" else None
    report = conform(topic, registry=components, base=base, reference=REFERENCES[topic], only=[REFERENCE])
    assert report.passed[-1] == REFERENCE


@pytest.mark.parametrize("slot", ["optimizer", "schedule"])
def test_every_installed_optimizer_and_schedule_has_a_reference(slot: str, components: Registry) -> None:
    builtin = {entry.name for entry in components.index.entries[slot].values() if entry.source.distribution == BUILTIN}
    assert {f"{slot}.{name}" for name in builtin} <= REFERENCES.keys()


def test_reference_of_another_slot_is_an_error(components: Registry) -> None:
    with pytest.raises(ValueError, match="a reference of tokenizer is not supported; valid: attention"):
        examine("tokenizer.bytes", registry=components, reference=lambda module, x: x)

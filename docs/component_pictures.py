"""Pictures of components, drawn from what untrained models and the components themselves compute."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from drawings import curve, figure, heatmap
from torch import Tensor

from paribus.assembly.components import make
from paribus.errors import SpecError
from paribus.parts.context import Pair
from paribus.slots.position import Position
from paribus.slots.schedule import Schedule
from paribus.testing.host_models import Case, component_node
from paribus.testing.small_model import SmallModel

TOKENS: Final = 24  # of a sequence
STEPS: Final = 1000  # of a schedule
HEADS: Final = 4
SIZES: Final[Mapping[str, Any]] = {
    "dims.width": 32,
    "dims.layers": 1,
    "dims.heads": HEADS,
    "dims.head_width": None,
    "dims.length": TOKENS,
    "dims.vocabulary": None,
    "position": "none",  # attention weights without bias of a position
    "initialisation": "gpt2",  # small weights: a softmax is close to uniform, so that pictures show what is visible
}
BASES: Final[Mapping[str, Mapping[str, Any]]] = {
    "causal": {"preset": "gpt-tiny", **SIZES},
    "bidirectional": {"preset": "encoder-tiny", **SIZES},
}
NOISE: Final = 1e-9  # relative magnitude of a rounding error
Drawings = list[tuple[str, str]]  # of one figure: each with its name


def pictures(case: Case) -> str:
    """Return the figure of a component, or nothing if its slot has none."""
    caption, drawings = draw(case)
    return figure(drawings, caption) if drawings else ""


def draw(case: Case) -> tuple[str, Drawings]:
    """Return a caption, and the drawings of a component."""
    case = Case(case.registry, case.entry, BASES)
    slot = case.entry.slot
    if slot == "attention":
        return _attention(case)
    if slot == "position":
        return _position(case)
    if slot == "schedule":
        return _schedule(case)
    if slot == "feedforward":
        return _activations(case)
    return "", []


def _attention(case: Case) -> tuple[str, Drawings]:
    if case.entry.traits.get("weights"):
        caption = f"Attention weights of an untrained layer for {TOKENS} tokens, mean over its heads."
    else:
        caption = f"Gradient of an untrained layer's outputs with respect to its inputs, for {TOKENS} tokens."
    shades = "Rows are queries, columns keys; the darkest key of a query has its largest weight, a blank one none."
    drawings = [
        (heatmap(_relative_to_row(_weights(model, case)), f"{case.topic}, {name}"), name)
        for name, model in _models(case)
    ]
    return f"{caption} {shades}{_example(case)}", drawings


def _weights(model: SmallModel, case: Case) -> Tensor:
    """Return the attention weights (T, S) of the layer, or the norm of its gradient if it has no weights."""
    tokens = model.tokens(1, TOKENS)
    if case.entry.traits.get("weights"):
        with torch.no_grad():
            return model.output(tokens, capture=True).captured[0]["weights"][0].mean(0)
    captured: list[Tensor] = []

    def capture(module: torch.nn.Module, arguments: tuple[Any, ...], output: Tensor) -> None:
        captured.extend([arguments[0], output])

    with model.layers()[0].attention.register_forward_hook(capture):
        model.hidden(tokens)
    x, y = captured
    rows = [torch.autograd.grad(y[0, token].abs().sum(), x, retain_graph=True)[0] for token in range(TOKENS)]
    return torch.stack([row[0].norm(dim=-1) for row in rows])


def _relative_to_row(weights: Tensor) -> list[list[float]]:
    """Return each row divided by its largest value, without what is 0 up to rounding."""
    relative = weights / weights.amax(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    shades: list[list[float]] = relative.where(relative > NOISE, 0.0).tolist()
    return shades


def _position(case: Case) -> tuple[str, Drawings]:
    name, model = next(_models(case))
    position = next(module for module in model.topology.modules() if isinstance(module, Position))
    hooks, shape = position.traits["hooks"], model.stack().shape
    indices = torch.arange(TOKENS).unsqueeze(0)
    signs = "The two colours are the two signs, and blank is 0."
    with torch.no_grad():
        if position.traits["bias"] == "positions":
            pair = Pair(None, None, indices, indices, 1.0, HEADS, dtype=torch.float64)
            bias = position.bias(pair)[0].expand(HEADS, -1, -1)
            if name == "causal":
                bias = bias.tril()
            heads = [(heatmap(head.tolist(), f"{case.topic}, head {n}"), f"head {n}") for n, head in enumerate(bias, 1)]
            return f"Bias of the scores with initial weights. Rows are queries, columns keys. {signs}", heads
        if "rotate" in hooks:
            x = torch.ones(1, 1, TOKENS, 2 * shape.head_width, dtype=torch.float64)
            tables = position.tables(indices, x.shape[-1])
            sides = [(side, position.rotate(x, tables, side)[0, 0].tolist()) for side in ("query", "key")]
            drawings = [(heatmap(table, f"{case.topic}, {side}"), side) for side, table in sides]
            return f"A vector of ones, rotated. Rows are positions, columns channels of a head. {signs}", drawings
        if "embed" in hooks:
            table = position.embed(torch.zeros(1, TOKENS, shape.embedding_width, dtype=torch.float64), indices)[0]
            caption = f"Values that are added to the embeddings, with initial weights. Rows are positions, columns channels. {signs}"
            return caption, [(heatmap(table.tolist(), case.topic), "")]
    return "", []


def _schedule(case: Case) -> tuple[str, Drawings]:
    spec = case.resolved("causal", {"schedule": component_node(case)})
    schedule = make(case.registry, "schedule", spec["schedule"], kind=Schedule)
    points = [(float(step), schedule.factor(step, STEPS)) for step in range(STEPS)]
    return f"Factor of the learning rate in a run of {STEPS} steps.{_example(case)}", [
        (curve(points, case.topic, "step"), "")
    ]


def _activations(case: Case) -> tuple[str, Drawings]:
    """Draw every choice of the option `activation`."""
    option = case.entry.option("activation")
    module = inspect.getmodule(case.component)
    functions = vars(module).get("ACTIVATIONS") if option is not None else None
    if functions is None:
        return "", []
    xs = torch.linspace(-4, 4, 81)
    drawings = [
        (curve(list(zip(xs.tolist(), functions[name](xs).tolist(), strict=True)), name, "x"), name)
        for name in option.kind.choices
        if option is not None
    ]
    return "Values of the option <code>activation</code>.", drawings


def _models(case: Case) -> Iterator[tuple[str, SmallModel]]:
    """Yield each kind of model that the component is valid in, with its initial weights."""
    for name in BASES:
        try:
            spec = case.resolved(name, case.component_overrides(name, component_node(case)))
        except SpecError:
            continue  # the rules reject the component in this kind of model
        yield name, SmallModel(spec, case.registry, perturbed=False)


def _example(case: Case) -> str:
    """Return the values of the options that have no default."""
    values = ", ".join(f"{key}: {value}" for key, value in component_node(case).items() if key != "name")
    return f" Here with <code>{values}</code>." if values else ""

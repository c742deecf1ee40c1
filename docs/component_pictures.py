"""Pictures of components, drawn from what untrained models and the components themselves compute."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

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
CROSS: Final[Mapping[str, Mapping[str, Any]]] = {"cross-attention": {"preset": "seq2seq-tiny", **SIZES}}
POSITIONS: Final = torch.arange(TOKENS).unsqueeze(0)
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
        traits = case.entry.traits
        is_cross_only = not traits.get("causal") and not traits.get("bidirectional", True)
        return _attention(Case(case.registry, case.entry, CROSS) if is_cross_only else case)
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
    shades = "Rows are queries, columns keys; the darkest key of a query has the largest value, a blank one 0."
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
        memory = arguments[1].memory
        captured.extend([arguments[0] if memory is None else memory, output])

    layer = model.layers()[0]
    attention = layer.cross if isinstance(layer.cross, case.component) else layer.attention
    assert isinstance(attention, torch.nn.Module), "every attention is one"
    with attention.register_forward_hook(capture):
        model.hidden(tokens, source=tokens)
    x, y = captured
    rows = [torch.autograd.grad(y[0, token].abs().sum(), x, retain_graph=True)[0] for token in range(TOKENS)]
    return torch.stack([row[0].norm(dim=-1) for row in rows])


def _relative_to_row(weights: Tensor) -> list[list[float]]:
    """Return each row divided by its largest value, without what is 0 up to rounding."""
    relative = weights / weights.amax(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    shades: list[list[float]] = relative.where(relative > NOISE, 0.0).tolist()
    return shades


def _position(case: Case) -> tuple[str, Drawings]:
    """Draw the bias of a position, or else what it rotates or adds."""
    name, model = next(_models(case))
    position = next(module for module in model.topology.modules() if isinstance(module, Position))
    signs = "The two colours are the two signs, and blank is 0."
    with torch.no_grad():
        if "bias" in position.traits["hooks"]:
            content = " Every token is the same, so that positions alone make the difference."
            caption = f"Bias of the scores with initial weights. Rows are queries, columns keys. {signs}"
            is_content = position.traits["bias"] == "content"
            return caption + content * is_content, _bias(model, position, case, is_causal=name == "causal")
        if "rotate" in position.traits["hooks"]:
            x = torch.ones(1, 1, TOKENS, 2 * model.stack().shape.head_width, dtype=torch.float64)
            tables = position.tables(POSITIONS, x.shape[-1])
            caption = "A vector of ones, rotated. Rows are positions, columns channels of a head."
            sides: tuple[Literal["query", "key"], ...] = ("query", "key")
            rotated = [(side, position.rotate(x, tables, side)[0, 0].tolist()) for side in sides]
            return f"{caption} {signs}", [(heatmap(table, f"{case.topic}, {side}"), side) for side, table in rotated]
        if "embed" in position.traits["hooks"]:
            embeddings = torch.zeros(1, TOKENS, model.stack().shape.embedding_width, dtype=torch.float64)
            table = position.embed(embeddings, POSITIONS)[0].tolist()
            caption = "Initial values that are added to the embeddings. Rows are positions, columns channels."
            return f"{caption} {signs}", [(heatmap(table, case.topic), "")]
    return "", []


def _bias(model: SmallModel, position: Position, case: Case, *, is_causal: bool) -> Drawings:
    """Draw the bias that a pass over equal tokens reads, with its range in each head."""
    biases: list[Tensor] = []
    original_bias = position.bias

    def record(pair: Pair) -> Tensor:
        biases.append(original_bias(pair))
        return biases[-1]

    position.bias = record  # type: ignore[method-assign]  # of a model for this picture only
    model.output(model.tokens(1, 1).repeat(1, TOKENS), capture=True)
    bias = biases[0][0].expand(HEADS, -1, -1)
    drawings = []
    for number, head in enumerate(bias.tril() if is_causal else bias, 1):
        extent = f"{head.min() + 0.0:.2g} to {head.max() + 0.0:.2g}"  # -0.0 + 0.0 is 0.0
        drawings.append((heatmap(head.tolist(), f"{case.topic}, head {number}"), f"head {number}: {extent}"))
    return drawings


def _schedule(case: Case) -> tuple[str, Drawings]:
    spec = case.resolved("causal", {"schedule": component_node(case)})
    schedule = make(case.registry, "schedule", spec["schedule"], kind=Schedule)
    points = [(float(step), schedule.factor(step, STEPS)) for step in range(STEPS)]
    return f"Factor of the learning rate in a run of {STEPS} steps.{_example(case)}", [
        (curve(points, case.topic, "step"), "")
    ]


def _activations(case: Case) -> tuple[str, Drawings]:
    """Draw every choice of the option `activation`, by the functions of the component's module."""
    option = case.entry.option("activation")
    functions = vars(inspect.getmodule(case.component)).get("ACTIVATIONS")
    if option is None or functions is None:
        return "", []
    xs = torch.linspace(-4, 4, 81)
    curves = {name: list(zip(xs.tolist(), functions[name](xs).tolist(), strict=True)) for name in option.kind.choices}
    drawings = [(curve(points, name, "x", (140, 90)), name) for name, points in curves.items()]
    return "Values of the option <code>activation</code>.", drawings


def _models(case: Case) -> Iterator[tuple[str, SmallModel]]:
    """Yield each kind of model that the component is valid in, with its initial weights."""
    for name in case.base_specs:
        try:
            spec = case.resolved(name, case.component_overrides(name, component_node(case)))
        except SpecError:
            continue  # the rules reject the component in this kind of model
        yield name, SmallModel(spec, case.registry, perturbed=False)


def _example(case: Case) -> str:
    """Return the values of the options that have no default."""
    values = ", ".join(f"{key}: {value}" for key, value in component_node(case).items() if key != "name")
    return f" Here with <code>{values}</code>." if values else ""

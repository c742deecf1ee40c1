"""The author's reference: a slow function that a component must agree with, on single examples."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor

from paribus.assembly.components import make
from paribus.parts.batch import Stream
from paribus.parts.context import Pair
from paribus.parts.stack import Layer
from paribus.slots.feedforward import FeedForward
from paribus.slots.initialisation import Initialisation
from paribus.slots.norm import Norm
from paribus.slots.placement import Placement
from paribus.slots.position import Position
from paribus.slots.schedule import Schedule
from paribus.specs.fields import NO_POSITION
from paribus.testing.embedding_checks import DRAWN_ROLES, parameter_info, standard_draws
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.optimizer_checks import SHAPES, STEPS, OptimizerRun
from paribus.testing.option_checks import OUTSIDE_MODELS, option_specs
from paribus.testing.small_model import TOLERANCE, SmallModel, max_difference, noise, tokens

Reference = Callable[..., Any]
"""Function of the component and of the inputs of one example:

- attention: `(module, x, source, visible)`: (T, D), (S, M), (T, S) bool -> (T, D), without positions. `source` is `x`,
  or the memory. `visible` is True for keys of the same document that are not in the future; windows are the author's.
- position: `(module, q, k, i, j, head)` -> the score of a query at position i and a key at position j, unscaled, if it
  rotates or has a bias of positions; else `(module, x, i)`: (E,) -> (E,).
- norm and feedforward: `(module, x)`: (D,) -> (D,).
- placement: `(module, x, sublayers)`: (T, D) -> (T, D).
- embedding: `(module, token, part)` -> (D,), without positions; `part` is the `stack_part` of the stack.
- initialisation: `(component, unit, about)` -> initial weights.
- optimizer: `(component, weight, gradients)` -> the weight after one step for each gradient.
- schedule: `(component, step, steps)` -> factor.

A function with a parameter `options` receives the component's options in the spec, and is compared with other values
of every option, alone and together. It returns NotImplemented for values that it does not cover.
"""

LENGTH: Final = 12
MAX_VALUES: Final = 8  # other values of a number of a component outside models
MAX_VALUES_IN_MODELS: Final = 2
DRAWS: Final = 6  # of values of all options
Comparison = tuple[str, Any, Any]  # description of the input, output, output of the reference


def author_reference(case: Case, host: HostModel) -> Verdict:
    """The output equals that of the author's reference, with each option, at padding and in documents."""
    if case.reference is None or ", position=" in host.label:  # an attention is compared without positions
        return DOES_NOT_APPLY
    compared = False
    for description, variant in _variants(case, host, case.reference):
        try:
            for place, output, expected in _COMPARISONS[case.entry.slot](case, variant, _bound(case, variant)):
                difference = max_difference(_as_tensor(output), _as_tensor(expected))
                compared = True
                if difference > TOLERANCE:
                    return f"{place}{description} differs by {difference:.2g} from the reference"
        except _UncoveredError:
            continue
    return HOLDS if compared else DOES_NOT_APPLY


class _UncoveredError(Exception):
    """The reference does not cover these options."""


def _variants(case: Case, host: HostModel, reference: Reference) -> Iterator[tuple[str, HostModel]]:
    """Yield the model, then with other options of the component if the reference takes them into account."""
    is_outside = case.entry.slot in OUTSIDE_MODELS
    if not host.is_preset or not (is_outside or _takes_options(reference)):
        yield "", host
        return
    for description, spec in option_specs(case, host, MAX_VALUES if is_outside else MAX_VALUES_IN_MODELS, DRAWS):
        yield description, host._replace(label=host.label + description, spec=spec)


def _takes_options(reference: Reference) -> bool:
    return "options" in inspect.signature(reference).parameters


def _bound(case: Case, host: HostModel) -> Reference:
    """Return the reference, with the options of the component if it takes them."""
    assert case.reference is not None
    options = {"options": host.spec[case.entry.slot]} if _takes_options(case.reference) else {}

    def reference(*inputs: Any) -> Any:
        assert case.reference is not None
        output = case.reference(*inputs, **options)
        if output is NotImplemented:
            raise _UncoveredError
        return output

    return reference


def _as_tensor(value: Any) -> Tensor:
    tensor: Tensor = torch.atleast_1d(torch.as_tensor(value).detach().double())
    return tensor


def _attention(case: Case, host: HostModel, reference: Reference) -> Iterator[Comparison]:
    """Compare each attention of a model without positions, for plain, padded and packed sequences."""
    model = SmallModel({**host.spec, "position": {"name": NO_POSITION}}, case.registry)
    calls: list[tuple[Any, Any, Tensor]] = []
    causal_ids = {
        id(layer.attention)
        for part in model.topology.parts
        if part.causal
        for layer in model.topology.get_submodule(part.path).modules()
        if isinstance(layer, Layer)
    }
    for module in model.topology.modules():
        if type(module) is case.component:
            module.register_forward_hook(lambda *call: calls.append(call))
    for name, stream in _layouts(case, host, model):
        calls.clear()
        model.hidden(stream)
        for module, (x, ctx), output in calls:
            source = x if ctx.memory is None else ctx.memory
            visible = _visible(ctx, x.shape[1], source.shape[1], causal=id(module) in causal_ids)
            for example in range(len(x)):
                allowed = visible[min(example, len(visible) - 1)]
                expected = reference(module, x[example], source[example], allowed)
                rows = allowed.any(1)
                yield f"the output for {name}", output[example][rows], expected[rows]


def _layouts(case: Case, host: HostModel, model: SmallModel) -> Iterator[tuple[str, Stream]]:
    yield f"{LENGTH} tokens", Stream(tokens(2, LENGTH))
    if not model.has_fixed_length and case.all_attentions_declare(host, "documents"):
        documents = torch.tensor([[0] * 5 + [1] * 7, [0] * 10 + [-1] * 2])
        yield "packed documents and padding", Stream(tokens(2, LENGTH), documents=documents)


def _visible(ctx: Any, queries: int, keys: int, *, causal: bool) -> Tensor:
    """(B|1, T, S): True for keys of the same document that are not in the future."""
    visible = torch.ones(1, queries, keys, dtype=torch.bool)
    if causal:
        visible = visible.tril()
    if ctx.key_layout.documents is not None or ctx.layout.documents is not None:
        zeros = torch.zeros(1, 1, dtype=torch.long)
        q = (zeros.expand(1, queries) if ctx.layout.documents is None else ctx.layout.documents).unsqueeze(-1)
        k = (zeros.expand(1, keys) if ctx.key_layout.documents is None else ctx.key_layout.documents).unsqueeze(-2)
        visible = visible & (q == k) & (k >= 0)
    return visible


def _per_vector(contract: type[Any]) -> Callable[[Case, HostModel, Reference], Iterator[Comparison]]:
    def compare(case: Case, host: HostModel, reference: Reference) -> Iterator[Comparison]:
        model = case.small_model(host)
        x = noise("rows", 2, 3, model.stack().shape.width)
        for module in model.topology.modules():
            if isinstance(module, contract) and type(module) is case.component:
                output = module(x)
                expected = torch.stack([reference(module, vector) for vector in x.flatten(0, 1)]).view_as(x)
                yield "the output for 6 vectors", output[0] if contract is FeedForward else output, expected
                return

    return compare


def _placement(case: Case, host: HostModel, reference: Reference) -> Iterator[Comparison]:
    model = case.small_model(host)
    x = noise("rows", 1, 3, model.stack().shape.width)
    names = model.stack().shape.sublayers
    sublayers = {name: _sublayer(noise(name, *x.shape[1:])) for name in names}
    for index, layer in enumerate(model.stack().layers):
        assert isinstance(layer, Layer)
        assert isinstance(layer.placement, Placement)
        output = layer.placement(x, sublayers)[0]
        yield f"the output of layer {index}", output, reference(layer.placement, x[0], sublayers)


def _sublayer(values: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda h: values.tanh() * h.sin() + values


def _position(case: Case, host: HostModel, reference: Reference) -> Iterator[Comparison]:
    model = case.small_model(host)
    position = next(module for module in model.topology.modules() if isinstance(module, Position))
    hooks, shape = case.entry.traits["hooks"], model.stack().shape
    indices = (0, 3, 9)
    positions = torch.tensor([indices])
    if "embed" in hooks:
        x = noise("rows", 1, 3, shape.embedding_width)
        for row, index in enumerate(indices):
            yield f"position {index}", position.embed(x, positions)[0, row], reference(position, x[0, row], index)
    if "rotate" not in hooks and case.entry.traits.get("bias") != "positions":
        return
    q, k = (noise(side, 1, shape.heads, 3, shape.head_width) for side in ("q", "k"))
    tables = position.tables(positions, shape.head_width)
    scores = position.rotate(q, tables, "query") @ position.rotate(k, tables, "key").transpose(-1, -2)
    if "bias" in hooks:
        scores = scores + position.bias(Pair(None, None, positions, positions, 1.0, shape.heads, dtype=torch.float64))
    for row, i in enumerate(indices):
        for column, j in enumerate(indices[: row + 1]):
            for head in range(shape.heads):
                expected = reference(position, q[0, head, row], k[0, head, column], i, j, head)
                yield f"the score of positions {i} and {j} in head {head}", scores[0, head, row, column], expected


def _embedding(case: Case, host: HostModel, reference: Reference) -> Iterator[Comparison]:
    model = case.small_model(host)
    token_ids = tokens(1, 5)
    part: Any = model.stack().embedding
    output, _ = model.topology.embedding(Stream(token_ids), 0, lambda x, positions: x, part)
    for index, token in enumerate(token_ids[0].tolist()):
        yield f"the vector of token {token}", output[0, index], reference(model.topology.embedding, token, part)


def _initialisation(case: Case, host: HostModel, reference: Reference) -> Iterator[Comparison]:
    scheme = make(case.registry, "initialisation", host.spec["initialisation"], kind=Initialisation)
    for role in DRAWN_ROLES:
        about = parameter_info(role)._replace(gain=0.7)
        yield (
            f"a tensor of the role `{role}`",
            scheme.draw(standard_draws(role).double(), about),
            reference(scheme, standard_draws(role).double(), about),
        )


def _optimizer(case: Case, host: HostModel, reference: Reference) -> Iterator[Comparison]:
    run = OptimizerRun(case, host.spec["optimizer"])
    for index, (output, start) in enumerate(zip(run.steps(), run.start(), strict=True)):
        gradients = [run.gradient(step, start) for step in range(STEPS)]
        yield (
            f"a tensor of shape {SHAPES[index]} after {STEPS} steps",
            output,
            reference(run.optimizer, start, gradients),
        )


def _schedule(case: Case, host: HostModel, reference: Reference) -> Iterator[Comparison]:
    schedule = make(case.registry, "schedule", host.spec["schedule"], kind=Schedule)
    for steps in (1, 7, 100):
        for step in range(steps):
            yield (
                f"the factor at step {step} of {steps}",
                schedule.factor(step, steps),
                reference(schedule, step, steps),
            )


_COMPARISONS: Final[Mapping[str, Callable[[Case, HostModel, Reference], Iterator[Comparison]]]] = {
    "attention": _attention,
    "position": _position,
    "norm": _per_vector(Norm),
    "feedforward": _per_vector(FeedForward),
    "placement": _placement,
    "embedding": _embedding,
    "initialisation": _initialisation,
    "optimizer": _optimizer,
    "schedule": _schedule,
}

REFERENCE_SLOTS: Final = tuple(_COMPARISONS)

"""Checks of one component: hooks of positions, tokens of norms and feed-forwards, sublayers of placements, options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from paribus.errors import SpecError
from paribus.parts.context import Pair
from paribus.parts.stack import Layer
from paribus.schema import Option
from paribus.slots.norm import Norm
from paribus.slots.placement import Sublayer
from paribus.slots.position import Position
from paribus.testing.host_models import (
    DOES_NOT_APPLY,
    HOLDS,
    Case,
    HostModel,
    Verdict,
    alternative_values,
    example_node,
)
from paribus.testing.small_model import TOLERANCE, SmallModel, max_difference, noise

HOOKS: Final = ("embed", "rotate", "bias", "mix")
FAR_POSITION: Final = 10_000
ADJACENT_POSITIONS: Final = 128


def position_hooks(case: Case, host: HostModel) -> Verdict:
    """The trait `hooks` of a position names exactly the hooks that its class implements."""
    declared = set(case.entry.traits.get("hooks", []))
    for hook in HOOKS:
        implemented = getattr(case.component, hook) is not getattr(Position, hook)
        if implemented and hook not in declared:
            return (
                f"it implements `{hook}`, but its trait `hooks` does not contain `{hook}`, so the hook is never called"
            )
        if hook in declared and not implemented:
            return f"its trait `hooks` contains `{hook}`, but it does not implement `{hook}`"
    if ("bias" in declared) != (case.entry.traits.get("bias", "none") != "none"):
        return (
            f"its trait `bias` is {case.entry.traits.get('bias')!r}, but its trait `hooks` is {sorted(declared)}; "
            "expected a `bias` other than 'none' if, and only if, `hooks` contains 'bias'"
        )
    return HOLDS


def distance_bias(case: Case, host: HostModel) -> Verdict:
    """A bias declared as `distance_bias` depends only on the distance between two positions."""
    if not case.entry.traits.get("distance_bias"):
        return DOES_NOT_APPLY
    position = _position(case.small_model(host).topology)
    positions = torch.tensor([[0, 3, 4, 9]])
    bias, shifted_bias = (
        position.bias(Pair(None, None, indices, indices, 1.0, 4, dtype=torch.float64))
        for indices in (positions, positions + 31)
    )
    difference = max_difference(bias, shifted_bias)
    return (
        f"its bias changes by {difference:.2g} when all positions are shifted by 31; expected no change, "
        "as its trait `distance_bias` is True"
        if difference > TOLERANCE
        else HOLDS
    )


def position_range(case: Case, host: HostModel) -> Verdict:
    """A position is finite and distinct up to its `position_limit`, and finite at negative positions of padding."""
    model = case.small_model(host)
    position = _position(model.topology)
    limit = position.position_limit()
    width = model.stack().shape.head_width
    x = noise("rows", 1, 1, model.stack().shape.width)
    for index in (-3, 0, (limit if limit is not None else FAR_POSITION) - 1):
        positions = torch.tensor([[index]])
        rotated = position.rotate(noise("heads", 1, 4, 1, width), position.tables(positions, width), "query")
        if not (torch.isfinite(position.embed(x, positions)).all() and torch.isfinite(rotated).all()):
            return f"its output at position {index} is not finite; declared limit: {limit or 'none'}"
    return _adjacent_positions_fault(
        position, min(limit if limit is not None else ADJACENT_POSITIONS, ADJACENT_POSITIONS), x
    )


def _adjacent_positions_fault(position: Position, limit: int, x: Tensor) -> str:
    """Return a message if two adjacent positions below the limit have the same embedding."""
    if "embed" not in position.traits["hooks"]:
        return HOLDS
    placed = position.embed(x.expand(1, limit, -1), torch.arange(limit).unsqueeze(0))
    equal_neighbours = (placed[:, 1:] == placed[:, :-1]).all(-1).nonzero()
    if len(equal_neighbours):
        index = int(equal_neighbours[0, 1])
        return f"positions {index} and {index + 1} have the same embedding; expected different ones up to the limit"
    return HOLDS


def relative_rotation(case: Case, host: HostModel) -> Verdict:
    """Scores of rotated queries and keys depend only on their distance."""
    if "rotate" not in case.entry.traits.get("hooks", []):
        return DOES_NOT_APPLY
    model = case.small_model(host)
    position, width = _position(model.topology), model.stack().shape.head_width
    positions = torch.tensor([[0, 5, 7, 12, 90, 95]])  # three pairs, 5 apart
    tables = position.tables(positions, width)
    vectors = [noise(side, 1, 4, 1, width).expand(-1, -1, positions.shape[-1], -1) for side in ("query", "key")]
    q, k = position.rotate(vectors[0], tables, "query"), position.rotate(vectors[1], tables, "key")
    scores = (q[:, :, 1::2] * k[:, :, ::2]).sum(-1)  # (1, H, 3): one score for each pair
    difference = max_difference(scores, scores[..., :1].expand_as(scores))
    if difference > TOLERANCE:
        return (
            f"scores of equal vectors at distance 5 differ by {difference:.2g} between positions; expected equal "
            "scores. "
            "Usual cause: queries and keys are rotated differently"
        )
    return HOLDS


def _position(topology: nn.Module) -> Position:
    return next(module for module in topology.modules() if isinstance(module, Position))


def norm_per_token(case: Case, host: HostModel) -> Verdict:
    """A norm keeps shape and dtype, and normalizes each token independently of others."""
    model = case.small_model(host)
    norms = [module for module in model.topology.modules() if isinstance(module, Norm)]
    for norm in norms[:1]:
        x = noise("rows", 2, 5, model.stack().shape.width)
        return _per_token_fault(norm, x, norm(x))
    return "expected a norm in the model, got none"


def feedforward_per_token(case: Case, host: HostModel) -> Verdict:
    """A feed-forward keeps the shape and transforms each token independently; an auxiliary loss is a scalar."""
    model = case.small_model(host)
    layer = model.stack().layers[0]
    assert isinstance(layer, Layer)
    x = noise("rows", 2, 5, model.stack().shape.width)
    feedforward = layer.feedforward
    assert feedforward is not None
    y, auxiliary = feedforward(x)
    if auxiliary is not None and auxiliary.ndim:
        return f"its auxiliary loss has the shape {tuple(auxiliary.shape)}; expected a scalar"
    return _per_token_fault(lambda tokens: feedforward(tokens)[0], x, y)


def _per_token_fault(function: Any, x: Tensor, y: Tensor) -> str:
    if y.shape != x.shape or y.dtype != x.dtype:
        return (
            f"the output has shape {tuple(y.shape)} and dtype {y.dtype}; expected {tuple(x.shape)} and {x.dtype} of "
            "the input"
        )
    for index in range(x.shape[1]):
        difference = max_difference(function(x[:, index : index + 1]), y[:, index : index + 1])
        if difference > TOLERANCE:
            return (
                f"the output at position {index} of {x.shape[1]} differs by {difference:.2g} from that of the same "
                "token "
                "alone. Usual cause: an operation over the sequence dimension"
            )
    return HOLDS


def placement_wiring(case: Case, host: HostModel) -> Verdict:
    """A placement runs each sublayer once, uses its output, and keeps the shape."""
    model = case.small_model(host)
    layer = model.stack().layers[0]
    assert isinstance(layer, Layer)
    placement = layer.placement
    assert placement is not None
    names = model.stack().shape.sublayers
    x = noise("rows", 2, 3, model.stack().shape.width)
    called: list[str] = []
    y = placement(x, _sublayers(names, called, ""))
    if sorted(called) != sorted(names):
        return f"it runs the sublayers {', '.join(called) or 'none'}; expected each of {', '.join(names)} once"
    if y.shape != x.shape:
        return f"the output has shape {tuple(y.shape)}; expected {tuple(x.shape)} of the input"
    for name in names:
        if torch.equal(placement(x, _sublayers(names, [], name)), y):
            return f"the output of the sublayer `{name}` does not change the output of the layer"
    return HOLDS


def _sublayers(names: tuple[str, ...], called: list[str], doubled: str) -> Mapping[str, Sublayer]:
    def sublayer(name: str) -> Sublayer:
        def run(h: Tensor) -> Tensor:
            called.append(name)
            fixed = noise(name, *h.shape[1:])
            return fixed.tanh() * h.sin() * (2 if name == doubled else 1) + fixed * (2 if name == doubled else 1)

        return run

    return {name: sublayer(name) for name in names}


OPTION_LENGTH = 20
ROUNDING = 1e-12  # above the difference of two kernels, below the effect of an option
MAX_NUMERIC_VALUES = 3  # alternative values of a numeric option


def options(case: Case, host: HostModel) -> Verdict:
    """Each value of a choice, and some other value of each number, changes the weights or the output of a model."""
    if not case.entry.options:
        return DOES_NOT_APPLY
    preset_traces = [(host, _trace(host.spec, case)) for host in case.host_models if host.is_preset]
    for path, option in flatten_options(case.entry.options):
        fault = _option_fault(case, preset_traces, path, option)
        if fault:
            return fault
    return HOLDS


def flatten_options(options: Sequence[Option], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Option]]:
    """Yield all options with their paths; groups are flattened."""
    for option in options:
        if option.kind.name == "group":
            yield from flatten_options(option.kind.options, (*path, option.name))
        else:
            yield (*path, option.name), option


def _option_fault(
    case: Case, preset_traces: Sequence[tuple[HostModel, Trace]], path: tuple[str, ...], option: Option
) -> str:
    is_choice = option.kind.name in ("choice", "bool")
    ignored: list[Any] = []
    count = 0
    for value in alternative_values(option, preset_traces[0][0].spec):
        if count == MAX_NUMERIC_VALUES and not is_choice:
            break
        changes = [_changes_model(case, host, trace, path, value) for host, trace in preset_traces]
        if all(change is None for change in changes):
            continue  # no valid value here
        count += 1
        if not any(changes):
            ignored.append(value)
        elif not is_choice:
            return HOLDS
    if ignored:
        return (
            f"the option `{'.'.join(path)}` has no effect: {ignored[0]!r} gives the same weights and output as "
            f"{option.sample!r}"
        )
    return HOLDS


def _changes_model(case: Case, host: HostModel, preset_trace: Trace, path: tuple[str, ...], value: Any) -> bool | None:
    """Return True if the value changes this model; None if it is invalid or equal to the current value."""
    node = example_node(case.entry)
    inner: dict[str, Any] = node
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = value
    try:
        spec = case.resolved(host.label, case.component_overrides(host.label, node))
        return None if spec == host.spec else not _is_same_trace(_trace(spec, case), preset_trace)
    except SpecError:
        return None


class Trace(NamedTuple):
    """Outputs of a model (scores, hidden states in training, auxiliary loss) and its initial parameters."""

    outputs: list[Tensor]
    parameters: dict[str, Tensor]


def _trace(spec: Mapping[str, Any], case: Case) -> Trace:
    """Trace a model before and after perturbation: a parameter initialized to 0 has an effect only after it."""
    model = SmallModel(spec, case.registry, perturbed=False)
    parameters: dict[str, Tensor] = {
        f"{name}.{path}": parameter.detach().clone()
        for name, child in model.children.items()
        for path, parameter in child.named_parameters()
    }
    initial_outputs = _run_model(model)
    model.perturb()
    return Trace([*initial_outputs, *_run_model(model)], parameters)


def _run_model(model: SmallModel) -> list[Tensor]:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        stream = model.with_segments(model.tokens(2, OPTION_LENGTH))
        torch.manual_seed(0)
        scores = model.scores(model.hidden(stream))
        model.topology.train()
        torch.manual_seed(0)
        training = model.output(stream)
        model.topology.eval()
    return [scores, training.hidden, *([] if training.auxiliary is None else [training.auxiliary.reshape(1)])]


def _is_same_trace(trace: Trace, other_trace: Trace) -> bool:
    """Compare two traces; parameters that only one of them has are ignored, as they are unused if outputs agree."""
    shared_paths = trace.parameters.keys() & other_trace.parameters.keys()
    return (
        len(trace.outputs) == len(other_trace.outputs)
        and all(
            tensor.shape == other_tensor.shape and max_difference(tensor, other_tensor) <= ROUNDING
            for tensor, other_tensor in zip(trace.outputs, other_trace.outputs, strict=True)
        )
        and all(torch.equal(trace.parameters[path], other_trace.parameters[path]) for path in shared_paths)
    )

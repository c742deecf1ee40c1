"""What a model costs, component by component: counted parameters, declared operations, kept state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from paribus.assembly.build import Assembled
from paribus.parts.attend import Attend
from paribus.parts.draw import Draw
from paribus.parts.layer import Layer
from paribus.parts.rows import Stream
from paribus.parts.stack import Stack
from paribus.slots.component import Load
from paribus.slots.objective import Objective


class Line(NamedTuple):
    """One kind of component, over all the places where it is used."""

    path: str  # "body.attention", "embedding", "objectives.mlm"
    parameters: int
    flops: int  # of one example's forward pass
    state: int  # elements kept to decode one example


class Costs(NamedTuple):
    """A whole model's, for examples of `length` rows."""

    lines: tuple[Line, ...]
    parameters: int
    flops: int
    state: int
    length: int

    @property
    def flops_per_token(self) -> float:
        """Of a forward pass; a training step is about three times that."""
        return self.flops / self.length

    def cache_bytes_per_token(self, bytes_an_element: int = 4) -> float:
        return self.state * bytes_an_element / self.length


def costs(model: Assembled, length: int) -> Costs:
    """Parameters are distinct tensors, counted; operations and state are what each component declares.

    Operations are those of a training example, whose rows the objectives decide; state is that of `length` rows.
    """
    lines = list(_lines(model, length))
    return Costs(
        tuple(lines),
        parameters(model.children()),
        sum(line.flops for line in lines),
        sum(line.state for line in lines),
        length,
    )


def parameters(children: Mapping[str, nn.Module]) -> int:
    """How many numbers a model learns; a tied tensor counts once."""
    return sum({id(p): p.numel() for child in children.values() for p in child.parameters()}.values())


def rows_of_parts(model: Assembled, length: int) -> dict[str, int]:
    """How many rows each part reads of one example: an objective may give one more of them than another."""
    trained = [_objective(model, name) for name in model.trained]
    forms = any(objective.traits.get("forms") for objective in trained)
    raw = length if forms else max(objective.raw(length) for objective in trained)
    streams: Mapping[str, Stream] = {"body": Stream(torch.zeros(1, raw, dtype=torch.long, device="cpu"))}
    draw = Draw(0, 0, torch.zeros(1, dtype=torch.long, device="cpu"))
    for objective in trained:
        streams, _ = objective.corrupt(streams, {}, draw)
    return {path: stream.tokens.shape[1] for path, stream in streams.items()}


def _lines(model: Assembled, length: int) -> Iterator[Line]:
    seen: set[int] = set()  # a tied tensor is counted where it is met first
    rows = rows_of_parts(model, length)
    embedding = model.topology.embedding
    scored = sum(_scored(_objective(model, name), model, length) for name in model.trained)
    flops = embedding.cost(Load(length, length, picks=scored)).flops
    for part, stack in zip(model.topology.parts, _stacks(model), strict=True):
        flops += embedding.own_cost(stack.shape, Load(rows[part.path], rows[part.path])).flops
    owned = [stack.embedding for stack in _stacks(model) if stack.embedding is not None]
    yield Line("embedding", sum(_fresh(module, seen) for module in (embedding, *owned)), flops, 0)
    for part, stack in zip(model.topology.parts, _stacks(model), strict=True):
        trains = Load(rows[part.path], rows[part.path], memory=rows[part.cross] if part.cross else 0)
        decodes = Load(length, length, memory=length if part.cross else 0) if part.causal else None
        yield from _stack_lines(part.path, stack, trains, decodes, seen)
    for name in model.objectives:
        objective = _objective(model, name)
        cost = objective.cost(Load(length, length, picks=objective.picks(length)))
        yield Line(f"objectives.{name}", _fresh(objective, seen), cost.flops if name in model.trained else 0, 0)


def _stacks(model: Assembled) -> list[Stack]:
    found = [model.topology.get_submodule(part.path) for part in model.topology.parts]
    assert all(isinstance(stack, Stack) for stack in found)
    return found  # type: ignore[return-value]  # asserted above; mypy does not follow `all`


def _objective(model: Assembled, name: str) -> Objective:
    objective = model.objectives[name]
    assert isinstance(objective, Objective)
    return objective


def _scored(objective: Objective, model: Assembled, length: int) -> int:
    """How many rows the objective has scored against the whole vocabulary: all that its head runs on, or none."""
    asked: list[Tensor] = []
    body = model.topology.get_submodule("body")
    assert isinstance(body, Stack)

    def unembed(h: Tensor, bias: Tensor | None = None) -> Tensor:
        asked.append(h)
        return model.topology.embedding.unembed(h, bias)

    with torch.no_grad():
        objective.logits(next(body.parameters()).new_zeros(1, 1, body.shape.width), unembed)
    return objective.picks(length) if asked else 0


def _stack_lines(path: str, stack: Stack, trains: Load, decodes: Load | None, seen: set[int]) -> Iterator[Line]:
    names = ["attention", *(["cross"] if trains.memory else []), "feedforward"]
    for name in names:
        flops, state, count = 0, 0, 0
        for layer in stack.layers:
            assert isinstance(layer, Layer)
            component = getattr(layer, name)
            flops += component.cost(trains).flops
            state += component.cost(decodes).state if decodes is not None else 0
            count += _fresh(component, seen)
        yield Line(f"{path}.{name}", count, flops, state)
    yield Line(f"{path}.position", _positioned(stack, seen), sum(_read(stack, trains)), 0)
    yield Line(f"{path}.norms", _fresh(stack, seen), 0, 0)  # what is left: placements and the final norm


def _read(stack: Stack, load: Load) -> Iterator[int]:
    """The operations of each position that an attention reads: once for each layer, or for all that share a plan."""
    across = load._replace(keys=load.memory)
    planned: set[int] = set()
    for layer in stack.layers:
        assert isinstance(layer, Layer)
        for attention, rows in ((layer.attention, load), (layer.cross, across)):
            for module in attention.modules() if attention is not None else ():
                if isinstance(module, Attend) and module.plan not in planned:
                    if module.position.traits["bias"] == "positions":
                        planned.add(module.plan)
                    yield module.position.cost(rows).flops


def _positioned(stack: Stack, seen: set[int]) -> int:
    """The parameters of the stack's positions, and of those of its layers."""
    held: list[nn.Module | None] = [stack.position]
    for layer in stack.layers:
        assert isinstance(layer, Layer)
        held += [layer.position, layer.cross_position]
    return sum(_fresh(module, seen) for module in held if module is not None)


def _fresh(module: nn.Module, seen: set[int]) -> int:
    count = 0
    for parameter in module.parameters():
        if id(parameter) not in seen:
            seen.add(id(parameter))
            count += parameter.numel()
    return count

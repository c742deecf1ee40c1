"""What a model costs, component by component: counted parameters, declared operations, kept state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from torch import nn

from paribus.assembly.build import Assembled
from paribus.parts.layer import Layer
from paribus.parts.stack import Stack
from paribus.slots.component import Cost, Load
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
    """Parameters are distinct tensors, counted; operations and state are what each component declares."""
    lines = list(_lines(model, length))
    distinct = {id(p): p.numel() for child in model.children().values() for p in child.parameters()}
    return Costs(
        tuple(lines),
        sum(distinct.values()),
        sum(line.flops for line in lines),
        sum(line.state for line in lines),
        length,
    )


def parameters(children: Mapping[str, nn.Module]) -> int:
    """How many numbers a model learns; a tied tensor counts once."""
    return sum({id(p): p.numel() for child in children.values() for p in child.parameters()}.values())


def _lines(model: Assembled, length: int) -> Iterator[Line]:
    seen: set[int] = set()  # a tied tensor is counted where it is met first
    picks = max((_picks(objective, length) for objective in model.objectives.values()), default=0)
    embedding = model.topology.embedding
    yield Line("embedding", _fresh(embedding, seen), embedding.cost(Load(length, length, picks=picks)).flops, 0)
    for part in model.topology.parts:
        stack = model.topology.get_submodule(part.path)
        assert isinstance(stack, Stack)
        load = Load(length, length, memory=length if part.cross else 0)
        yield from _stack_lines(part.path, stack, load, decodes=part.causal, seen=seen)
    for name, objective in model.objectives.items():
        assert isinstance(objective, Objective)
        flops = objective.cost(Load(length, length, picks=objective.picks(length))).flops
        yield Line(f"objectives.{name}", _fresh(objective, seen), flops, 0)


def _picks(objective: nn.Module, length: int) -> int:
    assert isinstance(objective, Objective)
    return objective.picks(length)


def _stack_lines(path: str, stack: Stack, load: Load, *, decodes: bool, seen: set[int]) -> Iterator[Line]:
    names = ["attention", *(["cross"] if load.memory else []), "feedforward"]
    for name in names:
        cost, count = Cost(), 0
        for layer in stack.layers:
            assert isinstance(layer, Layer)
            component = getattr(layer, name)
            cost = cost + component.cost(load)
            count += _fresh(component, seen)
        yield Line(f"{path}.{name}", count, cost.flops, cost.state if decodes else 0)
    yield Line(f"{path}.position", _fresh(stack.position, seen), 0, 0)
    yield Line(f"{path}.norms", _fresh(stack, seen), 0, 0)  # what is left: placements and the final norm


def _fresh(module: nn.Module, seen: set[int]) -> int:
    count = 0
    for parameter in module.parameters():
        if id(parameter) not in seen:
            seen.add(id(parameter))
            count += parameter.numel()
    return count

"""What a model costs, component by component: counted parameters, declared operations, kept state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from paribus.assembly.build import ModelParts
from paribus.parts.batch import Stream
from paribus.parts.draw import Draw
from paribus.parts.stack import Stack, Stage
from paribus.slots.component import Load
from paribus.slots.objective import Objective

FAR: Final = 1 << 40  # rows: further than any window reaches


class CostLine(NamedTuple):
    """One kind of component, over all the places where it is used."""

    path: str  # "body.attention", "embedding", "objectives.mlm"
    parameters: int
    flops: int  # of one example's forward pass
    state: int  # elements kept to decode one example


class ModelCost(NamedTuple):
    """A whole model's, for examples of `length` rows."""

    lines: tuple[CostLine, ...]
    parameters: int
    flops: int
    state: int
    length: int

    @property
    def flops_per_token(self) -> float:
        """Of a forward pass; a training step is about three times that."""
        return self.flops / self.length

    @property
    def training_flops(self) -> int:
        """Of one example: forward, and twice as many backward, for what flows back and for the parameters."""
        return 3 * self.flops

    def cache_bytes_per_token(self, bytes_an_element: int = 4) -> float:
        return self.state * bytes_an_element / self.length


def model_cost(model: ModelParts, length: int) -> ModelCost:
    """Parameters are distinct tensors, counted; operations and state are what each component declares.

    Operations are those of a training example, whose rows the objectives decide; state is that of `length` rows.
    """
    lines = list(_lines(model, length))
    return ModelCost(
        tuple(lines),
        count_parameters(model.children()),
        sum(line.flops for line in lines),
        sum(line.state for line in lines),
        length,
    )


def decoding_state(model: ModelParts, rows: int) -> int:
    """Elements kept to decode an example of so many rows."""
    once = Load(1, 1, memory=1)
    return sum(
        share.state
        for part, stage in zip(model.topology.parts, _stages(model), strict=True)
        if part.causal
        for share in stage.costs(once, Load(rows, rows, memory=rows if part.cross else 0))
    )


def constant_state(model: ModelParts) -> int:
    """Those of them that do not grow with the rows: a recurrence's, and what a window keeps of the past."""
    return 2 * decoding_state(model, FAR) - decoding_state(
        model, 2 * FAR
    )  # what grows does so evenly, once it is longer than any window


def training_flops(model: ModelParts, length: int, teacher: ModelParts | None = None) -> int:
    """The operations of training on one example: three times a forward pass, and one of its teacher, if it has one."""
    return model_cost(model, length).training_flops + (0 if teacher is None else model_cost(teacher, length).flops)


def count_parameters(children: Mapping[str, nn.Module]) -> int:
    """How many numbers a model learns; a tied tensor counts once."""
    return sum({id(p): p.numel() for child in children.values() for p in child.parameters()}.values())


class TokenCounts(NamedTuple):
    """What a part is given of one example."""

    tokens: int  # that it reads
    queries: int  # that only ask, behind these


def tokens_per_part(model: ModelParts, length: int) -> dict[str, TokenCounts]:
    """How many rows each part has of one example: an objective may give one more of them than another."""
    trained = [_objective(model, name) for name in model.trained]
    forming = [objective for objective in trained if objective.traits.get("example_kind")]
    raw = length if forming else max(objective.text_length(length) for objective in trained)
    whole = Stream(torch.zeros(1, raw, dtype=torch.long, device="cpu"))
    formed = ["body", *(path for objective in forming for path in objective.traits.get("parts", []))]
    streams: Mapping[str, Stream] = dict.fromkeys(formed, whole)
    draw = Draw(0, 0, torch.zeros(1, dtype=torch.long, device="cpu"))
    for objective in trained:
        streams, _ = objective.corrupt(streams, {}, draw)
    return {
        path: TokenCounts(
            stream.tokens.shape[1], 0 if stream.query_positions is None else stream.query_positions.shape[1]
        )
        for path, stream in streams.items()
    }


def _lines(model: ModelParts, length: int) -> Iterator[CostLine]:
    seen: set[int] = set()  # a tied tensor is counted where it is met first
    given = tokens_per_part(model, length)
    embedding = model.topology.embedding
    scored = sum(_scored(_objective(model, name), model, length) for name in model.trained)
    flops = embedding.cost(Load(length, length, head_positions=scored)).flops
    for part, stage in zip(model.topology.parts, _stages(model), strict=True):
        rows = sum(given[part.path])
        flops += embedding.stack_part_cost(stage.input_shape, Load(rows, rows)).flops
    owned = [stage.embedding for stage in _stages(model) if stage.embedding is not None]
    yield CostLine("embedding", sum(_fresh(module, seen) for module in (embedding, *owned)), flops, 0)
    for part, stage in zip(model.topology.parts, _stages(model), strict=True):
        rows = given[part.path].tokens
        trains = Load(sum(given[part.path]), rows, memory=given[part.cross].tokens if part.cross else 0)
        decodes = Load(length, length, memory=length if part.cross else 0) if part.causal else None
        for share in stage.costs(trains, decodes):
            count = sum(_fresh(module, seen) for module in share.modules)
            yield CostLine(f"{part.path}.{share.name}", count, share.flops, share.state)
    for name, child in model.topology.named_children():
        left = _fresh(child, seen)
        if left:
            yield CostLine(name, left, 0, 0)  # what a topology has of its own
    for name in model.objectives:
        objective = _objective(model, name)
        flops = objective.cost(Load(length, length, head_positions=objective.head_positions(length))).flops
        if objective.last_layer_reruns:
            flops += objective.last_layer_reruns * _last(model, given["body"].tokens, objective.head_positions(length))
        yield CostLine(f"objectives.{name}", _fresh(objective, seen), flops if name in model.trained else 0, 0)


def _last(model: ModelParts, rows: int, asking: int) -> int:
    """The operations of the body's last layer, for rows that it read and others that ask it again."""
    stack = model.topology.stage("body")
    assert isinstance(stack, Stack), "an objective asks again only where there is a last layer"
    return stack.last_layer_flops(Load(rows + asking, rows))


def _stages(model: ModelParts) -> list[Stage]:
    return [model.topology.stage(part.path) for part in model.topology.parts]


def _objective(model: ModelParts, name: str) -> Objective:
    objective = model.objectives[name]
    assert isinstance(objective, Objective)
    return objective


def _scored(objective: Objective, model: ModelParts, length: int) -> int:
    """How many rows the objective has scored against the whole vocabulary."""
    told = objective.unembed_positions(length)
    if told is not None:
        return told
    return objective.head_positions(length) if scores_the_vocabulary(objective, model) else 0


def scores_the_vocabulary(objective: Objective, model: ModelParts) -> bool:
    """Whether the objective's head has its rows scored against the whole vocabulary: all of them, or none."""
    asked: list[Tensor] = []
    body = model.topology.stage("body")

    def unembed(h: Tensor, bias: Tensor | None = None) -> Tensor:
        asked.append(h)
        return model.topology.embedding.unembed(h, bias)

    with torch.no_grad():
        objective.logits(next(body.parameters()).new_zeros(1, 1, body.shape.width), unembed)
    return bool(asked)


def _fresh(module: nn.Module, seen: set[int]) -> int:
    count = 0
    for parameter in module.parameters():
        if id(parameter) not in seen:
            seen.add(id(parameter))
            count += parameter.numel()
    return count

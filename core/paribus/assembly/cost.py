"""Cost of a model by component: parameters, FLOPs, and decoding state."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from paribus.assembly.build import ModelParts
from paribus.parts.batch import Stream
from paribus.parts.random_draws import Draw
from paribus.parts.shape import Load
from paribus.parts.stack import Stack, Stage
from paribus.slots.norm import Norm
from paribus.slots.objective import Objective
from paribus.slots.topology import Part

FAR: Final = 1 << 40  # tokens: more than any attention window


class CostLine(NamedTuple):
    """Cost of one kind of component, over all of its uses."""

    path: str  # "body.attention", "embedding", "objectives.mlm"
    parameters: int
    flops: int  # of a forward pass of one example
    state: int  # elements that decoding one example keeps


class ModelCost(NamedTuple):
    """Cost of a whole model, for examples of `length` tokens."""

    lines: tuple[CostLine, ...]
    parameters: int
    flops: int
    state: int
    length: int

    @property
    def flops_per_token(self) -> float:
        """FLOPs of a forward pass; a training step has about three times as many."""
        return self.flops / self.length

    def cache_bytes_per_token(self, bytes_an_element: int = 4) -> float:
        return self.state * bytes_an_element / self.length


def model_cost(model: ModelParts, length: int) -> ModelCost:
    """Return the cost of a model: distinct parameters are counted; components declare their FLOPs and state.

    FLOPs are those of a training example, whose tokens the objectives decide; state is that of `length` tokens.
    """
    lines = list(_lines(model, length))
    return ModelCost(
        tuple(lines),
        count_parameters(model.children()),
        sum(line.flops for line in lines),
        sum(line.state for line in lines),
        length,
    )


def decoding_state(model: ModelParts, length: int) -> int:
    """Return the elements that decoding an example of `length` tokens keeps."""
    training_load = Load(1, 1, memory=1)
    return sum(
        share.state
        for part, stage in zip(model.topology.parts, _stages(model), strict=True)
        if part.causal
        for share in stage.costs(training_load, Load(length, length, memory=length if part.cross else 0))
    )


def constant_state(model: ModelParts) -> int:
    """Return the elements that do not grow with the length: of recurrences and attention windows."""
    # Beyond all windows, the state grows linearly.
    return 2 * decoding_state(model, FAR) - decoding_state(model, 2 * FAR)


def training_flops(
    model: ModelParts, length: int, teacher: ModelParts | None = None, frozen: Collection[str] = ()
) -> int:
    """Return the FLOPs of training on one example: a forward pass, its gradients, and a forward pass of the teacher.

    Gradients take twice as many as the forward pass, and less where parameters are frozen, given by their paths.
    """
    trained = {id(parameter): path for path, parameter in _trained_parameters(model.children(), frozen)}
    flops = sum(share.flops + _backward_flops(share, trained) for share in _shares(model, length))
    return flops + (0 if teacher is None else model_cost(teacher, length).flops)


def count_parameters(children: Mapping[str, nn.Module], frozen: Collection[str] = ()) -> int:
    """Return the number of parameters, or of those that are not frozen; tied tensors count once."""
    return sum(parameter.numel() for _, parameter in _trained_parameters(children, frozen))


def _trained_parameters(
    children: Mapping[str, nn.Module], frozen: Collection[str]
) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield each parameter that is not frozen, by the first of its paths."""
    seen: set[int] = set()
    for name, child in children.items():
        for path, parameter in child.named_parameters(prefix=name):
            if id(parameter) not in seen and path not in frozen:
                yield path, parameter
            seen.add(id(parameter))


class TokenCounts(NamedTuple):
    """Number of tokens of one example in a part."""

    tokens: int  # with keys and values
    queries: int  # with queries only, after these


def tokens_per_part(model: ModelParts, length: int) -> dict[str, TokenCounts]:
    """Return the number of tokens of one example in each part, which depends on the objectives."""
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


class _Share(NamedTuple):
    """Cost of one component in one place."""

    path: str  # of its line
    modules: tuple[nn.Module, ...]
    flops: int = 0
    state: int = 0
    part: Part | None = None  # None: of the embedding, or of an objective
    layer: int | None = None
    tokens: int | None = None  # None: all of its products are with parameters


def _lines(model: ModelParts, length: int) -> Iterator[CostLine]:
    counted: set[int] = set()  # a tied tensor is counted at its first use
    lines: dict[str, CostLine] = {}
    for share in _shares(model, length):
        line = lines.get(share.path, CostLine(share.path, 0, 0, 0))
        count = sum(_count_new(module, counted) for module in share.modules)
        lines[share.path] = CostLine(
            share.path, line.parameters + count, line.flops + share.flops, line.state + share.state
        )
    children = {name for name, _ in model.topology.named_children()} - {"embedding"}  # with what no part counts
    return (line for path, line in lines.items() if line.parameters or path not in children)


def _shares(model: ModelParts, length: int) -> Iterator[_Share]:
    counts = tokens_per_part(model, length)
    embedding = model.topology.embedding
    flops = embedding.cost(Load(length, length, head_positions=scored_positions(model, length))).flops
    for part, stage in zip(model.topology.parts, _stages(model), strict=True):
        tokens = sum(counts[part.path])
        flops += embedding.stack_part_cost(stage.input_shape, Load(tokens, tokens)).flops
        flops += _norm_flops(embedding, tokens) + _norm_flops(stage.embedding, tokens)
    stage_embeddings = [stage.embedding for stage in _stages(model) if stage.embedding is not None]
    yield _Share("embedding", (embedding, *stage_embeddings), flops)
    for part, stage in zip(model.topology.parts, _stages(model), strict=True):
        tokens = counts[part.path].tokens
        trains = Load(sum(counts[part.path]), tokens, memory=counts[part.cross].tokens if part.cross else 0)
        decodes = Load(length, length, memory=length if part.cross else 0) if part.causal else None
        for cost in stage.costs(trains, decodes):
            fewest = min(trains.queries, trains.memory or trains.queries)
            yield _Share(f"{part.path}.{cost.name}", cost.modules, cost.flops, cost.state, part, cost.layer, fewest)
    for name, child in model.topology.named_children():
        yield _Share(name, (child,))  # modules of the topology itself
    for name in model.objectives:
        objective = _objective(model, name)
        scored = objective.head_positions(length)
        flops = objective.cost(Load(length, length, head_positions=scored)).flops + _norm_flops(objective, scored)
        if objective.last_layer_reruns:
            flops += objective.last_layer_reruns * _last_layer_flops(
                model, counts["body"].tokens, objective.head_positions(length)
            )
        yield _Share(f"objectives.{name}", (objective,), flops if name in model.trained else 0)


def _norm_flops(module: nn.Module | None, tokens: int) -> int:
    """Return the FLOPs of the norms in a module, each of which runs once on each of the tokens."""
    norms = [] if module is None else [part for part in module.modules() if isinstance(part, Norm)]
    return sum(norm.cost(Load(tokens, tokens)).flops for norm in norms)


def _backward_flops(share: _Share, trained: Mapping[int, str]) -> int:
    """Return at most as many FLOPs as the gradients of a component take, where `trained` has ids and paths.

    Gradients of activations are needed if the component, or one before it, is trained, where all of the embedding
    counts as before the parts. A weight takes two FLOPs for each token, and the other products are of two activations,
    such as scores of attention.
    """
    part, layer = share.part, share.layer
    if part is not None and not any(_is_before(path, part, layer) for path in trained.values()):
        return 0
    sizes = {id(each): each.numel() for module in share.modules for each in module.parameters() if each.ndim > 1}
    total = sum(sizes.values())
    with_weights = share.flops if share.tokens is None else min(share.flops, 2 * share.tokens * total)
    untrained = sum(size for key, size in sizes.items() if key not in trained)
    return 2 * share.flops - (with_weights * untrained // total if total else 0)


def _is_before(path: str, part: Part, layer: int | None) -> bool:
    """Return whether a parameter is in what a component of a part depends on, or beside it in its layer."""
    place, *rest = path.split(".")
    if place != part.path:
        return place in ("embedding", part.cross)
    if layer is None or rest[0] != "layers":
        return rest[0] != "norm"  # the last
    return int(rest[1]) <= layer


def _last_layer_flops(model: ModelParts, tokens: int, queries: int) -> int:
    """Return the FLOPs of the body's last layer, for its tokens and for additional queries."""
    stack = model.topology.stage("body")
    assert isinstance(stack, Stack), "only a stack has a last layer to run again"
    return stack.last_layer_flops(Load(tokens + queries, tokens))


def _stages(model: ModelParts) -> list[Stage]:
    return [model.topology.stage(part.path) for part in model.topology.parts]


def _objective(model: ModelParts, name: str) -> Objective:
    objective = model.objectives[name]
    assert isinstance(objective, Objective)
    return objective


def scored_positions(model: ModelParts, length: int) -> int:
    """Return the number of positions of one example with logits over the vocabulary, in all trained objectives."""
    return sum(_scored(_objective(model, name), model, length) for name in model.trained)


def _scored(objective: Objective, model: ModelParts, length: int) -> int:
    """Return the number of positions at which the objective has logits over the vocabulary."""
    positions = objective.unembed_positions(length)
    if positions is not None:
        return positions
    return objective.head_positions(length) if scores_the_vocabulary(objective, model) else 0


def scores_the_vocabulary(objective: Objective, model: ModelParts) -> bool:
    """Return True if the objective's head has logits over the vocabulary."""
    calls: list[Tensor] = []
    body = model.topology.stage("body")

    def unembed(h: Tensor, bias: Tensor | None = None) -> Tensor:
        calls.append(h)
        return h.new_zeros(*h.shape[:-1], body.shape.vocabulary)  # of another's head, h may not have its width

    with torch.no_grad():
        objective.logits(next(body.parameters()).new_zeros(1, 1, body.shape.width), unembed)
    return bool(calls)


def _count_new(module: nn.Module, counted: set[int]) -> int:
    count = 0
    for parameter in module.parameters():
        if id(parameter) not in counted:
            counted.add(id(parameter))
            count += parameter.numel()
    return count

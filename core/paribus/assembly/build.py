"""Builder of a model's modules: every stack, layer and sublayer that a spec names."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, final

import torch
from torch import nn

from paribus.assembly.components import Classes, Node, make
from paribus.assembly.forward_pass import own_heads, require_scored_width
from paribus.errors import Problem, SpecError
from paribus.parts.attention_planner import CrossAttention
from paribus.parts.context import Kernel
from paribus.parts.shape import Shape
from paribus.parts.stack import Layer, Stack
from paribus.slots.attention import Attention
from paribus.slots.embedding import Embedding
from paribus.slots.feedforward import FeedForward
from paribus.slots.norm import Norm, Norms
from paribus.slots.objective import Objective
from paribus.slots.placement import Placement, StreamPlacement
from paribus.slots.position import Position
from paribus.slots.tokenizer import Vocabulary
from paribus.slots.topology import Part, Topology
from paribus.specs.fields import CYCLED, NO_POSITION

Spec = Mapping[str, Any]

# Torch's messages for a size of more than 64 bits. An overflow in a component's own arithmetic reads otherwise.
SIZE_OVERFLOW: Final = re.compile(
    r"Storage size calculation overflowed|argument 'size' failed to unpack .*Overflow when unpacking long"
    r"|integer multiplication overflow"
)


class ModelParts(NamedTuple):
    """Modules of a model."""

    topology: Topology
    objectives: nn.ModuleDict
    trained: tuple[str, ...]  # names of objectives in the training loss; the others are only evaluated

    def children(self) -> dict[str, nn.Module]:
        """Return the modules by the first word of their paths: embedding, body, encoder, objectives."""
        return {**dict(self.topology.named_children()), "objectives": self.objectives}


def build(spec: Spec, classes: Classes, vocabulary: Vocabulary, kernels: Sequence[Kernel]) -> ModelParts:
    """Build the modules on the meta device: shapes without storage, in milliseconds at any size."""
    topology_class = classes.get("topology", spec["topology"]["name"])
    assert issubclass(topology_class, Topology)
    with _report_size_overflow(), torch.device("meta"):
        builder = SpecBuilder(spec, classes, vocabulary, kernels, topology_class.parts)
        topology = make(classes, "topology", spec["topology"], builder, kind=Topology)
        other_shapes = tuple(topology.stage(part.path).shape for part in topology.parts if part.path != "body")
        shape = dataclasses.replace(topology.stage("body").shape, other_shapes=other_shapes)
        objectives: dict[str, Objective] = {}
        for node in objective_nodes(spec):
            norm = builder.norm(spec, shape.width, 0, f"objective `{node['name']}`")
            objective = make(classes, "objective", node, shape, vocabulary, norm, kind=Objective)
            if objective.further_layers:
                stacks = [builder.further_layer(node["name"]) for _ in range(objective.further_layers)]
                objective.layers = nn.ModuleList(stacks)
            objectives[node["name"]] = objective
    if not own_heads(objectives) and any(head.traits.get("unembeds", True) for head in objectives.values()):
        require_scored_width(shape)
    return ModelParts(topology, nn.ModuleDict(objectives), tuple(node["name"] for node in as_list(spec["objective"])))


@contextmanager
def _report_size_overflow() -> Iterator[None]:
    """Report a tensor whose size overflows 64 bits, which fails even without storage, as an error of the spec."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        if not SIZE_OVERFLOW.search(str(error)):
            raise
        message = "a tensor of this model has more elements than 64 bits can count"
        raise SpecError(Problem(code="too-large", path="dims", message=message, valid="smaller dims")) from error


def objective_nodes(spec: Spec) -> list[Node]:
    """Return the training objectives, then the others that are only evaluated; each once."""
    trained = as_list(spec["objective"])
    names = {node["name"] for node in trained}
    return [*trained, *(node for node in as_list(spec.get("evaluate") or []) if node["name"] not in names)]


def as_list(node: Any) -> list[Node]:
    return list(node) if isinstance(node, Sequence) else [node]


def component_of_layer(node: Any, layer: int) -> Node:
    """Return the component of a layer: a list of components is cycled over the layers."""
    nodes = as_list(node)
    return nodes[layer % len(nodes)]


def shared_layers(spec: Spec, layers: int) -> list[int]:
    """Return, for each layer, the first layer with the same parameters: itself, unless groups or a loop share them.

    Where a list of components is cycled over the layers, a group has one layer of each component.
    """
    dims = spec["dims"]
    if dims["loops"] is not None:
        first, end = dims["before_loop"], layers - dims["after_loop"]
        size = (end - first) // dims["loops"]
        return [first + (index - first) % size if first <= index < end else index for index in range(layers)]
    if dims["groups"] is None:
        return list(range(layers))
    group_size = layers // dims["groups"]
    lists = [spec[slot] for slot in CYCLED if slot in spec] + list((spec.get("cross") or {}).values())
    kinds = math.lcm(*(len(as_list(node)) for node in lists))
    return [index // group_size * group_size + index % group_size % kinds for index in range(layers)]


def loop_starts(spec: Spec, layers: int) -> tuple[int, ...]:
    """Return the first layer of each pass of the loop before which a learned vector is added."""
    dims = spec["dims"]
    if not dims["loop_embedding"]:
        return ()
    first, end = dims["before_loop"], layers - dims["after_loop"]
    return tuple(range(first, end, (end - first) // dims["loops"]))


@final
class SpecBuilder:
    """Builder that a topology receives. A part reads the spec merged with its own options under `parts:`."""

    def __init__(
        self,
        spec: Spec,
        classes: Classes,
        vocabulary: Vocabulary,
        kernels: Sequence[Kernel],
        parts: tuple[Part, ...],
    ) -> None:
        self.spec = spec
        self.classes = classes
        self.vocabulary = vocabulary
        self.kernels = kernels
        self.parts = {part.path: part for part in parts}
        self._embedding: Embedding | None = None
        self._embedded = self._shape(self.parts["body"])  # the shape of the shared embedding
        self._positions: dict[str, list[tuple[Node, Position]]] = {}  # of each stack so far, with their options

    def part_spec(self, part: Part) -> Spec:
        """Return the spec with the options of this part."""
        overrides = (self.spec.get("parts") or {}).get(part.name, {})
        dims = {**self.spec["dims"], **overrides.get("dims", {})}
        return {**self.spec, **overrides, "dims": dims}

    def shape(self, part: Part, layer: int | None = None) -> Shape:
        shape, table = self._shape(part, layer), self.embedding().width
        return shape if table in (None, shape.width) else dataclasses.replace(shape, table_width=table)

    def _shape(self, part: Part, layer: int | None = None) -> Shape:
        """Return the shape of a part, without the width of the embedding table."""
        spec = self.part_spec(part)
        dims = spec["dims"]
        if layer is not None and shared_layers(spec, dims["layers"]).count(layer) > 1:
            layer = None
        has = {"attention": True, "cross": part.cross, "feedforward": spec.get("feedforward") is not None}
        sublayers = tuple(name for name, is_present in has.items() if is_present)
        reader = next((candidate for candidate in self.parts.values() if candidate.cross == part.path), None)
        return Shape(
            width=dims["width"],
            heads=dims["heads"],
            head_width=dims["head_width"] or dims["width"] // dims["heads"],
            length=dims["length"],
            vocabulary=dims["vocabulary"] or self.vocabulary.size,
            layers=dims["layers"],
            layer=layer,
            branches=dims["layers"] * len(sublayers),
            stack=part.path,
            causal=part.causal,
            sublayers=sublayers,
            cross_layers=self.part_spec(reader)["dims"]["layers"] if reader else 0,
            dropout=float(spec["dropout"]),
        )

    def cross_shape(self, part: Part, layer: int | None = None) -> Shape:
        """Return the shape of a cross-attention and its position, which are not causal."""
        assert part.cross is not None, "the part has no cross-attention"
        memory_width = self.shape(self.parts[part.cross]).width
        return dataclasses.replace(self.shape(part, layer), causal=False, memory_width=memory_width)

    def norm(self, spec: Spec, stream: int, layer: int, owner: str) -> Norms:
        def make_norm(width: int | None = None) -> Norm:
            if spec.get("norm") is None:
                message = (
                    f"{owner} has a norm, but the topology `{spec['topology']['name']}` does not use the slot `norm`"
                )
                raise SpecError(
                    Problem(code="does-not-fit", path="norm", message=message, valid="a component without a norm")
                )
            return make(self.classes, "norm", component_of_layer(spec["norm"], layer), width or stream, kind=Norm)

        return make_norm

    def embedding(self, *, width: int | None = None, scored: int | None = None) -> Embedding:
        """Return the embedding that all parts share; the first call makes it."""
        if self._embedding is None:
            width = width or self._embedded.width
            self._embedded = dataclasses.replace(self._embedded, width=width, unembed_width=scored)
            self._embedding = self._table(self._embedded)
        return self._embedding

    def separate_embedding(self) -> Embedding:
        """Return a second embedding, without an output head."""
        return self._table(dataclasses.replace(self._embedded, unembed_width=0))

    def _table(self, shape: Shape) -> Embedding:
        node = self.spec["embedding"]
        embedding = make(self.classes, "embedding", node, shape, self._embeddings(shape), kind=Embedding)
        if embedding.reach and any(part.recurrent or part.opposite for part in self.parts.values()):
            message = f"embedding `{node['name']}` reads the tokens before each token"
            message += (
                f", which the topology `{self.spec['topology']['name']}` does not keep, or reads in both directions"
            )
            valid = "a topology of attention layers, or an embedding of single tokens"
            raise SpecError(Problem(code="does-not-fit", path="embedding", message=message, valid=valid))
        return embedding

    def _embeddings(self, shape: Shape) -> Norms:
        return self.norm(self.spec, shape.width, 0, f"embedding `{self.spec['embedding']['name']}`")

    def shape_of(self, path: str) -> Shape:
        """Return the shape of a part that is not a stack."""
        return self.shape(self.parts[path])

    def embedding_part(self, path: str) -> nn.ModuleDict | None:
        """Return the embedding modules that belong to a part that is not a stack."""
        shape = dataclasses.replace(self.shape(self.parts[path]), width=self._embedded.width)
        return self.embedding().stack_part(shape, self._embeddings(shape))

    def cross_attention(self, path: str, memory_width: int) -> tuple[Attention, CrossAttention]:
        """Return the attention by which a recurrent part reads an unprojected memory, and the module that runs it."""
        part = self.parts[path]
        shape = dataclasses.replace(self.shape(part), causal=False, memory_width=memory_width, raw_memory=True)
        attention = make(
            self.classes, "attention", component_of_layer(self.spec["attention"], 0), shape, kind=Attention
        )
        no_position = make(self.classes, "position", {"name": NO_POSITION}, shape, kind=Position)
        return attention, CrossAttention(attention, no_position, self.kernels, shape.heads)

    def stack(self, path: str, *, placed: str | None = None, causal: bool | None = None) -> Stack:
        part = self.parts[path] if causal is None else self.parts[path]._replace(causal=causal)
        spec, shape = self.part_spec(part), self.shape(part)
        reusable = [] if placed is None else self._positions[placed]
        shared = self._stack_positions(as_list(spec["position"]), shape, reusable)
        self._positions[path] = list(zip(as_list(spec["position"]), shared, strict=True))
        cross_positions = (
            self._stack_positions(as_list(self._cross(spec)["position"]), self.cross_shape(part), [])
            if part.cross
            else []
        )
        layers: list[Layer] = []
        wiring: list[tuple[Position, Position | None]] = []
        for source in shared_layers(spec, shape.layers):
            if source < len(layers):
                layers.append(layers[source])
                wiring.append(wiring[source])
                continue
            position = self._layer_position(spec, shared, source, self.shape(part, source))
            cross = None
            if part.cross:
                cross = self._layer_position(self._cross(spec), cross_positions, source, self.cross_shape(part, source))
            layers.append(self._layer(spec, part, source, position, cross))
            wiring.append((position, cross))
        _check_streams([layer.placement for layer in layers], as_list(spec.get("placement") or []))
        placement = layers[-1].placement if layers else None
        needs_final = isinstance(placement, Placement) and placement.traits["final_norm"]
        final_norm = self.norm(spec, shape.width, shape.layers - 1, "the stack")() if needs_final else None
        reused = [id(position) for _, position in reusable]
        own_positions = [position for position in (*shared, *cross_positions) if id(position) not in reused]
        positions = [position for position in own_positions if position.traits["owner"] == "stack"]
        embedding = self.embedding().stack_part(shape, self._embeddings(shape))
        keeps_inputs = self._hands_on_inputs(part)
        return Stack(
            shape,
            layers,
            positions,
            wiring,
            final_norm,
            self.kernels,
            embedding,
            keeps_inputs=keeps_inputs,
            loop_starts=loop_starts(spec, shape.layers),
        )

    def further_layer(self, owner: str) -> Stack:
        """Return a stack of one layer like the last of the body, for an objective."""
        body = self.parts["body"]
        if "body" not in self._positions or body.cross:
            message = f"objective `{owner}` has layers like those of the body, and the body of the topology "
            message += f"`{self.spec['topology']['name']}` {'reads another stack' if body.cross else 'has none'}"
            raise SpecError(Problem(code="does-not-fit", path="objective", message=message, valid="topology: decoder"))
        spec = self.part_spec(body)
        last = spec["dims"]["layers"] - 1
        nodes = {slot: component_of_layer(spec[slot], last) for slot in CYCLED if spec.get(slot) is not None}
        loop = {"groups": None, "loops": None, "before_loop": 0, "after_loop": 0, "loop_embedding": False}
        single = {**spec, **nodes, "parts": {}, "dims": {**spec["dims"], "layers": 1, **loop}}
        builder = SpecBuilder(single, self.classes, self.vocabulary, self.kernels, (body,))
        builder._embedding, builder._positions = self._embedding, self._positions.copy()
        stack = builder.stack("body", placed="body")
        stack.embedding = None  # it reads what the body's embedding returns
        return stack

    def _hands_on_inputs(self, part: Part) -> bool:
        """Return True if a cross-attention to this part needs the embedded tokens of its memory."""
        readers = [self.part_spec(reader) for reader in self.parts.values() if reader.cross == part.path]
        nodes = [node for spec in readers for node in as_list(self._cross(spec)["attention"])]
        kinds = [self.classes.get("attention", node["name"]) for node in nodes]
        return any(issubclass(kind, Attention) and "inputs" in kind.traits.get("needs", []) for kind in kinds)

    def _stack_positions(
        self, nodes: Sequence[Node], shape: Shape, reusable: Sequence[tuple[Node, Position]]
    ) -> list[Position]:
        """Return the positions of a stack: those of another stack where the options are equal, and new ones."""
        positions: list[Position] = []
        for index, node in enumerate(nodes):
            other_node, position = reusable[index] if index < len(reusable) else (None, None)
            if position is None or other_node != node or not _only_embeds(position):
                position = make(self.classes, "position", node, shape, kind=Position)
            positions.append(position)
        return positions

    def _layer_position(self, spec: Spec, shared: Sequence[Position], index: int, shape: Shape) -> Position:
        """Return the position of one layer: that of the stack, one of the layer, or none for an attention that reads
        none.
        """
        position = shared[index % len(shared)]
        attention = self.classes.get("attention", component_of_layer(spec["attention"], index)["name"])
        assert issubclass(attention, Attention)
        if {*position.traits["hooks"]} - {"embed"} and not attention.traits.get("position_hooks"):
            return make(self.classes, "position", {"name": NO_POSITION}, shape, kind=Position)
        if position.traits["owner"] == "stack":
            return position
        return make(self.classes, "position", component_of_layer(spec["position"], index), shape, kind=Position)

    def _cross(self, spec: Spec) -> Mapping[str, Any]:
        cross: Mapping[str, Any] = spec.get("cross") or {}
        return {
            "attention": cross.get("attention", spec["attention"]),
            "position": cross.get("position", {"name": "none"}),
        }

    def _layer(self, spec: Spec, part: Part, index: int, position: Position, cross_position: Position | None) -> Layer:
        shape = self.shape(part, index)
        cross = None
        if part.cross:
            node = component_of_layer(self._cross(spec)["attention"], index)
            cross = make(self.classes, "attention", node, self.cross_shape(part, index), kind=Attention)
        feedforward, placement = None, None
        if "feedforward" in shape.sublayers:
            node = component_of_layer(spec["feedforward"], index)
            feedforward = make(self.classes, "feedforward", node, shape, kind=FeedForward)
        if spec.get("placement") is not None:
            node, norm = (
                component_of_layer(spec["placement"], index),
                self.norm(spec, shape.width, index, "the placement"),
            )
            placement = make(self.classes, "placement", node, shape, norm, kind=Placement)
        return Layer(
            attention=make(
                self.classes, "attention", component_of_layer(spec["attention"], index), shape, kind=Attention
            ),
            feedforward=feedforward,
            placement=placement,
            dropout=shape.dropout,
            cross=cross,
            position=_layer_module(position, shape),
            cross_position=None if cross_position is None else _layer_module(cross_position, shape),
        )


def _check_streams(placements: Sequence[nn.Module | None], nodes: Sequence[Node]) -> None:
    """Reject a list of placements whose layers pass on different streams."""
    if len({type(placement) for placement in placements}) < 2:
        return
    for placement, node in zip(placements, nodes, strict=False):
        if isinstance(placement, StreamPlacement):
            other = next(each["name"] for each in nodes if each["name"] != node["name"])
            message = f"layers with `{node['name']}` pass on residual streams of their own, which `{other}` cannot read"
            valid = f"one placement for all layers: {node['name']}, or {other}"
            raise SpecError(Problem(code="does-not-fit", path="placement", message=message, valid=valid))


def _only_embeds(position: Position) -> bool:
    """Return True if a position acts on embeddings only, before the first layer, so that stacks can share it."""
    return position.traits["hooks"] == ["embed"] and position.traits["owner"] == "stack"


def _layer_module(position: Position, shape: Shape) -> nn.Module | None:
    """Return the module that a layer holds: its own position, or its part of the stack's position."""
    return position if position.traits["owner"] == "layer" else position.layer_part(shape)

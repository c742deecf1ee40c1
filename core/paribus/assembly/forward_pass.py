"""Forward pass of a batch that objectives share: each output is computed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast, final

from torch import Tensor, nn

from paribus.errors import Problem, SpecError, join_names
from paribus.parts.batch import Batch, StepInputFunction, Stream, token_layout
from paribus.parts.chunked_loss import Head, LossCall, head_loss, summed_cross_entropy
from paribus.parts.context import Capture, layer_number
from paribus.parts.shape import Shape
from paribus.parts.stack import Output, Stack
from paribus.slots.objective import Cached, Objective
from paribus.slots.topology import Topology, memory_of


@final
class BatchForward:
    """Forward pass of one batch; `of(name)` is its view for one objective."""

    def __init__(
        self,
        topology: Topology,
        batch: Batch,
        *,
        capture: Capture | bool = False,
        heads: Mapping[str, Objective] | None = None,
        teacher: BatchForward | None = None,
        losses: Mapping[str, LossCall] | None = None,
    ) -> None:
        """Begin the pass. `losses`: compiled forms of `head_loss`, by objective."""
        self.topology = topology
        self.batch = batch
        self.capture = capture if isinstance(capture, Capture) else Capture(weights=capture)
        self.outputs: dict[tuple[str, str], Output] = {}  # by part and key of replacement tokens
        self.caches: dict[str, dict[str, Any]] = {}  # cached results of each objective
        self.heads = heads or {}
        self.teacher = teacher
        self.losses = losses or {}

    def output(self, part: str, tokens: Tensor | None = None, key: str = "") -> Output:
        """Return the output of a part for the batch, or for `tokens` instead of its own, cached under `key`."""
        assert (tokens is None) == (not key), "`tokens` and `key` come together"
        if (part, key) not in self.outputs:
            crosses = next(candidate.cross for candidate in self.topology.parts if candidate.path == part)
            memory = memory_of(self.output(crosses)) if crosses else None
            streams = self.batch.streams
            if tokens is not None:
                streams = {**streams, part: streams[part]._replace(tokens=tokens)}
            self.outputs[part, key] = self.topology.run(streams, part, memory=memory, capture=self.captures_of(part))
        return self.outputs[part, key]

    def captures_of(self, part: str) -> Capture:
        """Return the tensors to capture in a part: layers are captured in the body only."""
        if part != "body":
            return Capture(weights=self.capture.weights)
        if not self.capture.heads and not self.capture.hidden:
            return self.capture
        stack = self.topology.get_submodule("body")
        try:
            return self.capture.resolve(len(stack.layers)) if isinstance(stack, Stack) else self.capture
        except ValueError as error:
            raise SpecError(Problem(code="unknown-layer", path="objective", message=str(error))) from None

    def captured(self, layer: int, name: str) -> Tensor:
        """Return a captured tensor of a layer of the body."""
        captured = self.output("body").captured
        values = captured[layer_number(layer, len(captured)) - 1 if layer else 0] if captured else {}
        key = "input" if name == "hidden" and not layer else name
        if key not in values:
            message = f"layer {layer} has no `{name}` to show: its attention compares no queries with keys"
            raise SpecError(
                Problem(code="does-not-fit", path="attention", message=message, valid="attention=mha, for one")
            )
        return values[key]

    def auxiliary(self) -> Tensor | None:
        """Return the sum of the auxiliary losses of all parts that ran."""
        values = [output.auxiliary for output in self.outputs.values() if output.auxiliary is not None]
        return sum(values[1:], values[0]) if values else None

    def rerun_last_layer(self, queries: Tensor, positions: Tensor, times: int) -> Tensor:
        output, stack = self.output("body"), self.topology.get_submodule("body")
        assert isinstance(stack, Stack), "a rule rejects objectives that need this where the topology has no body stack"
        assert output.last_layer_input is not None, (
            "an objective that runs the last layer again declares it in `captures`"
        )
        crosses = next(part.cross for part in self.topology.parts if part.path == "body")
        memory = memory_of(self.output(crosses)) if crosses else None
        return stack.rerun_last_layer(output.last_layer_input, queries, positions, times, memory)

    def embedded(self) -> Tensor:
        embedding = self.topology.stage("body").embedding
        assert embedding is None or isinstance(embedding, nn.ModuleDict), "made by `stack_part`"
        x, _ = self.topology.embedding(self.batch.streams["body"], 0, lambda x, positions: x, embedding)
        return cast("Tensor", x)

    def run_layer(self, name: str, layer: nn.Module, x: Tensor) -> Tensor:
        """Return the output of a layer of an objective, whose auxiliary loss counts like that of a part."""
        assert isinstance(layer, Stack), "the engine makes the layers of an objective"
        stream = self.batch.streams["body"]
        length = stream.tokens.shape[1]
        layout = token_layout(stream).span(length - x.shape[1], length)._replace(index_positions=None)
        tokens = stream.tokens[:, -x.shape[1] :]
        output: Output = layer(layer.add_positions(x, layout.positions), layout, tokens=tokens)
        self.outputs[f"{name}/layer", str(len(self.outputs))] = output
        return output.hidden

    def hidden_with_feedback(self, feed: StepInputFunction) -> Tensor:
        crosses = next(part.cross for part in self.topology.parts if part.path == "body")
        memory = memory_of(self.output(crosses)) if crosses else None
        return self.topology.run_with_feedback(self.batch.streams, feed, memory).hidden

    def head_logits(self, head_name: str | None) -> Tensor:
        """Return the logits of a head at all positions of the body."""
        name = head_name or next(iter(own_heads(self.heads)), None)
        hidden, unembed = self.output("body").hidden, self.topology.embedding.unembed
        if name is None:
            require_scored_width(self.topology.stage("body").shape)
            return unembed(hidden)
        if name not in self.heads:
            message = f"unknown head `{name}` for distillation"
            raise SpecError(
                Problem(code="unknown-head", path="objective", message=message, valid=join_names(self.heads))
            )
        return self.heads[name].logits(hidden, unembed)

    def of(self, name: str) -> ObjectiveRun:
        # A new view each time: a stored one would be a reference cycle, and keep the logits until garbage collection.
        return ObjectiveRun(self, name, self.batch.targets.get(name, {}), self.caches.setdefault(name, {}))


@final
class ObjectiveRun:
    """View of a forward pass with the targets of one objective; a `slots.objective.ForwardPass`."""

    def __init__(self, shared: BatchForward, name: str, targets: Mapping[str, Tensor], cache: dict[str, Any]) -> None:
        self.shared = shared
        self.name = name
        self.targets = targets
        self._cache = cache

    @property
    def streams(self) -> Mapping[str, Stream]:
        return self.shared.batch.streams

    def hidden(self, part: str = "body", *, tokens: Tensor | None = None, key: str = "") -> Tensor:
        return self.shared.output(part, tokens, f"{self.name}/{key}" if key else "").hidden

    def last_layer_input(self) -> Tensor:
        layer_input = self.shared.output("body").last_layer_input
        assert layer_input is not None, "an objective that reads it declares it in `captures`"
        return layer_input.x[:, : layer_input.layout.positions.shape[-1]]

    def captured(self, layer: int, name: str) -> Tensor:
        return self.shared.captured(layer, name)

    def rerun_last_layer(self, queries: Tensor, positions: Tensor, times: int = 1) -> Tensor:
        return self.shared.rerun_last_layer(queries, positions, times)

    def embedded(self) -> Tensor:
        return self.shared.embedded()

    def run_layer(self, layer: nn.Module, x: Tensor) -> Tensor:
        return self.shared.run_layer(self.name, layer, x)

    def hidden_with_feedback(self, feed: StepInputFunction) -> Tensor:
        return self.shared.hidden_with_feedback(feed)

    def unembed(self, h: Tensor, bias: Tensor | None = None) -> Tensor:
        return self.shared.topology.embedding.unembed(h, bias)

    def summed_cross_entropy(
        self,
        head: Head,
        hidden: Tensor,
        labels: Tensor,
        classes: int,
        *,
        smoothing: float = 0.0,
        weights: Tensor | None = None,
        z: float = 0.0,
    ) -> Tensor:
        call = self.shared.losses.get(self.name, head_loss)
        return summed_cross_entropy(head, hidden, labels, classes, smoothing=smoothing, weights=weights, z=z, call=call)

    def cached(self, name: str, make: Callable[[], Cached]) -> Cached:
        if name not in self._cache:
            self._cache[name] = make()
        cached: Cached = self._cache[name]
        return cached

    def head_logits(self, head_name: str | None = None) -> Tensor:
        return self.shared.head_logits(head_name)

    @property
    def teacher(self) -> ObjectiveRun:
        if self.shared.teacher is None:
            message = "the teacher's folder is not set, so the model cannot be distilled from it"
            raise SpecError(Problem(code="missing-teacher", path="teacher", message=message, valid="teacher: FOLDER"))
        return self.shared.teacher.of("")


def needs_teacher(objective: Objective) -> bool:
    """Return True if an objective needs a teacher."""
    return "teacher" in objective.traits.get("needs", [])


def own_heads(heads: Mapping[str, Objective]) -> list[str]:
    """Return the names of the objectives that score the vocabulary by a head of their own, not by another's."""
    return [name for name, head in heads.items() if head.traits.get("unembeds", True) and not needs_teacher(head)]


def require_scored_width(shape: Shape) -> None:
    """Raise a SpecError if the embedding cannot score the hidden states of the body themselves."""
    if shape.embedding_width != shape.width:
        message = f"the embedding scores vectors of width {shape.embedding_width}, and the model's have "
        message += f"{shape.width}; no other objective has a head that projects them"
        valid = "an objective with a vocabulary beside it, such as mlm"
        raise SpecError(Problem(code="does-not-fit", path="objective", message=message, valid=valid))

"""Comparison of attentions and positions with the author's reference, as `paribus.testing.reference` describes it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from paribus.errors import DataError, SpecError
from paribus.parts.attend import Attend
from paribus.parts.batch import PADDING, Stream
from paribus.parts.context import Pair
from paribus.parts.stack import Layer
from paribus.slots.position import Position
from paribus.specs import resolved
from paribus.specs.fields import NO_POSITION
from paribus.testing.host_models import Case, HostModel
from paribus.testing.small_model import SmallModel, noise, tokens

Function = Callable[..., Any]
Comparison = tuple[str, Any, Any]  # description of the input, output, output of the reference

LENGTH: Final = 25
ATTENTION_DIMS: Final = ({"layers": 3}, {"length": LENGTH})  # the first layer and the one before differ
DROPOUT: Final = 0.5  # not used in evaluation
RAW_MEMORY: Final = "rnnsearch-tiny"  # preset with a memory that is wider than the queries, and no output projection
HEADS: Final = {"heads": 6, "head_width": 8}  # heads that are no power of two, with several pairs of channels
INDICES: Final = (0, 1, 3, 9, 40, 127, 3000)  # positions
SEGMENTS: Final = (0, 0, 1, 1, 0, 1, 0)  # of the positions
CONTENT_SCALE: Final = 0.25  # of the scores, for biases that read queries and keys


def bind(function: Function, **arguments: Any) -> Function:
    """Bind the arguments that a function has parameters for."""
    return partial(function, **{name: value for name, value in arguments.items() if reads(function, name)})


def reads(function: Function, name: str) -> bool:
    return name in inspect.signature(function).parameters


class _Call(NamedTuple):
    """Call of an attention in a forward pass; `place` is equal for the same sublayer of all layers of a stack."""

    place: str
    causal: bool
    module: Any
    x: Tensor
    ctx: Any
    output: Tensor

    @property
    def inputs(self) -> tuple[Tensor | None, Tensor | None]:
        """Embedded tokens of the queries and of the keys."""
        return self.ctx.inputs, self.ctx.inputs if self.ctx.memory is None else self.ctx.memory_inputs

    @property
    def source(self) -> Tensor:
        memory: Tensor | None = self.ctx.memory
        return self.x if memory is None else memory


def attention_comparisons(case: Case, host: HostModel, reference: Function) -> Iterator[Comparison]:
    """Compare each attention of a model without positions, for plain, padded and packed sequences."""
    for model in _attention_models(case, host, with_raw_memory=reads(reference, "options")):
        calls: list[_Call] = []
        for path, module in model.topology.named_modules():
            if type(module) is case.component:
                part = next(part for part in model.topology.parts if path.startswith(f"{part.path}."))
                place = re.sub(r"\d+", "", path)
                module.register_forward_hook(partial(_record, calls, place, part.causal))
        captures = (False, True) if host.is_preset and case.entry.traits.get("weights") else (False,)
        for (description, stream, source), capture in product(_layouts(case, host, model), captures):
            calls.clear()
            model.output(stream, source=source, capture=capture)
            for call in calls:
                first = next(earlier for earlier in calls if earlier.place == call.place)
                yield from _compared_call(description, call, first, reference)


def _attention_models(case: Case, host: HostModel, *, with_raw_memory: bool) -> Iterator[SmallModel]:
    """Yield the model without positions, with the dims that are valid, and perhaps one with a raw memory."""
    spec = {**host.spec, "position": {"name": NO_POSITION}, "dropout": DROPOUT}
    for dims in ATTENTION_DIMS:  # options may be invalid with a shorter length
        with suppress(SpecError):
            spec = resolved({**spec, "dims": {**spec["dims"], **dims}}, registry=case.registry)
    yield SmallModel(spec, case.registry)
    if with_raw_memory and host.is_preset and case.entry.traits.get("raw_memory") and RAW_MEMORY in case.base_specs:
        try:
            model = SmallModel(case.resolved(RAW_MEMORY, {"attention": host.spec["attention"]}), case.registry)
        except SpecError:
            return  # the width of the memory does not fit
        yield model


def _record(
    calls: list[_Call], place: str, causal: bool, module: Any, inputs: tuple[Tensor, Any], output: Tensor
) -> None:
    calls.append(_Call(place, causal and inputs[1].memory is None, module, *inputs, output))


def _layouts(case: Case, host: HostModel, model: SmallModel) -> Iterator[tuple[str, Stream, Stream]]:
    """Yield the tokens of the body and of the memory: plain, with padding, and with packed documents."""
    ids, memory = model.tokens(2, LENGTH), tokens(2, 7, "source")
    yield f"{LENGTH} tokens", Stream(ids), Stream(memory)
    if model.has_fixed_length:
        return
    if case.all_attentions_declare(host, "documents", "padding"):
        documents = _documents([(0, 22), (PADDING, 3)], [(PADDING, 2), (0, 23)])
        memory_documents = _documents([(0, 6), (PADDING, 1)], [(PADDING, 1), (0, 6)])
        yield "padding", _stream(ids, documents), _stream(memory, memory_documents)
    if case.all_attentions_declare(host, "documents"):
        documents = _documents([(0, 8), (1, 17)], [(0, 3), (1, 11), (2, 9), (PADDING, 2)])
        memory_documents = _documents([(0, 2), (1, 5)], [(0, 3), (2, 3), (PADDING, 1)])  # document 1 has no keys
        yield "packed documents", _stream(ids, documents), _stream(memory, memory_documents)


def _documents(*examples: list[tuple[int, int]]) -> Tensor:
    """Return the document of each token, (B, T), for lists of documents and their lengths."""
    return torch.tensor([[document for document, length in example for _ in range(length)] for example in examples])


def _stream(ids: Tensor, documents: Tensor) -> Stream:
    """Return tokens whose positions start at 0 in each document, as batches have them."""
    before = (documents.unsqueeze(-1) == documents.unsqueeze(-2)).tril(-1)
    return Stream(ids, documents, before.sum(-1))


def _compared_call(description: str, call: _Call, first: _Call, reference: Function) -> Iterator[Comparison]:
    visible, ctx = _visible(call), call.ctx
    for example in range(len(call.x)):

        def row(vector: Tensor, example: int = example) -> Tensor:
            return vector[min(example, len(vector) - 1)]

        function = bind(
            reference,
            positions=(row(ctx.layout.positions), row(ctx.key_layout.positions)),
            first=(first.module, first.source[example]),
            inputs=tuple(None if vector is None else vector[example] for vector in call.inputs),
        )
        expected = function(call.module, call.x[example], call.source[example], row(visible))
        output, weights = expected if isinstance(expected, tuple) else (expected, None)
        compared = row(visible).any(1)
        if ctx.layout.documents is not None:  # without a visible key, the reference may be undefined
            compared = compared | ((row(ctx.layout.documents) != PADDING) & output.isfinite().all(-1))
        yield f"the output for {description}", call.output[example][compared], output[compared]
        if weights is not None and ctx.captured is not None:
            captured = ctx.captured["weights"][example]
            yield f"the weights for {description}", captured[:, compared], weights[:, compared]


def _visible(call: _Call) -> Tensor:
    """(B|1, T, S): True for keys of the same document that are not in the future; all keys without documents."""
    documents, key_documents = call.ctx.layout.documents, call.ctx.key_layout.documents
    visible = torch.ones(1, call.x.shape[1], call.source.shape[1], dtype=torch.bool)
    if call.causal:
        visible = visible.tril()
    if key_documents is not None:
        documents = torch.zeros_like(call.ctx.layout.positions) if documents is None else documents
        is_same = documents.unsqueeze(-1) == key_documents.unsqueeze(-2)
        visible = visible & is_same & (key_documents != PADDING).unsqueeze(-2)
    return visible


def position_comparisons(case: Case, host: HostModel, reference: Function) -> Iterator[Comparison]:
    """Compare the embedding at some positions, or the scores of all pairs of them in each layer."""
    if ", attention=" in host.label:
        return
    model = _model_with_heads(case, host)
    layers = model.layers()
    has_part = any(layer.position is not None for layer in layers)
    for layer in layers if has_part else layers[:1]:
        attend = next((module for module in layer.attention.modules() if isinstance(module, Attend)), None)
        position = attend.position if attend is not None else None
        if type(position) is not case.component:
            position = next(module for module in model.topology.modules() if isinstance(module, Position))
        if not {"rotate", "bias"} & {*case.entry.traits["hooks"]}:
            yield from _compared_embeddings(position, model.stack().shape.embedding_width, reference)
        elif attend is not None:
            yield from _compared_scores(position, layer, attend, case.entry.traits, bind(reference, layer=layer))


def _model_with_heads(case: Case, host: HostModel) -> SmallModel:
    """Return the model with more and wider heads, if that is valid."""
    try:
        dims = {**host.spec["dims"], **HEADS}
        spec = resolved({**host.spec, "dims": dims, "dropout": DROPOUT}, registry=case.registry)
    except SpecError:
        return case.small_model(host)
    return SmallModel(spec, case.registry)


def _compared_embeddings(position: Any, width: int, reference: Function) -> Iterator[Comparison]:
    """Compare positions up to the limit; if the reference raises an IndexError there, a DataError is expected."""
    limit = position.position_limit()
    x = noise("rows", 1, 1, width)
    for index in INDICES if limit is None else (*(index for index in INDICES if index < limit), limit - 1):
        yield f"position {index}", position.embed(x, torch.tensor([[index]]))[0, 0], reference(position, x[0, 0], index)
    if limit is None:
        return
    try:
        reference(position, x[0, 0], limit)
    except IndexError:
        with suppress(DataError):
            position.embed(x, torch.tensor([[limit]]))
            yield f"position {limit}, which the reference has not,", 1.0, 0.0


def _compared_scores(
    position: Any, layer: Layer, attend: Attend, traits: Mapping[str, Any], reference: Function
) -> Iterator[Comparison]:
    heads, width = attend.heads, attend.head_width
    limit = position.position_limit()
    indices = [index for index in INDICES if limit is None or index < limit]
    positions, segments = torch.tensor([indices]), torch.tensor([SEGMENTS[: len(indices)]])
    q, k = (noise(side, 1, heads, len(indices), width) for side in ("q", "k"))
    tables = position.tables(positions, width)
    scale = CONTENT_SCALE if traits["bias"] == "content" else 1.0
    scores = position.rotate(q, tables, "query") @ position.rotate(k, tables, "key").transpose(-1, -2)
    project: Any = getattr(layer.attention, "heads", attend)
    part = attend._part[0] if attend._part else None
    causal = attend.visibility.causal
    visible = torch.ones(1, 1, len(indices), len(indices), dtype=torch.bool).tril() if causal else None
    shared = (scale, heads, project.project, torch.float64, part, segments, segments, visible)
    pair = Pair(q, k, positions, positions, *shared)
    if "bias" in traits["hooks"]:
        scores = scores + position.bias(pair) / scale
    weights = noise("weights", 1, heads, len(indices), len(indices)).softmax(-1)
    weights = weights.tril() if causal else weights
    functions = {pair: bind(reference, segments=pair) for pair in product(SEGMENTS, SEGMENTS)}
    for head in range(heads):
        for row, i in enumerate(indices):
            mixed: Any = 0.0
            for column, j in enumerate(indices[: row + 1] if causal else indices):
                function = functions[SEGMENTS[row], SEGMENTS[column]]
                function = bind(function, keys=k[0, head, : row + 1 if causal else None], scale=scale)
                expected = function(position, q[0, head, row], k[0, head, column], i, j, head)
                score, vector = expected if isinstance(expected, tuple) else (expected, None)
                yield f"the score of positions {i} and {j} in head {head}", scores[0, head, row, column], score
                mixed = mixed + weights[0, head, row, column] * (0.0 if vector is None else vector)
            if position.uses_mix():
                output = position.mix(weights, pair)
                yield f"the output of position {i} in head {head}", output[0, head, row], mixed

"""Checks of costs: declared FLOPs against those that torch counts, and memories of cross-attention of any size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, cast

import torch
from torch import nn

from paribus.assembly.components import make
from paribus.complexity.counting import flop_counter, has_window
from paribus.errors import SpecError
from paribus.kernels import KERNELS
from paribus.parts.attend import component_cost
from paribus.parts.attention_planner import CrossAttention
from paribus.parts.batch import Stream, TokenLayout
from paribus.parts.context import Context, Memory
from paribus.parts.shape import Load, Shape
from paribus.parts.stack import Layer
from paribus.slots.attention import Attention
from paribus.slots.position import Position
from paribus.specs.fields import NO_POSITION
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.position_checks import position_pair
from paribus.testing.small_model import SmallModel, noise, tokens

LENGTH: Final = 12
MEMORY_LENGTH: Final = 7
PAIRS: Final = ((12, 12), (5, 12), (1, 12), (12, 7))  # numbers of queries and keys; more queries than keys: extra ones
_SUBLAYERS: Final = {"attention": ("attention", "cross"), "feedforward": ("feedforward",)}


def cost(case: Case, host: HostModel) -> Verdict:
    """The declared FLOPs equal those that torch counts; with a window or blocks, they are at most those.

    Attention runs on the meta device, where torch counts every kernel. A feed-forward runs on real inputs, because its
    FLOPs may depend on them. What a stack computes outside of its sublayers is of its placements.
    """
    if case.entry.slot in ("embedding", "position"):
        return (_embedding_fault if case.entry.slot == "embedding" else _position_fault)(case, host)
    model = (
        case.small_model(host)
        if case.entry.slot == "feedforward"
        else SmallModel(host.spec, case.registry, initialized=False)
    )
    sublayers = _SUBLAYERS.get(case.entry.slot, ())
    for stack_part in model.topology.parts:
        counted = _count_flops(model, stack_part.path)
        length = model.stack(stack_part.path).shape.length if model.has_fixed_length else LENGTH
        load = Load(length, length, memory=MEMORY_LENGTH if stack_part.cross else 0)
        for name in sublayers:
            fault = (
                HOLDS
                if name == "cross" and not stack_part.cross
                else _sublayer_fault(model, stack_part.path, name, load, counted)
            )
            if fault:
                return fault
        if case.entry.slot == "placement":
            fault = _placement_fault(model, stack_part.path, load, counted)
            if fault:
                return fault
    return HOLDS


def _placement_fault(model: SmallModel, path: str, load: Load, counted: dict[str, int]) -> str:
    stack = model.stack(path)
    within = [f"Stack.layers.{index}.{name}" for index in range(len(stack.layers)) for name in stack.shape.sublayers]
    outside = counted.get("Stack", 0) - sum(counted.get(name, 0) for name in within)
    placements: list[Any] = [cast("Layer", layer).placement for layer in stack.layers]
    declared = sum(placement.cost(load).flops for placement in placements)
    return _flops_fault("placement", placements[0], declared, outside, load)


def _sublayer_fault(model: SmallModel, path: str, name: str, load: Load, counted: dict[str, int]) -> str:
    for index, layer in enumerate(model.stack(path).layers):
        assert isinstance(layer, Layer)
        component: Any = getattr(layer, name)
        fault = _flops_fault(
            name, component, component_cost(component, load).flops, counted.get(f"Stack.layers.{index}.{name}", 0), load
        )
        if fault:
            return fault
    return HOLDS


def _flops_fault(name: str, component: nn.Module, declared: int, counted: int, load: Load) -> str:
    size = f"{load.queries} tokens" + (f" and a memory of {load.memory}" if load.memory else "")
    if has_window(component):
        if declared > counted:
            return (
                f"`cost` of an attention with a window declares {declared:,} FLOPs for {size}; expected "
                f"at most the {counted:,} that torch counts without the window"
            )
    elif declared != counted:
        return f"`cost` of `{name}` declares {declared:,} FLOPs for {size}, but torch counts {counted:,}"
    return HOLDS


def _count_flops(model: SmallModel, path: str) -> dict[str, int]:
    """Count the FLOPs of one pass through one stack, by module."""
    device = next(model.topology.parameters()).device
    memory = model.memory(tokens(1, MEMORY_LENGTH).to(device)) if path == "body" else None
    with flop_counter() as counter:
        model.topology.run({path: Stream(model.tokens(1, LENGTH).to(device))}, path, memory=memory)
    return {module: sum(counts.values()) for module, counts in counter.get_flop_counts().items()}


def _embedding_fault(case: Case, host: HostModel) -> Verdict:
    """Compare the cost of embedding some tokens and scoring fewer vectors."""
    model = case.small_model(host)
    embedding, stack = model.topology.embedding, model.stack()
    length = stack.shape.length if model.has_fixed_length else LENGTH
    scored = LENGTH - 5 if embedding.traits.get("unembeds", True) else 0
    part: Any = stack.embedding
    with flop_counter() as counter:
        embedding(Stream(model.tokens(1, length)), 0, lambda x, positions: x, part)
        if scored:
            embedding.unembed(noise("hidden", scored, stack.shape.embedding_width))
    load = Load(length, length, head_positions=scored)
    declared = embedding.cost(load).flops + embedding.stack_part_cost(stack.shape, load).flops
    counted = counter.get_total_flops()
    if declared != counted:
        return (
            f"`cost` and `stack_part_cost` declare {declared:,} FLOPs for {length} tokens, {scored} of them scored, "
            f"but torch counts {counted:,}"
        )
    return HOLDS


def _position_fault(case: Case, host: HostModel) -> Verdict:
    """Compare the cost of `bias` and `mix` for different numbers of queries and keys."""
    if not {"bias", "mix"} & {*case.entry.traits.get("hooks", [])}:
        return DOES_NOT_APPLY
    for queries, keys in PAIRS:
        k_positions = torch.arange(keys).unsqueeze(0)
        q_positions = k_positions[:, -queries:] if queries <= keys else torch.arange(queries).unsqueeze(0) * 5 % keys
        pair = position_pair(case.small_model(host), q_positions, k_positions)
        if pair is None:
            return DOES_NOT_APPLY
        position = pair[0]
        with flop_counter() as counter:
            if position.traits["bias"] != "none":
                position.bias(pair[1])
            if position.uses_mix():
                position.mix(noise("weights", 1, pair[1].heads, queries, keys), pair[1])
        declared, counted = position.cost(Load(queries, keys)).flops, counter.get_total_flops()
        if declared != counted:
            return (
                f"`cost` declares {declared:,} FLOPs for {queries} queries and {keys} keys, but torch counts "
                f"{counted:,}"
            )
    return HOLDS


def memories(case: Case, host: HostModel) -> Verdict:
    """Cross-attention reads memories of any width and length, also raw ones, at the declared cost."""
    if not case.entry.traits.get("cross"):
        return DOES_NOT_APPLY
    shape, verdict = case.small_model(host).stack().shape, DOES_NOT_APPLY
    for is_raw in (False, True) if case.entry.traits.get("raw_memory") else (False,):
        for width in (shape.width, 2 * shape.width):
            place = replace(shape, layer=0, causal=False, memory_width=width, raw_memory=is_raw)
            try:
                attention = make(case.registry, "attention", host.spec["attention"], place, kind=Attention)
            except SpecError:
                continue  # it requires another width
            kind = f"{'raw ' * is_raw}memory of {MEMORY_LENGTH} tokens and width {width}"
            verdict = _memory_fault(case, attention, place, kind)
            if verdict:
                return verdict
    return verdict


def _memory_fault(case: Case, attention: Attention, shape: Shape, kind: str) -> str:
    attention = attention.double().eval()
    for path, parameter in attention.named_parameters():
        parameter.copy_(noise(path, *parameter.shape))
    no_position = make(case.registry, "position", {"name": NO_POSITION}, shape, kind=Position)
    crossing = CrossAttention(attention, no_position, KERNELS[-1:], shape.heads)
    x, layout = noise("queries", 1, PAIRS[1][0], shape.width), TokenLayout(torch.arange(PAIRS[1][0]).unsqueeze(0))
    assert shape.memory_width is not None
    hidden = noise("memory", 1, MEMORY_LENGTH, shape.memory_width)
    memory = Memory(hidden, TokenLayout(torch.arange(MEMORY_LENGTH).unsqueeze(0)))
    plans, embedded = (
        crossing.plans(x, layout, memory),
        (noise("inputs", *x.shape), noise("memory inputs", *hidden.shape)),
    )
    with flop_counter() as counter:
        output = attention(x, Context(plans, layout, memory.layout, hidden, {}, 0, {}, None, None, *embedded))
    width = shape.memory_width if shape.raw_memory else shape.width
    if output.shape != (*x.shape[:2], width):
        return f"the output for a {kind} has the shape {tuple(output.shape)}; expected {(*x.shape[:2], width)}"
    load = Load(x.shape[1], x.shape[1], memory=MEMORY_LENGTH)
    fault = _flops_fault("cross", attention, component_cost(attention, load).flops, counter.get_total_flops(), load)
    return f"for a {kind}: {fault}" if fault else HOLDS

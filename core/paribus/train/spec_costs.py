"""Costs of a spec, by counting: parameters, FLOPs and decoding state.

A study can match these quantities; they are counted without allocating the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from paribus.assembly.build import ModelParts
from paribus.assembly.components import Classes
from paribus.assembly.cost import constant_state, count_parameters, decoding_state, model_cost, training_flops
from paribus.assembly.freezing import untrained_parameters
from paribus.models.assemble import meta_model
from paribus.storage.saved_model import read_model

Spec = Mapping[str, Any]

BYTES: Final = 4  # per element, in float32

QUANTITIES: Final[Mapping[str, Callable[[ModelParts, int], int]]] = {
    "params": lambda model, length: count_parameters(model.children()),
    "flops": lambda model, length: model_cost(model, length).flops,
    "kv": lambda model, length: BYTES * decoding_state(model, length),
    "state": lambda model, length: BYTES * constant_state(model),
}


def count_quantity(on: str, spec: Spec, classes: Classes) -> int:
    """Return parameters, FLOPs per example, bytes of decoding state, or those that do not grow with the length."""
    return QUANTITIES[on](meta_model(spec, classes), spec["dims"]["length"])


def flops_per_step(spec: Spec, classes: Classes) -> int:
    """Return the FLOPs of one step of a resolved spec, including forward passes of its teacher."""
    teacher_node = spec.get("teacher") or {}
    teacher = meta_model(read_model(teacher_node["name"]).spec, classes) if "name" in teacher_node else None
    examples: int = spec["data"]["batch"]
    model = meta_model(spec, classes)
    frozen = untrained_parameters(model, spec.get("freeze"))
    return examples * training_flops(model, spec["dims"]["length"], teacher, frozen)

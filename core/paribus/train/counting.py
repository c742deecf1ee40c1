"""Quantities of a resolved spec that a study can match, and training FLOPs, without allocating the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from paribus.assembly.build import ModelParts
from paribus.assembly.components import Classes
from paribus.assembly.cost import constant_state, count_parameters, decoding_state, model_cost, training_flops
from paribus.storage.saved_model import read_model
from paribus.train.assemble import meta_model

BYTES: Final = 4  # per element, in float32

QUANTITIES: Final[Mapping[str, Callable[[ModelParts, int], int]]] = {
    "params": lambda model, length: count_parameters(model.children()),
    "flops": lambda model, length: model_cost(model, length).flops,
    "kv": lambda model, length: BYTES * decoding_state(model, length),
    "state": lambda model, length: BYTES * constant_state(model),
}


def count_quantity(on: str, spec: Mapping[str, Any], classes: Classes) -> int:
    """Return parameters, FLOPs per example, bytes of decoding state, or those that do not grow with the length."""
    return QUANTITIES[on](meta_model(spec, classes), spec["dims"]["length"])


Spec = Mapping[str, Any]


def flops_per_step(spec: Spec, classes: Classes) -> int:
    """Return the FLOPs of one step of a resolved spec, including forward passes of its teacher."""
    teacher_node = spec.get("teacher") or {}
    teacher = meta_model(read_model(teacher_node["name"]).spec, classes) if "name" in teacher_node else None
    examples: int = spec["data"]["batch"]
    return examples * training_flops(meta_model(spec, classes), spec["dims"]["length"], teacher)

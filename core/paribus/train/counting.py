"""What a study may match its variants on, counted of a resolved spec, with nothing allocated and nothing run.

What a training takes, counted before it begins as it will be counted at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from paribus.assembly.build import ModelParts
from paribus.assembly.components import Classes
from paribus.assembly.cost import constant_state, count_parameters, decoding_state, model_cost, training_flops
from paribus.storage.saved_model import read_model
from paribus.train.assemble import meta_model

BYTES: Final = 4  # an element, in float32

QUANTITIES: Final[Mapping[str, Callable[[ModelParts, int], int]]] = {
    "params": lambda model, length: count_parameters(model.children()),
    "flops": lambda model, length: model_cost(model, length).flops,
    "kv": lambda model, length: BYTES * decoding_state(model, length),
    "state": lambda model, length: BYTES * constant_state(model),
}


def count_quantity(on: str, spec: Mapping[str, Any], classes: Classes) -> int:
    """Parameters; operations of an example; bytes kept to decode one; and those of them that do not grow with it."""
    return QUANTITIES[on](meta_model(spec, classes), spec["dims"]["length"])


Spec = Mapping[str, Any]


def flops_per_step(spec: Spec, classes: Classes) -> int:
    """The operations of one step of a resolved spec: of all its examples, with a forward pass of its teacher."""
    taught = spec.get("teacher") or {}
    teacher = meta_model(read_model(taught["name"]).spec, classes) if "name" in taught else None
    examples: int = spec["data"]["batch"]
    return examples * training_flops(meta_model(spec, classes), spec["dims"]["length"], teacher)

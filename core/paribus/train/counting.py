"""What a study may match its variants on, counted of a resolved spec, with nothing allocated and nothing run.

What a training takes, counted before it begins as it will be counted at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from paribus.assembly.build import Assembled
from paribus.assembly.components import Classes
from paribus.assembly.cost import costs, kept, lasting_state, parameters, training
from paribus.storage.saved_model import read_model
from paribus.train.assemble import shapes_of

BYTES: Final = 4  # an element, in float32

COUNTS: Final[Mapping[str, Callable[[Assembled, int], int]]] = {
    "params": lambda model, length: parameters(model.children()),
    "flops": lambda model, length: costs(model, length).flops,
    "kv": lambda model, length: BYTES * kept(model, length),
    "state": lambda model, length: BYTES * lasting_state(model),
}


def count(on: str, spec: Mapping[str, Any], classes: Classes) -> int:
    """Parameters; operations of an example; bytes kept to decode one; and those of them that do not grow with it."""
    return COUNTS[on](shapes_of(spec, classes), spec["dims"]["length"])


Spec = Mapping[str, Any]


def flops_a_step(spec: Spec, classes: Classes) -> int:
    """The operations of one step of a resolved spec: of all its examples, with a forward pass of its teacher."""
    taught = spec.get("teacher") or {}
    teacher = shapes_of(read_model(taught["name"]).spec, classes) if "name" in taught else None
    examples: int = spec["data"]["batch"]
    return examples * training(shapes_of(spec, classes), spec["dims"]["length"], teacher)

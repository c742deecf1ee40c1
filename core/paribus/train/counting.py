"""What a study may match its variants on, counted of a resolved spec, with nothing allocated and nothing run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from paribus.assembly.build import Assembled
from paribus.assembly.components import Classes
from paribus.assembly.cost import costs, kept, lasting_state, parameters
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

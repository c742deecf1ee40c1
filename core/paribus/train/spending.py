"""What a training takes, counted before it begins as it will be counted at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paribus.assembly.components import Classes
from paribus.assembly.cost import training
from paribus.saved import saved
from paribus.train.assemble import shapes_of

Spec = Mapping[str, Any]


def flops_a_step(spec: Spec, classes: Classes) -> int:
    """The operations of one step of a resolved spec: of all its examples, with a forward pass of its teacher."""
    taught = spec.get("teacher") or {}
    teacher = shapes_of(saved(taught["name"]).spec, classes) if "name" in taught else None
    examples: int = spec["data"]["batch"]
    return examples * training(shapes_of(spec, classes), spec["dims"]["length"], teacher)

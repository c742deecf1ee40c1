"""Specs of programs: the options of a command, beside the key `program`, which says how it is run and measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

PROGRAM: Final = "program"
EFFECTS: Final = ("weights", "batches", "budget", "optimizer")  # what an option of a program may change on purpose


def is_program(spec: Mapping[str, Any]) -> bool:
    """Return whether a resolved spec is that of a program."""
    return PROGRAM in spec

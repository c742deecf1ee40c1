"""Paribus: swap one part of a transformer, keep all else equal, and learn whether it mattered.

This is the public door. It is lazy, so `import paribus` imports no torch; plugins import from here and nowhere else.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from paribus.hookspecs import hookimpl
from paribus.offer import offered
from paribus.schema import AtLeast, AtMost, Divides, Example, Range, Slot

if TYPE_CHECKING:
    from paribus.errors import DataError, NotComparableError, ParibusError, PluginError, Problem, SpecError, StoreError
    from paribus.parts.attend import Attend
    from paribus.parts.context import Context, Memory, Pair, State
    from paribus.parts.draw import Draw
    from paribus.parts.heads import Heads
    from paribus.parts.roles import Role
    from paribus.parts.rows import IGNORED, PADDING, Rows, Stream, rows_of
    from paribus.parts.scores import Scores
    from paribus.parts.shape import Shape
    from paribus.parts.sight import Sight
    from paribus.parts.stack import Output, Stack, States
    from paribus.slots.attention import Attention, softmax_cost
    from paribus.slots.component import Component, Cost, Keyed, Load, Traits
    from paribus.slots.corpus import Corpus, Document, Split
    from paribus.slots.embedding import Embedding, Place
    from paribus.slots.feedforward import FeedForward
    from paribus.slots.initialisation import About, Initialisation
    from paribus.slots.launcher import Ended, Job, Launcher
    from paribus.slots.norm import Norm
    from paribus.slots.objective import Formed, Objective, Run, Term, Tokens
    from paribus.slots.optimizer import Optimizer
    from paribus.slots.placement import Placement, Sublayer
    from paribus.slots.position import Position
    from paribus.slots.schedule import Schedule
    from paribus.slots.tokenizer import Tokenizer, Vocabulary
    from paribus.slots.topology import Builder, Part, Topology, memory_of

__version__ = "0.1.0"

_WHERE: dict[str, str] = {
    name: module
    for module, names in {
        "paribus.errors": ("DataError NotComparableError ParibusError PluginError Problem SpecError StoreError"),
        "paribus.parts.attend": "Attend",
        "paribus.parts.context": "Context Memory Pair State",
        "paribus.parts.draw": "Draw",
        "paribus.parts.heads": "Heads",
        "paribus.parts.roles": "Role",
        "paribus.parts.rows": "IGNORED PADDING Rows Stream rows_of",
        "paribus.parts.scores": "Scores",
        "paribus.parts.shape": "Shape",
        "paribus.parts.sight": "Sight",
        "paribus.parts.stack": "Output Stack States",
        "paribus.slots.attention": "Attention softmax_cost",
        "paribus.slots.component": "Component Cost Keyed Load Traits",
        "paribus.slots.corpus": "Corpus Document Split",
        "paribus.slots.embedding": "Embedding Place",
        "paribus.slots.feedforward": "FeedForward",
        "paribus.slots.initialisation": "About Initialisation",
        "paribus.slots.launcher": "Ended Job Launcher",
        "paribus.slots.norm": "Norm",
        "paribus.slots.objective": "Formed Objective Run Term Tokens",
        "paribus.slots.optimizer": "Optimizer",
        "paribus.slots.placement": "Placement Sublayer",
        "paribus.slots.position": "Position",
        "paribus.slots.schedule": "Schedule",
        "paribus.slots.tokenizer": "Tokenizer Vocabulary",
        "paribus.slots.topology": "Builder Part Topology memory_of",
    }.items()
    for name in names.split()
}

__all__ = ["AtLeast", "AtMost", "Divides", "Example", "Range", "Slot", "hookimpl", "offered", *_WHERE]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'paribus' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

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
    from paribus.conversion.config import Config as Config
    from paribus.conversion.config import Key as Key
    from paribus.conversion.door import convert as convert
    from paribus.conversion.door import export as export
    from paribus.conversion.family import Alone as Alone
    from paribus.conversion.family import Architecture as Architecture
    from paribus.conversion.family import Family as Family
    from paribus.conversion.moves import Move as Move
    from paribus.decode.attending import Attended as Attended
    from paribus.decode.attending import attend as attend
    from paribus.decode.door import Generation as Generation
    from paribus.decode.door import Written as Written
    from paribus.decode.door import generate as generate
    from paribus.decode.embedding import Embedded as Embedded
    from paribus.decode.embedding import embed as embed
    from paribus.decode.filling import Candidate as Candidate
    from paribus.decode.filling import fill as fill
    from paribus.decode.translating import ask as ask
    from paribus.errors import DataError as DataError
    from paribus.errors import NotComparableError as NotComparableError
    from paribus.errors import ParibusError as ParibusError
    from paribus.errors import PluginError as PluginError
    from paribus.errors import Problem as Problem
    from paribus.errors import SpecError as SpecError
    from paribus.errors import StoreError as StoreError
    from paribus.errors import listed as listed
    from paribus.errors import nearest as nearest
    from paribus.keyed import key32 as key32
    from paribus.parts.adopting import Adopting as Adopting
    from paribus.parts.adopting import Converted as Converted
    from paribus.parts.adopting import leading as leading
    from paribus.parts.attend import Attend as Attend
    from paribus.parts.context import Capture as Capture
    from paribus.parts.context import Context as Context
    from paribus.parts.context import Memory as Memory
    from paribus.parts.context import Pair as Pair
    from paribus.parts.context import Plan as Plan
    from paribus.parts.context import Scoring as Scoring
    from paribus.parts.context import State as State
    from paribus.parts.crossing import Crossing as Crossing
    from paribus.parts.draw import Draw as Draw
    from paribus.parts.feed import Fed as Fed
    from paribus.parts.feed import Feed as Feed
    from paribus.parts.heads import Heads as Heads
    from paribus.parts.roles import Role as Role
    from paribus.parts.root_mean_square import RootMeanSquare as RootMeanSquare
    from paribus.parts.rows import IGNORED as IGNORED
    from paribus.parts.rows import PADDING as PADDING
    from paribus.parts.rows import Batch as Batch
    from paribus.parts.rows import Rows as Rows
    from paribus.parts.rows import Stream as Stream
    from paribus.parts.rows import repeated as repeated
    from paribus.parts.rows import rows_of as rows_of
    from paribus.parts.scores import Scores as Scores
    from paribus.parts.shape import Shape as Shape
    from paribus.parts.sight import Blocks as Blocks
    from paribus.parts.sight import Sight as Sight
    from paribus.parts.sight import ordered as ordered
    from paribus.parts.sight import visible as visible
    from paribus.parts.stack import Output as Output
    from paribus.parts.stack import Stack as Stack
    from paribus.parts.stage import Share as Share
    from paribus.parts.stage import Stage as Stage
    from paribus.parts.states import States as States
    from paribus.registry.classes import Registry as Registry
    from paribus.registry.classes import installed as installed
    from paribus.report.calibration.calibrate import calibrate as calibrate
    from paribus.report.door import compare as compare
    from paribus.slots.attention import Attention as Attention
    from paribus.slots.component import Component as Component
    from paribus.slots.component import Cost as Cost
    from paribus.slots.component import Keyed as Keyed
    from paribus.slots.component import Load as Load
    from paribus.slots.component import Traits as Traits
    from paribus.slots.corpus import Corpus as Corpus
    from paribus.slots.corpus import Document as Document
    from paribus.slots.corpus import Split as Split
    from paribus.slots.embedding import Embedding as Embedding
    from paribus.slots.embedding import Place as Place
    from paribus.slots.embedding import Unembed as Unembed
    from paribus.slots.feedforward import FeedForward as FeedForward
    from paribus.slots.images import Pixels as Pixels
    from paribus.slots.images import lettered as lettered
    from paribus.slots.images import pictured as pictured
    from paribus.slots.images import unlettered as unlettered
    from paribus.slots.initialisation import About as About
    from paribus.slots.initialisation import Initialisation as Initialisation
    from paribus.slots.launcher import Ended as Ended
    from paribus.slots.launcher import Job as Job
    from paribus.slots.launcher import Launcher as Launcher
    from paribus.slots.launcher import News as News
    from paribus.slots.launcher import Note as Note
    from paribus.slots.launcher import Plugins as Plugins
    from paribus.slots.launcher import Started as Started
    from paribus.slots.measure import Known as Known
    from paribus.slots.measure import Measure as Measure
    from paribus.slots.measure import Rendering as Rendering
    from paribus.slots.measure import Subject as Subject
    from paribus.slots.norm import Norm as Norm
    from paribus.slots.norm import Norms as Norms
    from paribus.slots.objective import Formed as Formed
    from paribus.slots.objective import Objective as Objective
    from paribus.slots.objective import Prompt as Prompt
    from paribus.slots.objective import Run as Run
    from paribus.slots.objective import Term as Term
    from paribus.slots.objective import Wish as Wish
    from paribus.slots.optimizer import Optimizer as Optimizer
    from paribus.slots.placement import Placement as Placement
    from paribus.slots.placement import Sublayer as Sublayer
    from paribus.slots.position import Position as Position
    from paribus.slots.schedule import Schedule as Schedule
    from paribus.slots.softmax import SOFTMAX as SOFTMAX
    from paribus.slots.softmax import empty_cache as empty_cache
    from paribus.slots.softmax import sight_of as sight_of
    from paribus.slots.softmax import softmax_cost as softmax_cost
    from paribus.slots.tokenizer import Tokenizer as Tokenizer
    from paribus.slots.tokenizer import Vocabulary as Vocabulary
    from paribus.slots.tokens import Labels as Labels
    from paribus.slots.tokens import Tokens as Tokens
    from paribus.slots.tokens import labels_of as labels_of
    from paribus.slots.topology import Builder as Builder
    from paribus.slots.topology import Part as Part
    from paribus.slots.topology import Topology as Topology
    from paribus.slots.topology import memory_of as memory_of
    from paribus.specs.resolve import spec as spec
    from paribus.studies.elsewhere import Home as Home
    from paribus.studies.elsewhere import JobProcess as JobProcess
    from paribus.studies.planned import records as records
    from paribus.studies.planned import study as study
    from paribus.studies.run import run as run
    from paribus.studies.zygote import Zygote as Zygote
    from paribus.train.adapt import adapt as adapt
    from paribus.train.door import assemble as assemble
    from paribus.train.door import data as data
    from paribus.train.door import load as load
    from paribus.train.door import save as save

__version__ = "0.1.0"

_WHERE: dict[str, str] = {
    name: module
    for module, names in {
        "paribus.errors": (
            "DataError NotComparableError ParibusError PluginError Problem SpecError StoreError listed nearest"
        ),
        "paribus.conversion.config": "Config Key",
        "paribus.conversion.door": "convert export",
        "paribus.conversion.family": "Alone Architecture Family",
        "paribus.conversion.moves": "Move",
        "paribus.decode.attending": "Attended attend",
        "paribus.decode.door": "Generation Written generate",
        "paribus.decode.embedding": "Embedded embed",
        "paribus.decode.filling": "Candidate fill",
        "paribus.decode.translating": "ask",
        "paribus.keyed": "key32",
        "paribus.parts.adopting": "Adopting Converted leading",
        "paribus.parts.attend": "Attend",
        "paribus.parts.context": "Capture Context Memory Pair Plan Scoring State",
        "paribus.parts.crossing": "Crossing",
        "paribus.parts.draw": "Draw",
        "paribus.parts.feed": "Fed Feed",
        "paribus.parts.heads": "Heads",
        "paribus.parts.roles": "Role",
        "paribus.parts.root_mean_square": "RootMeanSquare",
        "paribus.parts.rows": "IGNORED PADDING Batch Rows Stream repeated rows_of",
        "paribus.parts.scores": "Scores",
        "paribus.parts.shape": "Shape",
        "paribus.parts.sight": "Blocks Sight ordered visible",
        "paribus.parts.stack": "Output Stack",
        "paribus.parts.states": "States",
        "paribus.parts.stage": "Share Stage",
        "paribus.specs.resolve": "spec",
        "paribus.registry.classes": "Registry installed",
        "paribus.train.adapt": "adapt",
        "paribus.train.door": "assemble data load save",
        "paribus.studies.planned": "records study",
        "paribus.studies.run": "run",
        "paribus.report.calibration.calibrate": "calibrate",
        "paribus.report.door": "compare",
        "paribus.slots.attention": "Attention",
        "paribus.slots.softmax": "SOFTMAX empty_cache sight_of softmax_cost",
        "paribus.slots.component": "Component Cost Keyed Load Traits",
        "paribus.slots.corpus": "Corpus Document Split",
        "paribus.slots.embedding": "Embedding Place Unembed",
        "paribus.slots.feedforward": "FeedForward",
        "paribus.slots.images": "Pixels lettered pictured unlettered",
        "paribus.slots.initialisation": "About Initialisation",
        "paribus.slots.launcher": "Ended Job Launcher News Note Plugins Started",
        "paribus.slots.measure": "Known Measure Rendering Subject",
        "paribus.slots.norm": "Norm Norms",
        "paribus.slots.objective": "Formed Objective Prompt Run Term Wish",
        "paribus.slots.optimizer": "Optimizer",
        "paribus.slots.placement": "Placement Sublayer",
        "paribus.slots.position": "Position",
        "paribus.slots.schedule": "Schedule",
        "paribus.slots.tokenizer": "Tokenizer Vocabulary",
        "paribus.slots.tokens": "Labels Tokens labels_of",
        "paribus.slots.topology": "Builder Part Topology memory_of",
        "paribus.studies.elsewhere": "Home JobProcess",
        "paribus.studies.zygote": "Zygote",
    }.items()
    for name in names.split()
}

__all__ = ["AtLeast", "AtMost", "Divides", "Example", "Range", "Slot", "hookimpl", "offered", *_WHERE]  # noqa: PLE0604  # `_WHERE` holds strings


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'paribus' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

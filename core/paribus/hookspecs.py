"""The whole plugin contract, on one screen.

A plugin is a module whose functions are marked with `@paribus.hookimpl` and have the names below. A hook of a slot maps
names, [a-z0-9][a-z0-9._-]{0,63}, to classes; the other hooks observe a trial and may change its trainer. `registered`
makes this mapping from the imports of a plugin's `__init__.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

if TYPE_CHECKING:
    from pathlib import Path

    from lightning import LightningModule, Trainer

    from paribus.slots.attention import Attention
    from paribus.slots.corpus import Corpus
    from paribus.slots.embedding import Embedding
    from paribus.slots.family import Family
    from paribus.slots.feedforward import FeedForward
    from paribus.slots.initialisation import Initialisation
    from paribus.slots.launcher import Launcher
    from paribus.slots.measure import Measure
    from paribus.slots.norm import Norm
    from paribus.slots.objective import Objective
    from paribus.slots.optimizer import Optimizer
    from paribus.slots.placement import Placement
    from paribus.slots.position import Position
    from paribus.slots.schedule import Schedule
    from paribus.slots.tokenizer import Tokenizer
    from paribus.slots.topology import Topology


hookspec = pluggy.HookspecMarker("paribus")
hookimpl = pluggy.HookimplMarker("paribus")  # decorator of the hooks of a plugin

C = TypeVar("C")


# fmt: off
@hookspec
def attention() -> Mapping[str, type[Attention]]: ...
@hookspec
def position() -> Mapping[str, type[Position]]: ...
@hookspec
def norm() -> Mapping[str, type[Norm]]: ...
@hookspec
def placement() -> Mapping[str, type[Placement]]: ...
@hookspec
def feedforward() -> Mapping[str, type[FeedForward]]: ...
@hookspec
def topology() -> Mapping[str, type[Topology]]: ...
@hookspec
def embedding() -> Mapping[str, type[Embedding]]: ...
@hookspec
def initialisation() -> Mapping[str, type[Initialisation]]: ...
@hookspec
def objective() -> Mapping[str, type[Objective]]: ...
@hookspec
def tokenizer() -> Mapping[str, type[Tokenizer]]: ...
@hookspec
def corpus() -> Mapping[str, type[Corpus]]: ...
@hookspec
def optimizer() -> Mapping[str, type[Optimizer]]: ...
@hookspec
def schedule() -> Mapping[str, type[Schedule]]: ...
@hookspec
def measure() -> Mapping[str, type[Measure]]: ...
@hookspec
def launcher() -> Mapping[str, type[Launcher]]: ...

@hookspec
def presets() -> Path:
    """A folder of NAME.yaml, each a spec."""
@hookspec
def studies() -> Path:
    """A folder of NAME/study.yaml."""
@hookspec
def families() -> Mapping[str, type[Family]]:
    """Hugging Face model families, by their `model_type`, that convert to specs and back."""
@hookspec
def configure_trainer(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments for Lightning's Trainer; those of the spec override them."""
@hookspec
def trial_started(spec: Mapping[str, Any], model: LightningModule, trainer: Trainer) -> None: ...
@hookspec
def trial_finished(spec: Mapping[str, Any], record: Mapping[str, Any]) -> None: ...
# fmt: on

SLOTS = (
    "topology", "embedding", "attention", "position", "norm", "placement", "feedforward", "initialisation",
    "objective", "corpus", "tokenizer", "optimizer", "schedule", "measure", "launcher",
)  # fmt: skip


def registered(namespace: Mapping[str, object], slot: type[C]) -> dict[str, type[C]]:
    """Return the components of `slot` in a plugin's namespace, by their registered names.

        from paribus_attention.grouped_query import GroupedQuery as gqa
        from paribus_objective.span_corruption import SpanCorruption as span_corruption

    registers `gqa` and `span-corruption`: an underscore stands for a hyphen, which an identifier cannot contain.
    Classes of other packages are ignored. A class of the plugin's own files that belongs to no slot is an error, and so
    is a plugin without any component.
    """
    from paribus.slots.component import Component

    package = str(namespace["__name__"]).partition(".")[0]
    components: dict[str, type[C]] = {}
    ignored: list[str] = []
    for name, value in namespace.items():
        if not isinstance(value, type) or name.startswith("_"):
            continue
        if value.__module__.partition(".")[0] != package:
            if issubclass(value, slot) and value is not slot:
                ignored.append(f"`{name}` is of {value.__module__}")
        elif issubclass(value, slot):
            components[name.replace("_", "-")] = value
        elif not issubclass(value, Component):
            raise TypeError(f"{package}: `{name}` ({value.__qualname__}) is not a component of any slot")
    if not components:
        reason = f": {', '.join(ignored)}, another package, which registers it itself" if ignored else ""
        raise TypeError(f"{package} has no {slot.__name__} of its own to register{reason}")
    return components

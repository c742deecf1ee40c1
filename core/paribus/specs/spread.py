"""A trial over several devices: what its `trainer:` may ask for, and what a trial cannot be cut into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from paribus.errors import listed
from paribus.registry import Index
from paribus.specs.facts import Broken

IN_PIECES: Final = "fsdp"
WHOLE: Final = ("ddp", "ddp_find_unused_parameters_true", "ddp_find_unused_parameters_false", "ddp_static_graph")
SHARDED: Final = (IN_PIECES, "deepspeed", "model_parallel")


class Uncut(NamedTuple):
    """An argument of the trainer, what is wrong with it, and what would do."""

    key: str
    what: str
    valid: str


def counted(trainer: Mapping[str, Any]) -> int | None:
    """How many processes a trainer asks for; None where only the machine can tell."""
    devices = trainer.get("devices", 1)
    if isinstance(devices, list | tuple):
        return len(devices)
    if isinstance(devices, str) and "," in devices:
        return len(devices.split(","))
    if devices in ("auto", -1, "-1"):
        return 1 if devices == "auto" and trainer.get("strategy", "auto") == "auto" else None
    return int(devices) if str(devices).isdecimal() else 1


def sharded(trainer: Mapping[str, Any]) -> bool:
    return str(trainer.get("strategy", "auto")).startswith(SHARDED)


def uncut(trainer: Mapping[str, Any]) -> Iterator[Uncut]:
    """Why a trial cannot be spread as its trainer asks; nothing where it can."""
    if trainer.get("num_nodes", 1) != 1:
        what = "a trial on several machines is not supported: its processes are started on one"
        yield Uncut("num_nodes", what, "1; many trials run on many machines by the study's `launcher:`")
    strategy = trainer.get("strategy", "auto")
    if strategy not in ("auto", IN_PIECES, *WHOLE):
        what = (
            f"`{strategy}` is not supported: what is kept of a trial (checkpoints, digests of each parameter, the "
            "optimizer's state by name) is whole, and only of `fsdp` is known how pieces are put together"
        )
        yield Uncut("strategy", what, ", ".join((*WHOLE, IN_PIECES)))
    if trainer.get("max_time"):
        what = "a budget in seconds is held against the clock of one process, and here there are several"
        yield Uncut("max_time", what, "a budget in steps, tokens or FLOPs")


def unstepped(index: Index, spec: Mapping[str, Any]) -> Iterator[Broken]:
    """An optimizer that is not known to step on parameters of which each process keeps a piece, where it is to."""
    trainer, optimizer = spec.get("trainer"), spec.get("optimizer")
    if not isinstance(trainer, Mapping) or not isinstance(optimizer, Mapping) or trainer.get("strategy") != IN_PIECES:
        return
    entries = index.entries["optimizer"]
    name = optimizer["name"]
    if not entries[name].traits.get("pieces"):
        what = f"with `{IN_PIECES}` parameters lie in pieces, on which the optimizer `{name}` is not known to step"
        valid = listed([entry.name for entry in entries.values() if entry.traits.get("pieces")])
        yield Broken("does-not-fit", ("optimizer",), what, valid)

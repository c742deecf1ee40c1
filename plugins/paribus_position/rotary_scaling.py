"""How a rotation is made to fit rows further apart than any that it was trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Final, Literal

import torch
from torch import Tensor

from paribus import Range, listed

Kind = Literal["none", "linear", "ntk", "yarn", "llama3"]


@dataclass(frozen=True)
class Scaling:
    """How angles are made to fit rows further apart than any that were trained on.

    `linear` slows every pair of columns by `factor`: "Extending Context Window of Large Language Models via Positional
    Interpolation" (Chen et al. 2023). `ntk` slows the slowest by it, the fastest not at all, and others by a longer
    base. `yarn` and `llama3` leave alone what turns more than `fast` times over `length`, slow what turns less than
    `slow` times by `factor`, and go over from one to the other between: evenly from pair to pair in "YaRN" (Peng et al.
    2023), which makes scores sharper as well, and evenly by how often they turn in "The Llama 3 Herd of Models"
    (Grattafiori et al. 2024).
    """

    kind: Annotated[Kind, "which turns are slowed: all, all by a longer base, or only slow ones"] = "none"
    factor: Annotated[float | None, "how many times as far; all kinds but none need it", Range(low=1)] = None
    length: Annotated[int | None, "how many rows were trained on; yarn and llama3 need it", Range(1)] = None
    fast: Annotated[
        float | None, "what turns more often over `length` stays; null: 32 in yarn, 4 in llama3", Range(above=0)
    ] = None
    slow: Annotated[
        float | None, "what turns less often over `length` is slowed by `factor`; null: 1", Range(above=0)
    ] = None
    temperature: Annotated[
        float | None, "what yarn multiplies queries and keys by; null: 1 + ln(factor) / 10", Range(above=0)
    ] = None


_NEEDS: Final[Mapping[str, tuple[str, ...]]] = {
    "none": (),
    "linear": ("factor",),
    "ntk": ("factor",),
    "yarn": ("factor", "length"),
    "llama3": ("factor", "length"),
}
_TAKES: Final[Mapping[str, tuple[str, ...]]] = {
    **_NEEDS,
    "yarn": ("factor", "length", "fast", "slow", "temperature"),
    "llama3": ("factor", "length", "fast", "slow"),
}
_FAST: Final = {"yarn": 32.0, "llama3": 4.0}


def check(scaling: Scaling) -> None:
    """Refuses what the kind would never read, and a kind without what it needs."""
    kind = scaling.kind
    for name in (field.name for field in fields(scaling) if field.name != "kind"):
        given = getattr(scaling, name) is not None
        if given and name not in _TAKES[kind]:
            kinds = [other for other, takes in _TAKES.items() if name in takes]
            raise ValueError(f"scaling.{name} is never read where scaling.kind is {kind}; valid: {listed(kinds)}")
        if not given and name in _NEEDS[kind]:
            raise ValueError(f"scaling.kind {kind} needs scaling.{name}")
    if kind in _FAST and _fast(scaling) <= _slow(scaling):
        raise ValueError(f"scaling.fast ({_fast(scaling):g}) must be more than scaling.slow ({_slow(scaling):g})")


def frequencies(theta: float, columns: int, scaling: Scaling, device: torch.device) -> Tensor:
    """(R/2,) float64: by how much each pair of columns is turned from one row to the next."""
    exponents = torch.arange(0, columns, 2, dtype=torch.float64, device=device) / -columns
    plain: Tensor = theta**exponents
    if scaling.factor is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    if scaling.kind == "ntk":
        longer = scaling.factor ** (columns / max(columns - 2, 1))  # of two columns alone, none is slowed
        return (theta * longer) ** exponents  # type: ignore[no-any-return]  # torch has no type for float ** Tensor
    kept = _by_pair(theta, columns, scaling, device) if scaling.kind == "yarn" else _by_turns(plain, scaling)
    return plain * kept + plain / scaling.factor * (1 - kept)


def temperature(scaling: Scaling) -> float:
    """What cosines and sines are multiplied by."""
    if scaling.kind != "yarn" or scaling.factor is None:
        return 1.0
    return 1.0 + 0.1 * math.log(scaling.factor) if scaling.temperature is None else scaling.temperature


def _by_pair(theta: float, columns: int, scaling: Scaling, device: torch.device) -> Tensor:
    """How much of its own frequency each pair keeps, falling evenly between the two that `fast` and `slow` name."""
    assert scaling.length is not None, "checked"
    first, last = (
        columns * math.log(scaling.length / (2 * math.pi * often)) / (2 * math.log(theta))
        for often in (_fast(scaling), _slow(scaling))
    )
    low, high = max(math.floor(first), 0), min(math.ceil(last), columns - 1)  # as in the authors' code
    span = high - low or 0.001
    pairs = torch.arange(columns // 2, dtype=torch.float64, device=device)
    return 1 - ((pairs - low) / span).clamp(0, 1)


def _by_turns(plain: Tensor, scaling: Scaling) -> Tensor:
    """How much of its own frequency each pair keeps, rising evenly with how often it turns over `length`."""
    assert scaling.length is not None, "checked"
    often = scaling.length * plain / (2 * math.pi)
    return ((often - _slow(scaling)) / (_fast(scaling) - _slow(scaling))).clamp(0, 1)


def _fast(scaling: Scaling) -> float:
    return _FAST[scaling.kind] if scaling.fast is None else scaling.fast


def _slow(scaling: Scaling) -> float:
    return 1.0 if scaling.slow is None else scaling.slow

"""Scaling of rotary embeddings to longer contexts than those of training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Final, Literal

import torch
from torch import Tensor

from paribus import Range, join_names

ScalingKind = Literal["none", "linear", "ntk", "yarn", "llama3"]


@dataclass(frozen=True)
class Scaling:
    """Scaling of rotary angles to longer contexts than those of training.

    `linear` divides every frequency by `factor`: "Extending Context Window of Large Language Models via Positional
    Interpolation" (Chen et al. 2023). `ntk` divides the lowest by it, leaves the highest, and interpolates by a larger
    base. `yarn` and `llama3` leave frequencies that rotate more than `fast` times over `length`, divide those that
    rotate less than `slow` times by `factor`, and interpolate between: linearly in the pair's index in "YaRN" (Peng et
    al. 2023), which also sharpens scores by `temperature`, and linearly in the number of rotations in "The Llama 3 Herd
    of Models" (Grattafiori et al. 2024).
    """

    kind: Annotated[
        ScalingKind,
        "frequencies that are scaled: all (linear), by a larger base (ntk), or low ones only (yarn, llama3)",
    ] = "none"
    factor: Annotated[float | None, "extension of the context; required unless kind is none", Range(low=1)] = None
    length: Annotated[int | None, "context length of training; required by yarn and llama3", Range(1)] = None
    fast: Annotated[
        float | None,
        "rotations over `length` above which a frequency is unchanged; null: 32 in yarn, 4 in llama3",
        Range(above=0),
    ] = None
    slow: Annotated[
        float | None, "rotations over `length` below which a frequency is divided by `factor`; null: 1", Range(above=0)
    ] = None
    temperature: Annotated[
        float | None, "factor of queries and keys in yarn; null: 1 + ln(factor) / 10", Range(above=0)
    ] = None


_REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "none": (),
    "linear": ("factor",),
    "ntk": ("factor",),
    "yarn": ("factor", "length"),
    "llama3": ("factor", "length"),
}
_ACCEPTED: Final[Mapping[str, tuple[str, ...]]] = {
    **_REQUIRED,
    "yarn": ("factor", "length", "fast", "slow", "temperature"),
    "llama3": ("factor", "length", "fast", "slow"),
}
_FAST: Final = {"yarn": 32.0, "llama3": 4.0}


def validate_scaling(scaling: Scaling) -> None:
    """Raise for options that the kind does not use, and for missing ones that it requires."""
    kind = scaling.kind
    for name in (field.name for field in fields(scaling) if field.name != "kind"):
        is_set = getattr(scaling, name) is not None
        if is_set and name not in _ACCEPTED[kind]:
            valid_kinds = [valid_kind for valid_kind, options in _ACCEPTED.items() if name in options]
            raise ValueError(f"scaling.{name} is not used with scaling.kind {kind}; valid: {join_names(valid_kinds)}")
        if not is_set and name in _REQUIRED[kind]:
            raise ValueError(f"scaling.kind {kind} requires scaling.{name}")
    if kind in _FAST and _fast(scaling) <= _slow(scaling):
        raise ValueError(f"scaling.fast ({_fast(scaling):g}) must be more than scaling.slow ({_slow(scaling):g})")


def frequencies(theta: float, width: int, scaling: Scaling, device: torch.device) -> Tensor:
    """Return the angle of each pair of channels from one position to the next, (R/2,) float64."""
    exponents = torch.arange(0, width, 2, dtype=torch.float64, device=device) / -width
    unscaled: Tensor = theta**exponents
    if scaling.factor is None:
        return unscaled
    if scaling.kind == "linear":
        return unscaled / scaling.factor
    if scaling.kind == "ntk":
        base_factor = scaling.factor ** (width / max(width - 2, 1))  # a single pair is not scaled
        return (theta * base_factor) ** exponents  # type: ignore[no-any-return]  # torch has no type for float ** Tensor
    unscaled_share = (
        _yarn_unscaled_share(theta, width, scaling, device)
        if scaling.kind == "yarn"
        else _llama3_unscaled_share(unscaled, scaling)
    )
    return unscaled * unscaled_share + unscaled / scaling.factor * (1 - unscaled_share)


def temperature(scaling: Scaling) -> float:
    """Return the factor of cosines and sines."""
    if scaling.kind != "yarn" or scaling.factor is None:
        return 1.0
    return 1.0 + 0.1 * math.log(scaling.factor) if scaling.temperature is None else scaling.temperature


def _yarn_unscaled_share(theta: float, width: int, scaling: Scaling, device: torch.device) -> Tensor:
    """Return the unscaled share of each frequency, falling linearly in the pair's index from `fast` to `slow`."""
    assert scaling.length is not None, "validated"
    start, end = (
        width * math.log(scaling.length / (2 * math.pi * turns)) / (2 * math.log(theta))
        for turns in (_fast(scaling), _slow(scaling))
    )
    low, high = max(math.floor(start), 0), min(math.ceil(end), width - 1)  # as in the authors' code
    span = high - low or 0.001
    pairs = torch.arange(width // 2, dtype=torch.float64, device=device)
    return 1 - ((pairs - low) / span).clamp(0, 1)


def _llama3_unscaled_share(unscaled: Tensor, scaling: Scaling) -> Tensor:
    """Return the unscaled share of each frequency, rising linearly in its rotations over `length`."""
    assert scaling.length is not None, "validated"
    turns = scaling.length * unscaled / (2 * math.pi)
    return ((turns - _slow(scaling)) / (_fast(scaling) - _slow(scaling))).clamp(0, 1)


def _fast(scaling: Scaling) -> float:
    return _FAST[scaling.kind] if scaling.fast is None else scaling.fast


def _slow(scaling: Scaling) -> float:
    return 1.0 if scaling.slow is None else scaling.slow

"""Check that a component computes the same function in low precision."""

from __future__ import annotations

import copy
import warnings
from typing import Final

import torch
from torch import Tensor

from paribus.parts.batch import Stream
from paribus.slots.position import Position
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.small_model import SmallModel

LENGTH: Final = 128
FAR_POSITION: Final = 10_000
FAR_DISTANCE: Final = 7  # between two tokens
# Relative errors of the median token; those of the shipped components are about 1e-6 and 0.01, and at most 0.026. The
# largest error of a token says less, since a router may choose another expert for it.
TOLERANCES: Final = {"float32": 1e-4, "bfloat16 autocast": 0.04, "bfloat16": 0.04}
# A model without norms amplifies rounding: in bfloat16, this times the error of rounded weights alone is accepted.
ROUNDED_WEIGHTS: Final = 4.0


def low_precision(case: Case, host: HostModel) -> Verdict:
    """Outputs in float32, in bfloat16 autocast and in bfloat16 equal those in float64, up to rounding.

    Positions and attentions are also tested far from 0 and at large distances, where bfloat16 does not represent all
    integers.
    """
    model = case.small_model(host)
    if model.has_fixed_length:
        return DOES_NOT_APPLY
    token_ids = model.tokens(2, min(LENGTH, model.topology.stage("body").shape.length))
    limits = (part.position_limit() for part in model.topology.modules() if isinstance(part, Position))
    is_limited = case.entry.slot not in ("position", "attention") or any(limit is not None for limit in limits)
    fault = _low_precision_fault(model, Stream(token_ids))
    for start, distance in () if fault or is_limited else ((FAR_POSITION, 1), (0, FAR_DISTANCE)):
        positions = (start + distance * torch.arange(token_ids.shape[1])).unsqueeze(0)
        fault = _low_precision_fault(model, Stream(token_ids, positions=positions))
        if fault:
            return f"at positions {start}, {start + distance}, {start + 2 * distance}, …, {fault}"
    return fault


def _low_precision_fault(model: SmallModel, stream: Stream) -> str:
    expected, lower, rounded = model.hidden(stream), copy.deepcopy(model), copy.deepcopy(model)
    rounded.topology.bfloat16().double()
    amplified = ROUNDED_WEIGHTS * _median_error(rounded.hidden(stream), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of torch, about kernels that mixed dtypes do not have
        for label, smallest in TOLERANCES.items():
            output = _output(lower, stream, label)
            if label == "bfloat16" and output.dtype != torch.bfloat16:
                return f"a model in bfloat16 returns {output.dtype}; expected the dtype of its weights"
            error = _median_error(output, expected)
            tolerance = smallest if label == "float32" else max(smallest, amplified)
            if not error <= tolerance:
                return (
                    f"in {label}, the output differs from that in float64 by {error:.2g} (median over tokens); "
                    f"expected at most {tolerance:.2g}. Usual cause: another formula for low precision, or "
                    "positions, sums or masks in low precision"
                )
    return HOLDS


def _output(model: SmallModel, stream: Stream, label: str) -> Tensor:
    if label == "bfloat16 autocast":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model.hidden(stream)
    model.topology.to(torch.float32 if label == "float32" else torch.bfloat16)
    return model.hidden(stream)


def _median_error(output: Tensor, expected: Tensor) -> float:
    """Return the median over tokens of the distance between two outputs, relative to the length of the expected one."""
    distance = (output.double() - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-9)
    return float(distance.median())

"""The options that every softmax attention shares, as one group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from paribus.schema import Range


@dataclass(frozen=True)
class Scores:
    """How queries are scored against keys, whatever the heads are."""

    bias: Annotated[bool, "whether the four projections have a bias"] = True
    scaled: Annotated[bool, "whether scores are divided by the root of the head width (T5: no)"] = True
    qk_norm: Annotated[
        bool, "whether each head's queries and keys are normalised by their root mean square (Qwen 3)"
    ] = False
    sinks: Annotated[bool, "whether each head learns a score for attending to nothing (gpt-oss)"] = False
    value_residual: Annotated[bool, "whether values are mixed with those of the first layer (ResFormer)"] = False
    soft_cap: Annotated[float | None, "scores are squashed into ± this (Gemma 2)", Range(above=0)] = None

"""Kernels of `flash-linear-attention` for linear recurrences, on CUDA in half precision, if `fla-core` is installed.

They compute what `MatrixRecurrence` computes by torch operations, the reference; states are in float32, and products of
a chunk in the precision of the inputs.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import torch
from packaging.version import Version
from torch import Tensor

if TYPE_CHECKING:
    from paribus.parts.matrix_recurrence import Inputs

OLDEST: Final = Version("0.6")  # of fla-core; earlier versions have other arguments
MAX_KEY_WIDTH: Final = 256
KERNELS: Final = {  # by the delta rule, and the width of decays: module and function
    (False, "none"): ("simple_gla", "chunk_simple_gla"),
    (False, "head"): ("simple_gla", "chunk_simple_gla"),
    (False, "channel"): ("gla", "chunk_gla"),
    (True, "none"): ("delta_rule", "chunk_delta_rule"),
    (True, "head"): ("gated_delta_rule", "chunk_gated_delta_rule"),
    (True, "channel"): ("kda", "chunk_kda"),
}


def is_installed() -> bool:
    """Return True if a version of `fla-core` with these arguments is installed, and Triton."""
    try:
        return Version(version("fla-core")) >= OLDEST and find_spec("triton") is not None
    except PackageNotFoundError:
        return False


IS_INSTALLED: Final = is_installed()  # not in `serves`, which is compiled


def serves(tokens: Inputs, *, writes: int, has_state: bool, has_documents: bool) -> bool:
    """Return True if a kernel computes the outputs: of whole sequences that are one document each, in training."""
    return (
        tokens.v.is_cuda
        and tokens.v.dtype in (torch.bfloat16, torch.float16)
        and tokens.q.shape[-1] <= MAX_KEY_WIDTH
        and not (writes > 1 or has_state or has_documents)
        and IS_INSTALLED
    )


@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch has no types for it
def run_kernel(tokens: Inputs, *, delta: bool) -> Tensor:
    """Return the outputs (B, H, T, V) of the recurrence from a state of 0."""
    batch, heads = (max(part.shape[dim] for part in tokens if part is not None) for dim in (0, 1))
    dtype = tokens.v.dtype

    def by_token(x: Tensor) -> Tensor:  # (B, H, T, K) -> (B, T, H, K), of all examples and heads
        return x.expand(batch, heads, -1, -1).transpose(1, 2).contiguous()

    q, k, v = (by_token(part.to(dtype)) for part in (tokens.q, tokens.k, tokens.v))
    given: dict[str, Any] = {"scale": 1.0}
    if tokens.b is not None:
        b = by_token(tokens.b.to(dtype))
        if delta:
            given["beta"] = b.squeeze(-1)
        else:
            v = v * b
    elif delta:
        given["beta"] = v.new_ones(v.shape[:-1])
    kind = "none"
    if tokens.log_decay is not None:
        kind = "head" if tokens.log_decay.shape[-1] == 1 and tokens.q.shape[-1] > 1 else "channel"
        decay = by_token(tokens.log_decay.float())
        given["g"] = decay.squeeze(-1) if kind == "head" else decay
    module, name = KERNELS[delta, kind]
    y: Tensor = getattr(import_module(f"fla.ops.{module}"), name)(q, k, v, **given)[0].transpose(1, 2)
    return y

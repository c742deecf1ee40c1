"""Precision of a training run: the types of `trainer.precision`, and `trainer.matmul_precision`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, NamedTuple

import torch

from paribus.specs.fields import MATMUL_PRECISION


class Precision(NamedTuple):
    """Types of a training step."""

    parameters: torch.dtype
    autocast: torch.dtype | None = None

    def context(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context of a forward pass."""
        return nullcontext() if self.autocast is None else torch.autocast(device.type, self.autocast)


FLOAT32: Final = Precision(torch.float32)
BF16_MIXED: Final = Precision(torch.float32, torch.bfloat16)
FP16_MIXED: Final = Precision(torch.float32, torch.float16)
FLOAT64: Final = Precision(torch.float64)
# As Lightning reads them, where "16" and "bf16" are the mixed ones.
PRECISIONS: Final[Mapping[str, Precision]] = {
    "None": FLOAT32,
    "32": FLOAT32,
    "32-true": FLOAT32,
    "64": FLOAT64,
    "64-true": FLOAT64,
    "16": FP16_MIXED,
    "16-mixed": FP16_MIXED,
    "16-true": Precision(torch.float16),
    "bf16": BF16_MIXED,
    "bf16-mixed": BF16_MIXED,
    "bf16-true": Precision(torch.bfloat16),
}


def training_precision(trainer: Mapping[str, Any] | None) -> Precision | None:
    """Return the types of `trainer.precision`, or None if a library of its own chooses them."""
    return PRECISIONS.get(str((trainer or {}).get("precision")))


@contextmanager
def matmul_precision(trainer: Mapping[str, Any] | None) -> Iterator[None]:
    """Set the precision of products of float32 matrices for the block: the spec's, or else torch's default.

    Convolutions and recurrent layers of cuDNN follow it; by torch's default they would use TF32.
    """
    precision = (trainer or {}).get(MATMUL_PRECISION.name, MATMUL_PRECISION.default)
    previous = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = precision != "highest"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous[0])
        torch.backends.cudnn.allow_tf32 = previous[1]

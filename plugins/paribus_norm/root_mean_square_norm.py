"""Root mean square normalisation (`rmsnorm`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import Norm, Range, Role


@final
class RootMeanSquareNorm(Norm):
    """Root mean square normalisation with a gain (Zhang & Sennrich 2019). (…, D) -> (…, D), of the input's dtype.

    With `zero_centred`, the parameter is the gain less 1: `offset`. The function is the same, but half precision rounds
    gains near 1 less, and optimizers that scale steps by the size of a parameter (LAMB, Adafactor) take other steps.
    """

    roles: ClassVar[Mapping[str, Role]] = {"weight": "gain", "offset": "bias"}
    weight: nn.Parameter  # None with an offset

    def __init__(
        self,
        width: int,
        *,
        eps: Annotated[float, "added to the mean square (Llama: 1e-5)", Range(above=0)] = 1e-6,
        zero_centred: Annotated[bool, "learn the difference of the gain to 1 (Gemma, Qwen3-Next: yes)"] = False,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.register_parameter("weight", None if zero_centred else nn.Parameter(torch.ones(width)))
        self.offset = nn.Parameter(torch.zeros(width)) if zero_centred else None

    def forward(self, x: Tensor) -> Tensor:
        if self.offset is None:
            return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        gain = 1 + self.offset.to(torch.promote_types(x.dtype, torch.float32))  # in bfloat16, 1 + 0.003 is 1
        return (functional.rms_norm(x.to(gain.dtype), gain.shape, eps=self.eps) * gain).to(x.dtype)

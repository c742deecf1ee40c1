"""Compare the kernels of `fla-core` with the operations of torch, on a CPU by Triton's interpreter; print errors."""

from __future__ import annotations

import builtins
import json
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paribus.parts.fla_kernels import KERNELS, run_kernel
from paribus.parts.matrix_recurrence import Inputs, run_chunks

tl, autotuner, interpreter = map(
    import_module, ("triton.language", "triton.runtime.autotuner", "triton.runtime.interpreter")
)
LENGTH = 66  # two chunks of a kernel, of which the second is not whole


def run_first(self: Any, *arguments: Any, **named: Any) -> Any:
    """Run a kernel with its first configuration: nothing can be tuned without a GPU."""
    return self.fn.run(*arguments, **{**named, **self.configs[0].all_kwargs()})


def tensor_range(*limits: Any) -> Iterator[Any]:
    """Yield the numbers of a range as tensors of Triton, as a compiled kernel has them."""
    for index in builtins.range(*map(int, limits)):
        yield tl.tensor(interpreter.TensorHandle(np.array([index], dtype=np.int32), tl.int32), tl.int32)


def largest_error(delta: bool, kind: str) -> float:
    """Return the largest relative error of the output and of the gradients, in float16."""
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 1, LENGTH, 16), torch.randn(2, 2, LENGTH, 16), torch.randn(2, 2, LENGTH, 32)
    step_size, weights = torch.rand(2, 2, LENGTH, 1), torch.randn(2, 2, LENGTH, 32)
    log_decay = None if kind == "none" else -torch.rand(1, 2, LENGTH, 1 if kind == "head" else 16)
    drawn = (q, functional.normalize(k, dim=-1), v, log_decay, step_size)
    given = [part if part is None else part.half() for part in drawn]
    results: list[list[Tensor]] = []
    for is_kernel in (False, True):
        dtype = torch.float16 if is_kernel else torch.float64
        parts = [None if part is None else part.to(dtype, copy=True).requires_grad_() for part in given]
        tokens = Inputs(*parts)  # type: ignore[arg-type]  # only decays are missing
        y = run_kernel(tokens, delta=delta) if is_kernel else run_chunks(tokens, delta=delta)[0]
        leaves = [part for part in parts if part is not None]
        results.append([y.double(), *torch.autograd.grad((y.double() * weights).sum(), leaves)])
    return max(float((ours - own).norm() / own.norm()) for own, ours in zip(*results, strict=True))


if __name__ == "__main__":
    autotuner.Autotuner.run = run_first
    for module, _ in KERNELS.values():
        import_module(f"fla.ops.{module}")
    for name, loaded in list(sys.modules.items()):
        if name.startswith("fla.ops"):
            loaded.range = tensor_range  # type: ignore[attr-defined]  # read before the built-in function
    kernels = {f"{name}, decays: {key[1]}": key for key, (_, name) in KERNELS.items()}
    sys.stdout.write(json.dumps({name: largest_error(*key) for name, key in kernels.items()}))

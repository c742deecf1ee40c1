"""Operations of torch that a processor may lack in half precision."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

CPU: Final = "cpu"


@final
class AutocastOperation:
    """Operation of torch that some processors lack in half precision, such as `torch.lstm`.

    Under autocast it computes in float32 where this processor lacks it; otherwise calls are unchanged. It is tried on a
    CPU and under autocast only, once per process and dtype, with its gradient.
    """

    def __init__(self, name: str, operation: Callable[..., Any], example: Callable[[], tuple[Any, ...]]) -> None:
        """`name`: of the operation, for users; `example`: returns small arguments in float32, to try it with."""
        self.name = name
        self._operation, self._example = operation, example
        self._is_available = cache(self._runs)  # a plain dictionary would be a value of the components that use this

    def __call__(self, *arguments: Any) -> Any:
        """Call the operation; the result is in float32 if the processor lacks it in the dtype of autocast."""
        devices = {leaf.device.type for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)}
        if devices != {CPU} or not torch.is_autocast_enabled(CPU) or self._is_available(torch.get_autocast_dtype(CPU)):
            return self._operation(*arguments)
        with torch.autocast(CPU, enabled=False):
            return self._operation(*tree_map_only(Tensor, _to_float32, arguments))

    def float32_reason(self, device: torch.device, dtype: torch.dtype) -> str:
        """Return why the operation computes in float32 under autocast to `dtype`, or an empty string if it does not."""
        if device.type != CPU or self._is_available(dtype):
            return ""
        return f"this processor has no {self.name} in {str(dtype).removeprefix('torch.')}"

    def _runs(self, dtype: torch.dtype) -> bool:
        """Try the operation and its gradient, independently of the modes and hooks of the caller."""
        with (
            _disable_current_modes(),  # fake tensors would run everywhere
            torch.inference_mode(mode=False),
            torch.enable_grad(),
            torch.autograd.graph.saved_tensors_hooks(_identity, _identity),  # checkpointed layers count saved tensors
            torch.autocast(CPU, dtype, cache_enabled=False),
        ):
            arguments = tree_map_only(Tensor, Tensor.requires_grad_, self._example())
            inputs = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
            try:
                outputs = [leaf for leaf in tree_leaves(self._operation(*arguments)) if isinstance(leaf, Tensor)]
                torch.autograd.grad(sum(output.float().sum() for output in outputs), inputs, allow_unused=True)  # type: ignore[arg-type]  # a sum of tensors is a tensor
            except RuntimeError:  # such as "could not create a primitive descriptor"
                return False
        return True


def _to_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def _identity(tensor: Tensor) -> Tensor:
    return tensor

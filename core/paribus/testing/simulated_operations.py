"""Operations of the simulated device: which of them wait for the device, and those that only accelerators have."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, final

import torch
from torch import Tensor

aten = torch.ops.aten

READS: Final = "the CPU reads a value"
SIZES: Final = "the size of its result depends on values"
MASK: Final = "the positions of a mask are counted"
CPU_INDEX: Final = "an index is copied from the CPU"
TO_CPU: Final = "a copy to the CPU"
BLOCKING: Final = "a copy from the CPU without non_blocking=True"
UNPINNED: Final = "a copy from memory that is not pinned"


@final
class Call(NamedTuple):
    """Call of an operation, before it runs."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    is_simulated: Callable[[Any], bool]
    is_pinned: Callable[[Tensor], bool]

    def argument(self, index: int, name: str, default: Any) -> Any:
        return self.args[index] if len(self.args) > index else self.kwargs.get(name, default)

    def copy_reason(self, source: Tensor, *, to_device: bool, non_blocking: bool) -> str:
        """Return the reason why a copy waits; empty if it does not."""
        if self.is_simulated(source) == to_device:
            return ""
        if not to_device:
            return "" if non_blocking else TO_CPU
        if not non_blocking:
            return BLOCKING
        return "" if self.is_pinned(source) else UNPINNED


def _conversion(call: Call) -> str:
    device = call.kwargs.get("device")
    if device is None:
        return ""
    to_device = torch.device(device).type != "cpu"
    return call.copy_reason(call.args[0], to_device=to_device, non_blocking=bool(call.kwargs.get("non_blocking")))


def _copy(call: Call) -> str:
    target, source = call.args[:2]
    if source.dim() == 0 and not call.is_simulated(source):
        return ""  # a number is an argument of the kernel
    non_blocking = bool(call.argument(2, "non_blocking", False))
    return call.copy_reason(source, to_device=call.is_simulated(target), non_blocking=non_blocking)


def _index(call: Call) -> str:
    indices = [index for index in call.args[1] if index is not None]
    if not call.is_simulated(call.args[0]):
        raise RuntimeError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
    if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
        return MASK
    return "" if all(map(call.is_simulated, indices)) else CPU_INDEX


def _assignment(call: Call) -> str:
    is_fill = call.args[2].numel() == 1 and all(index is None or index.dtype == torch.bool for index in call.args[1])
    return "" if is_fill else _index(call)


def _repetition(call: Call) -> str:
    return SIZES if call.kwargs.get("output_size") is None else ""


_WAITS: Final[Mapping[Any, Callable[[Call], str]]] = {
    aten._to_copy.default: _conversion,
    aten.copy_.default: _copy,
    aten.index.Tensor: _index,
    aten._unsafe_index.Tensor: _index,
    aten.index_put.default: _assignment,
    aten.index_put_.default: _assignment,
    aten._index_put_impl_.default: _assignment,
    aten.repeat_interleave.Tensor: _repetition,
    **dict.fromkeys(
        (
            aten._local_scalar_dense.default,
            aten.equal.default,
            aten.is_nonzero.default,
            aten._linalg_check_errors.default,
            aten.multinomial.default,
        ),
        lambda call: READS,
    ),
    **dict.fromkeys(
        (
            aten.nonzero.default,
            aten.masked_select.default,
            aten._unique2.default,
            aten.unique_dim.default,
            aten.unique_consecutive.default,
            aten.unique_dim_consecutive.default,
            aten.bincount.default,
            aten.embedding_renorm_.default,
        ),
        lambda call: SIZES,
    ),
}
BETWEEN_DEVICES: Final = frozenset(
    {
        aten._to_copy.default,
        aten.copy_.default,
        aten.index.Tensor,
        aten._unsafe_index.Tensor,
        aten.index_put.default,
        aten.index_put_.default,
        aten._index_put_impl_.default,
    }
)
"""Operations that accept tensors of both devices."""
_WITHOUT_NUMBERS: Final = frozenset({aten.cat.default, aten.stack.default, aten.equal.default})
_PRODUCTS: Final = frozenset(
    {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.dot.default}
)


def wait_reason(operation: Any, call: Call) -> str:
    """Return the reason why the CPU waits for the device in an operation; empty if it does not."""
    rule = _WAITS.get(operation)
    return "" if rule is None else rule(call)


def accepted_numbers(operation: Any) -> int:
    """Return how many tensors of the CPU without dimensions an operation takes as numbers, beside tensors of a GPU."""
    if operation is aten.where.self:
        return 2
    is_list = operation.name().startswith("aten::_foreach")
    return 0 if is_list or operation in _WITHOUT_NUMBERS else 1


def check_kernel(operation: Any, tensors: Sequence[Tensor]) -> None:
    """Raise an error like torch's for an operation that has no kernel on CUDA."""
    is_integer = not (tensors[0].is_floating_point() or tensors[0].is_complex())
    name = operation.name().removeprefix("aten::")
    if name.startswith("histogram") or (operation in _PRODUCTS and is_integer):
        dtype = str(tensors[0].dtype).removeprefix("torch.")
        raise NotImplementedError(f'"{name}" is not implemented for {dtype} on CUDA')


def check_determinism(operation: Any, tensors: Sequence[Tensor]) -> None:
    """Raise torch's error or warning for a sum that is not deterministic on CUDA, if these are not allowed."""
    is_sum = operation is aten.cumsum.default and tensors[0].is_floating_point()
    if is_sum and torch.are_deterministic_algorithms_enabled():
        message = "cumsum_cuda_kernel does not have a deterministic implementation"
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            raise RuntimeError(message)
        warnings.warn(message, stacklevel=2)


def run(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on tensors of the CPU."""
    return _ACCELERATOR_ONLY.get(operation, operation)(*args, **kwargs)


# -- cells of recurrent layers --------------------------------------------------------------------------------------


def _biased(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def _lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    c: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the next h and c, and the gates."""
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    new_c = f * c + i * g
    return o * new_c.tanh(), new_c, torch.cat([i, f, g, o], 1)


def _lstm_cell_backward(
    h_gradient: Tensor | None, c_gradient: Tensor | None, c: Tensor, new_c: Tensor, gates: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of the gates, of c and of a bias."""
    i, f, g, o = gates.chunk(4, 1)
    tanh = new_c.tanh()
    h_gradient = torch.zeros_like(tanh) if h_gradient is None else h_gradient
    inner = h_gradient * o * (1 - tanh**2) + (0 if c_gradient is None else c_gradient)
    parts = [inner * g * i * (1 - i), inner * c * f * (1 - f), inner * i * (1 - g**2), h_gradient * tanh * o * (1 - o)]
    gradient = torch.cat(parts, 1)
    return gradient, inner * f, gradient.sum(0) if has_bias else None


def _gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    h: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the next h, and what the backward pass needs."""
    input_r, input_z, input_n = _biased(input_gates, input_bias).chunk(3, 1)
    hidden_r, hidden_z, hidden_n = _biased(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = (input_r + hidden_r).sigmoid(), (input_z + hidden_z).sigmoid()
    n = (input_n + r * hidden_n).tanh()
    return n + z * (h - n), torch.cat([r, z, n, h, hidden_n], 1)


def _gru_cell_backward(
    h_gradient: Tensor, saved: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of both gates, of h and of both biases."""
    r, z, n, h, hidden_n = saved.chunk(5, 1)
    n_gradient = h_gradient * (1 - z) * (1 - n**2)
    z_gradient = h_gradient * (h - n) * z * (1 - z)
    r_gradient = n_gradient * hidden_n * r * (1 - r)
    inputs = torch.cat([r_gradient, z_gradient, n_gradient], 1)
    hidden = torch.cat([r_gradient, z_gradient, n_gradient * r], 1)
    return inputs, hidden, h_gradient * z, inputs.sum(0) if has_bias else None, hidden.sum(0) if has_bias else None


_ACCELERATOR_ONLY: Final[Mapping[Any, Callable[..., Any]]] = {
    aten._thnn_fused_lstm_cell.default: _lstm_cell,
    aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_cell_backward,
    aten._thnn_fused_gru_cell.default: _gru_cell,
    aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
}

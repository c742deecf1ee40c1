"""Losses over a large vocabulary, in chunks: the logits of all positions are never in memory at once."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from paribus.parts.batch import IGNORED

MIN_CLASSES: Final = 4096  # fewer logits take no more memory than the hidden states do
# Logits of one chunk. On a CPU 24 MiB in float32: malloc reuses blocks of up to 32 MiB, and its heap grows more with
# those near this limit. A GPU takes 1 GiB in bfloat16: with seven chunks, the CPU of an H200 took longer to start the
# kernels of a step of GPT-2 than the GPU took to run them.
CHUNK_LOGITS: Final = {"cpu": 6 << 20, "cuda": 1 << 29}
TILE: Final = 128  # positions of a chunk on a GPU are a multiple, as its products prefer

Head: TypeAlias = Callable[[Tensor], Tensor]
"""Function of hidden states, (…, D), that returns logits of each position by itself, (…, C)."""
LossCall: TypeAlias = Callable[[Head, Tensor, Tensor, float, Tensor | None, bool], Tensor]


def head_loss(
    head: Head, hidden: Tensor, labels: Tensor, smoothing: float, weights: Tensor | None = None, squares: bool = False
) -> Tensor:
    """Return the sum of the cross-entropy over the labels that are not IGNORED: (…, D), (…) -> ().

    Each label counts as much as its weight, (…). Logits in half precision are converted to float32, as in autocast.
    With `squares`, return this sum and that of the squared log-sum-exp at the same positions, (2,).
    """
    logits = at_least_float32(head(hidden)).flatten(0, -2)
    losses = functional.cross_entropy(
        logits,
        labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum" if weights is None else "none",
        label_smoothing=smoothing,
    )
    total = losses if weights is None else (losses * weights.flatten()).sum()
    if not squares:
        return total
    penalties = logits.logsumexp(-1).square().masked_fill(labels.flatten() == IGNORED, 0)
    return torch.stack([total, (penalties if weights is None else penalties * weights.flatten()).sum()])


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return a tensor in float32, or in its own dtype if that is wider."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def summed_cross_entropy(
    head: Head,
    hidden: Tensor,
    labels: Tensor,
    classes: int,
    *,
    smoothing: float = 0.0,
    weights: Tensor | None = None,
    z: float = 0.0,
    call: LossCall = head_loss,
) -> Tensor:
    """Return `head_loss`, computed in chunks where there are many logits: (), or (2,) with a z-loss of weight `z`.

    Each chunk computes its gradients in the forward pass, so that nothing is computed twice. They are those of the
    first sum plus `z` times the second. `call`: `head_loss` or its compiled form.
    """
    positions = _chunk_positions(classes, labels.numel(), hidden.device)
    if labels.numel() <= positions or torch.compiler.is_compiling():
        return call(head, hidden, labels, smoothing, weights, z > 0)
    parameters = _leaves(head(hidden.detach().flatten(0, -2)[:1]))  # none without gradients
    if not parameters and not (hidden.requires_grad and torch.is_grad_enabled()):  # a frozen model, or an evaluation
        chunks = zip(hidden.flatten(0, -2).split(positions), labels.flatten().split(positions), strict=True)
        parts = [] if weights is None else weights.flatten().split(positions)
        totals = [
            call(head, chunk, chunk_labels, smoothing, parts[number] if parts else None, z > 0)
            for number, (chunk, chunk_labels) in enumerate(chunks)
        ]
        return torch.stack(totals).sum(0)
    adds_in_place = call is head_loss and not torch.is_autocast_enabled(hidden.device.type)  # in one precision
    total: Tensor = _Chunked.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
        partial(call, head), positions, adds_in_place, smoothing, z, labels, weights, hidden, *parameters
    )
    return total


def map_in_chunks(
    function: Callable[..., Tensor | tuple[Tensor, ...]], classes: int, hidden: Tensor, *others: Tensor
) -> tuple[Tensor, ...]:
    """Return what a function of (N, D) hidden states, and of other tensors at these positions, gives without gradients.

    The tensors have the leading dimensions of `hidden`, and so have the results. The function computes logits over
    `classes` of each position by itself, and returns tensors that need less memory, such as the most likely class.
    """
    leading = hidden.shape[:-1]
    tensors = [hidden.detach().flatten(0, -2), *(other.flatten(0, len(leading) - 1) for other in others)]
    positions = _chunk_positions(classes, len(tensors[0]), hidden.device)
    with torch.no_grad():
        results = [function(*chunks) for chunks in zip(*(tensor.split(positions) for tensor in tensors), strict=True)]
    columns = zip(*(result if isinstance(result, tuple) else (result,) for result in results), strict=True)
    return tuple(torch.cat(column).unflatten(0, leading) for column in columns)


def _chunk_positions(classes: int, count: int, device: torch.device) -> int:
    """Return how many of `count` positions have their logits computed together; unlimited for few classes."""
    if classes < MIN_CLASSES:
        return sys.maxsize
    positions = max(1, CHUNK_LOGITS.get(device.type, CHUNK_LOGITS["cpu"]) // classes)
    if device.type == "cpu" or positions < TILE:
        return positions
    equal = math.ceil(count / math.ceil(count / positions)) if count else 1  # one length, so one compiled graph
    return min(positions - positions % TILE, TILE * math.ceil(equal / TILE))


def _leaves(output: Tensor) -> list[Tensor]:
    """Return the parameters that an output was computed with."""
    leaves: dict[int, Tensor] = {}
    pending, known = [output.grad_fn], set()
    while pending:
        node: Any = pending.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if hasattr(node, "variable"):
            leaves[id(node.variable)] = node.variable
        pending += [function for function, _ in node.next_functions]
    return list(leaves.values())


class _Chunked(torch.autograd.Function):
    """Sum over chunks. The gradients are computed with each chunk, and scaled in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        loss: Callable[[Tensor, Tensor, float, Tensor | None, bool], Tensor],
        positions: int,
        adds_in_place: bool,
        smoothing: float,
        z: float,
        labels: Tensor,
        weights: Tensor | None,
        hidden: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        flat, targets = hidden.detach().flatten(0, -2), labels.flatten()
        factors = None if weights is None else weights.flatten()
        is_hidden_trained = ctx.needs_input_grad[7]
        hidden_gradient = torch.empty_like(flat) if is_hidden_trained else None
        sums: list[Tensor | None] = [None] * len(parameters)
        in_place = _InPlaceSums(parameters if adds_in_place else ())
        total: Tensor | None = None
        for start in range(0, len(flat), positions):
            chunk = slice(start, start + positions)
            with torch.enable_grad(), in_place:
                x = flat[chunk].requires_grad_(is_hidden_trained)
                part = loss(x, targets[chunk], smoothing, None if factors is None else factors[chunk], z > 0)
                penalised = part[0] + z * part[1] if z else part
            with torch.autocast(part.device.type, enabled=False):
                inputs = [x, *parameters] if is_hidden_trained else list(parameters)
                gradients = list(torch.autograd.grad(penalised, inputs, allow_unused=True))
            if hidden_gradient is not None:
                hidden_gradient[chunk] = gradients.pop(0)
            sums = [_added(old, new) for old, new in zip(sums, gradients, strict=True)]
            del gradients  # may be as large as the head, and are not needed while the next chunk computes its own
            total = part.detach() if total is None else total + part.detach()
        for index, parameter in enumerate(parameters):
            if id(parameter) in in_place.sums:
                old = sums[index]
                sums[index] = in_place.sums[id(parameter)] if old is None else old.add_(in_place.sums[id(parameter)])
        ctx.gradients = [None if hidden_gradient is None else hidden_gradient.view_as(hidden), *sums]
        ctx.z = z
        ctx.dtypes = [hidden.dtype, *(parameter.dtype for parameter in parameters)]
        assert total is not None, "a chunk has at least one position"
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the gradients of this loss were used before; the loss must be computed again")
        gradients, ctx.gradients = ctx.gradients, None
        if ctx.z:
            # Checked on a CPU only: elsewhere the value would have to be waited for.
            if scale.device.type == "cpu" and not torch.isclose(scale[1], ctx.z * scale[0], rtol=1e-3, atol=0):
                raise RuntimeError(f"these gradients are those of the first sum plus {ctx.z:g} times the second")
            scale = scale[0]
        scaled = (
            None if gradient is None else gradient.mul_(scale).to(dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return None, None, None, None, None, None, None, *scaled


def _added(total: Tensor | None, gradient: Tensor | None) -> Tensor | None:
    """Add a gradient to its sum, which starts as a copy: autograd may return one tensor for two parameters."""
    if gradient is None:
        return total
    if total is None:
        dtype = torch.promote_types(gradient.dtype, torch.float32)
        return gradient.to(dtype, copy=True, memory_format=torch.contiguous_format)
    return total.add_(gradient)


class _InPlaceSums(TorchFunctionMode):
    """Within this context, linear layers add the gradients of their weights to `sums` in place.

    Product and sum are one operation, where autograd would return the gradient of a chunk, as large as the head, to be
    added afterwards.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__()
        self.sums: dict[int, Tensor] = {}  # by the id of the parameter
        self._weights = {id(parameter) for parameter in parameters if parameter.dtype in (torch.float32, torch.float64)}

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function is functional.linear and not kwargs and id(args[1]) in self._weights:
            x, weight, bias = args if len(args) == 3 else (*args, None)
            return _Linear.apply(self.sums, x, weight, bias)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return function(*args, **(kwargs or {}))


class _Linear(torch.autograd.Function):
    """`functional.linear`, which adds the gradient of the weight to `sums`."""

    @staticmethod
    def forward(ctx: Any, sums: dict[int, Tensor], x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.sums, ctx.key = sums, id(weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        inputs, rows = (tensor.reshape(-1, tensor.shape[-1]) for tensor in (x, gradient))
        total = ctx.sums.get(ctx.key)
        if total is None:
            ctx.sums[ctx.key] = rows.t() @ inputs
        else:
            total.addmm_(rows.t(), inputs)
        x_gradient = gradient @ weight if ctx.needs_input_grad[1] else None
        return None, x_gradient, None, rows.sum(0) if ctx.needs_input_grad[3] else None

"""Counts of a pass through an attention: FLOPs, dependent operations, and layers between two tokens.

They are counted on the meta device or on small inputs, and do not depend on the machine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import FlopCounterMode

from paribus.complexity.sublayer import Size, forward, stack_of, with_weights
from paribus.parts.attend import Attend
from paribus.parts.stack import Stack
from paribus.registry import Registry

Node = Mapping[str, Any]

LENGTHS: Final = (128, 256, 512)  # at which sequential operations are counted
LOGARITHM: Final = 0.5  # the exponent that stands for a logarithm
PATIENCE: Final = 8  # layers without a further token, at least, after which the search for a path stops
QUERIES: Final = 16  # of one backward pass in the search for dependencies


def flop_counter() -> FlopCounterMode:
    """Return torch's FLOP counter, extended with Fourier transforms."""
    return FlopCounterMode(display=False, custom_mapping=dict.fromkeys(_TRANSFORMS, _fft_flops))


_TRANSFORMS = (torch.ops.aten._fft_c2c, torch.ops.aten._fft_r2c, torch.ops.aten._fft_c2r)


def _fft_flops(shape: Any, dims: list[int], *_: Any, out_shape: Any = None, **__: Any) -> int:
    """FLOPs of Fourier transforms: 5 N log2 N for a transform of N numbers, as FFTW counts them."""
    size: int = math.prod(shape[dim] for dim in dims)
    transforms: int = math.prod(shape) // size
    return round(transforms * 5 * size * math.log2(size))


def has_window(component: nn.Module) -> bool:
    """Return True if the attention sees part of the keys: torch counts the pairs that its kernel computes as well."""
    visibilities = (module.visibility for module in component.modules() if isinstance(module, Attend))
    return any(
        size is not None
        for visibility in visibilities
        for size in (visibility.window, visibility.blocks, visibility.chosen)
    )


class CountedFlops(NamedTuple):
    """FLOPs of a forward pass that torch counts, and the tokens that each linear layer is applied to."""

    flops: int
    linear_tokens: Mapping[str, int]  # by the path of the layer in the attention


def count_flops(registry: Registry, node: Node, size: Size) -> CountedFlops:
    """Count the FLOPs of a pass on the meta device, where torch counts every kernel."""
    stack = stack_of(registry, node, size)
    tokens: dict[str, int] = {}
    for path, module in attention_in(stack).named_modules():
        if isinstance(module, nn.Linear):

            def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, path: str = path) -> None:
                tokens[path] = tokens.get(path, 0) + math.prod(inputs[0].shape[:-1])

            module.register_forward_hook(hook)
    with torch.no_grad(), flop_counter() as counter:
        forward(stack, torch.empty(1, size.length, size.width, device="meta"))
    return CountedFlops(int(counter.get_total_flops()), tokens)


def attention_in(stack: Stack) -> nn.Module:
    attention: Any = stack.layers[0].attention
    assert isinstance(attention, nn.Module)
    return attention


# -- sequential operations -------------------------------------------------------------------------------------------


class _Depth(TorchDispatchMode):
    """Number of operations that wait for one another: the longest chain of tensors, each computed from the last."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.depth = 0
        self._depths: dict[int, int] = {}
        self._storages: list[Any] = []  # alive, so that no address is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = [item for item in tree_iter((args, kwargs or {})) if isinstance(item, Tensor)]
        result = func(*args, **(kwargs or {}))
        depth = 1 + max((self._depths.get(_key(tensor), 0) for tensor in inputs), default=0)
        for tensor in (item for item in tree_iter(result) if isinstance(item, Tensor)):
            key = _key(tensor)
            if not any(key == _key(other) for other in inputs) or func._schema.is_mutable:
                self._depths[key] = max(depth, self._depths.get(key, 0))
                self._storages.append(tensor.untyped_storage())
        self.depth = max(self.depth, depth)
        return result


def _key(tensor: Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def sequential_operations(registry: Registry, node: Node, size: Size) -> int:
    """Count the tensor operations of a pass that cannot run at the same time: the longest chain of dependent ones."""
    stack = stack_of(registry, node, size)
    chain = _Depth()
    with torch.no_grad(), chain:
        forward(stack, torch.empty(1, size.length, size.width, device="meta"))
    return chain.depth


def sequential_growth(registry: Registry, node: Node, size: Size) -> float | None:
    """Return the exponent of the sequential operations in n; 1 at once if each token adds one."""
    counts: list[int] = []
    for length in LENGTHS:
        counts.append(sequential_operations(registry, node, size._replace(length=length)))
        if len(counts) == 2 and counts[1] - counts[0] >= LENGTHS[1] - LENGTHS[0]:
            return 1.0
    return growth(counts)


# -- path length -----------------------------------------------------------------------------------------------------


def dependencies(registry: Registry, node: Node, size: Size) -> Tensor:
    """Return which inputs have a gradient from each output of one layer, (T, T) bool, at initial weights."""
    stack = with_weights(stack_of(registry, node, size), registry).double()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, size.length, size.width, generator=generator, dtype=torch.float64)
    weights = torch.randn(size.width, generator=generator, dtype=torch.float64)
    rows: list[Tensor] = []
    for queries in torch.arange(size.length).split(QUERIES):
        leaf = x.expand(len(queries), -1, -1).clone().requires_grad_()
        y = forward(stack, leaf)
        (gradient,) = torch.autograd.grad((y[torch.arange(len(queries)), queries] @ weights).sum(), leaf)
        rows.append((gradient != 0).any(-1))
    return torch.cat(rows)


class Path(NamedTuple):
    """Longest of the shortest paths between two tokens, in layers with residual streams."""

    layers: int
    is_connected: bool  # each token is reached by all tokens that it may see


def path_length(layers: Iterable[Tensor], *, causal: bool) -> Path:
    """Return the number of layers after which no further token is reached, from the dependencies of each layer.

    The layers have no end. The search stops when each token is reached by all that it may see, or after as many layers
    without a further token as there were before, and at least `PATIENCE`.
    """
    reached, needed, is_connected = torch.empty(0), 1, False
    for count, depends in enumerate(layers, start=1):
        length = depends.shape[0]
        step = (depends | torch.eye(length, dtype=torch.bool)).float()
        further = step if count == 1 else (step @ reached > 0).float()
        if count > 1 and not torch.equal(further, reached):
            needed = count
        reached = further
        expected = torch.ones(length, length).tril() if causal else torch.ones(length, length)
        is_connected = bool((reached >= expected).all())
        if is_connected or count - needed >= max(needed, PATIENCE):
            break
    return Path(needed, is_connected)


def growth(counts: Sequence[int], ratio: int = 2) -> float | None:
    """Return the exponent of counts: 0 for a constant, 0.5 for a logarithm, None if it is unclear.

    Each length is `ratio` times the one before, by default twice.

    Differences are compared, since a constant part would hide the growth of the rest. A single step, where a kernel
    starts to work in blocks, is no growth.
    """
    steps = [after - before for before, after in itertools.pairwise(counts)]
    if 0 in steps[-2:]:
        return 0.0
    rises = [math.log(after / before, ratio) for before, after in itertools.pairwise(steps) if before > 0 and after > 0]
    if not rises or max(rises) - min(rises) > 1:
        return None
    exponent = sum(rises) / len(rises)
    return LOGARITHM if exponent < 0.25 else float(max(1, round(exponent)))

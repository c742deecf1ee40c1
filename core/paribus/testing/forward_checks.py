"""Checks of the forward and backward pass: chunked decoding, kernels, gradients and operation counts."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from paribus.kernels import KERNELS
from paribus.parts.attend import Attend
from paribus.parts.batch import Stream
from paribus.parts.shape import Load
from paribus.parts.stack import Layer
from paribus.testing.host_models import Case, HostModel
from paribus.testing.results import DOES_NOT_APPLY, HOLDS, Verdict
from paribus.testing.small_model import TOLERANCE, SmallModel, max_difference, noise, tokens
from paribus.testing.token_checks import pad_tokens


def flop_counter() -> FlopCounterMode:
    """Return torch's FLOP counter, extended with Fourier transforms."""
    return FlopCounterMode(display=False, custom_mapping=dict.fromkeys(_TRANSFORMS, _fft_flops))


_TRANSFORMS = (torch.ops.aten._fft_c2c, torch.ops.aten._fft_r2c, torch.ops.aten._fft_c2r)


def _fft_flops(shape: Any, dims: list[int], *_: Any, out_shape: Any = None, **__: Any) -> int:
    """FLOPs of Fourier transforms: 5 N log2 N for a transform of N numbers, as FFTW counts them."""
    size: int = math.prod(shape[dim] for dim in dims)
    transforms: int = math.prod(shape) // size
    return round(transforms * 5 * size * math.log2(size))


CHUNKS: Final = ((1, 1), (2, 1), (1, 2), (5, 1, 1, 5))
LONG_LENGTH: Final = 112  # long enough for kernels that split a sequence into blocks
SHORT_LENGTH: Final = 12
_SUBLAYERS: Final = {"attention": ("attention", "cross"), "feedforward": ("feedforward",)}


def decoding(case: Case, cell: HostModel) -> Verdict:
    """Decoding in chunks of any size gives the output of one pass."""
    model = case.small_model(cell)
    if not model.body.causal or not case.all_attentions_declare(cell, "decodes"):
        return DOES_NOT_APPLY
    for chunks in CHUNKS:
        token_ids = tokens(2, sum(chunks))
        difference = max_difference(
            model.decode_chunks(token_ids, chunks), model.hidden(token_ids, source=tokens(2, 6, "source"))
        )
        if difference > TOLERANCE:
            return f"{sum(chunks)} tokens decoded in chunks of {', '.join(map(str, chunks))} differ by {difference:.2g}"
    return HOLDS


def kernels(case: Case, cell: HostModel) -> Verdict:
    """Every kernel gives the output and the gradients of the reference kernel."""
    *faster, readable = KERNELS
    reference: SmallModel | None = None
    stack = case.small_model(cell).stack()
    for kernel in faster:
        kernel_pair = (kernel, readable)
        length = next(
            (
                row_count
                for row_count in (SHORT_LENGTH, LONG_LENGTH)
                if kernel.name in stack.kernels(rows=row_count, among=kernel_pair)
            ),
            None,
        )
        if length is None:
            continue
        model = SmallModel(cell.spec, case.registry, kernels=kernel_pair)
        reference = reference or SmallModel(cell.spec, case.registry, kernels=(readable,))
        for label, stream in _streams(case, cell, model, length):
            difference = max(map(max_difference, _with_gradients(model, stream), _with_gradients(reference, stream)))
            if difference > TOLERANCE:
                return (
                    f"on {length} tokens{label} the kernel `{kernel.name}` differs by {difference:.2g} "
                    f"from `{readable.name}`"
                )
    return DOES_NOT_APPLY if reference is None else HOLDS


def _streams(case: Case, cell: HostModel, model: SmallModel, length: int) -> list[tuple[str, Stream]]:
    token_ids = model.tokens(2, length)
    if model.has_fixed_length or not case.all_attentions_declare(cell, "documents"):
        return [("", Stream(token_ids))]
    return [("", Stream(token_ids)), (" with padding", pad_tokens(tokens(2, length - 3), "right", 0)[0])]


def _with_gradients(model: SmallModel, stream: Stream) -> list[Tensor]:
    with torch.enable_grad():
        hidden = model.hidden(stream)
        visible = slice(None) if stream.documents is None else slice(0, -3)  # outputs at padding are undefined
        loss = (hidden[:, visible] * noise("loss", *hidden.shape)[:, visible]).sum()
        grads = torch.autograd.grad(loss, list(model.stack().parameters()), allow_unused=True)
    return [hidden[:, visible], *(grad.reshape(1, -1) for grad in grads if grad is not None)]


def embedding_length(case: Case, cell: HostModel) -> Verdict:
    """An embedding returns one vector per token, or the sequence length of the model for an image."""
    model = case.small_model(cell)
    expected_length = model.stack().shape.length if model.has_fixed_length else SHORT_LENGTH
    shape = model.hidden(model.tokens(2, SHORT_LENGTH)).shape[:2]
    return (
        HOLDS
        if shape == (2, expected_length)
        else f"2 examples are {tuple(shape)} rows, and are to be {(2, expected_length)}"
    )


def gradients(case: Case, cell: HostModel) -> Verdict:
    """Every parameter has a gradient: one without stops multi-device training and never learns."""
    return gradient_fault(case.small_model(cell), SHORT_LENGTH)


def gradient_fault(model: SmallModel, length: int) -> str:
    """Return a message about the first parameter without a usable gradient."""
    with torch.enable_grad():
        scores = model.scores(model.hidden(model.full_stream(model.tokens(2, length))))
        loss = (scores * noise("loss", *scores.shape)).sum()
        for path in model.auxiliary_stacks():
            hidden = model.topology.run({path: Stream(model.tokens(2, length))}, path).hidden
            loss = loss + (hidden * noise(path, *hidden.shape)).sum()
        named = dict(model.topology.named_parameters())
        grads = torch.autograd.grad(loss, [*named.values()], allow_unused=True)
    for path, grad in zip(named, grads, strict=True):
        if grad is None and _is_unused_query_norm(model, path):
            continue
        if grad is None:
            return f"no gradient reaches `{path}`: it is never used"
        if not torch.isfinite(grad).all():
            return f"the gradient of `{path}` is not finite"
        # A bias of the keys has a gradient of 0, because softmax is invariant to it.
        if not grad.any() and model.parameter_info[path].role != "bias" and not _has_gradient_on_noise(model, path):
            return f"the gradient of `{path}` is 0 everywhere, so it would never learn"
    return HOLDS


def _is_unused_query_norm(model: SmallModel, path: str) -> bool:
    """Return True for the query norm of a cross-attention that declares `content_based: False`."""
    place, _, inside = path.partition(".placement.norms.cross.")
    if not inside:
        return False
    layer = model.topology.get_submodule(place)
    assert isinstance(layer, Layer)
    return layer.cross is not None and not layer.cross.traits.get("content_based", True)


def _has_gradient_on_noise(model: SmallModel, path: str) -> bool:
    """Return True if a feed-forward parameter has a gradient on random inputs."""
    layer = path.partition(".feedforward.")[0]
    layer_module = model.topology.get_submodule(layer) if layer != path else None
    if not isinstance(layer_module, Layer) or layer_module.feedforward is None:
        return False
    x = noise("rows", 8, LONG_LENGTH, model.stack(layer.partition(".")[0]).shape.width)
    with torch.enable_grad():
        y, _ = layer_module.feedforward(x)
        (grad,) = torch.autograd.grad((y * noise("loss", *y.shape)).sum(), [model.topology.get_parameter(path)])
    return bool(grad.any())


def cost(case: Case, cell: HostModel) -> Verdict:
    """The declared operations equal those that torch counts, except where a window lets a kernel skip some.

    An attention is counted on the meta device, where torch counts every kernel. A feed-forward is counted on real
    inputs, because its operations may depend on them.
    """
    model = (
        case.small_model(cell)
        if case.entry.slot == "feedforward"
        else SmallModel(cell.spec, case.registry, initialized=False)
    )
    sublayers = _SUBLAYERS[case.entry.slot]
    for stack_part in model.topology.parts:
        counted = _count_flops(model, stack_part.path)
        length = model.stack(stack_part.path).shape.length if model.has_fixed_length else SHORT_LENGTH
        load = Load(length, length, memory=length if stack_part.cross else 0)
        for name in sublayers:
            fault = (
                HOLDS
                if name == "cross" and not stack_part.cross
                else _cost_fault(model, stack_part.path, name, load, counted)
            )
            if fault:
                return fault
    return HOLDS


def _cost_fault(model: SmallModel, path: str, name: str, load: Load, counted: dict[str, int]) -> str:
    for index, layer in enumerate(model.stack(path).layers):
        assert isinstance(layer, Layer)
        component: Any = getattr(layer, name)
        declared, counted_flops = component.cost(load).flops, counted.get(f"Stack.layers.{index}.{name}", 0)
        if _windowed(component):
            if declared > counted_flops:
                return (
                    f"a window declares {declared:,} operations for {load.queries} tokens, of {counted_flops:,} in all"
                )
        elif declared != counted_flops:
            return f"it declares {declared:,} operations for {load.queries} rows, but torch counts {counted_flops:,}"
    return HOLDS


def _windowed(component: nn.Module) -> bool:
    sights = (module.visibility for module in component.modules() if isinstance(module, Attend))
    return any(sight.window is not None or sight.blocks is not None for sight in sights)


def _count_flops(model: SmallModel, path: str) -> dict[str, int]:
    """Count the operations of one pass through one stack, by module."""
    token_ids = model.tokens(1, SHORT_LENGTH).to(next(model.topology.parameters()).device)
    memory = model.memory(token_ids) if path == "body" else None
    with flop_counter() as counter:
        model.topology.run({path: Stream(token_ids)}, path, memory=memory)
    return {module: sum(counts.values()) for module, counts in counter.get_flop_counts().items()}


def state_size(case: Case, cell: HostModel) -> Verdict:
    """The declared size of the decoding state is its actual size."""
    model = case.small_model(cell)
    if not model.body.causal or not case.all_attentions_declare(cell, "decodes"):
        return DOES_NOT_APPLY
    layer = model.stack().layers[0]
    assert isinstance(layer, Layer)
    example = noise("like", 1)
    for length in (1, SHORT_LENGTH):
        stored = sum(value.numel() for value in layer.attention.start(1, length, example).values())
        declared = layer.attention.cost(Load(1, length)).state
        if stored != declared:
            return f"it declares {declared:,} elements of state for {length} tokens, but stores {stored:,}"
    return HOLDS

"""Torch's counter of operations, and what it leaves out.

One model, computed in several ways: in chunks, on each kernel, backwards, and counted.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from paribus.kernels import KERNELS
from paribus.parts.attend import Attend
from paribus.parts.batch import Stream
from paribus.parts.layer import Layer
from paribus.slots.component import Load
from paribus.testing.host_models import Case, Cell
from paribus.testing.results import DOES_NOT_APPLY, HOLDS, Verdict
from paribus.testing.small_model import TOLERANCE, Specimen, differ, noise, tokens
from paribus.testing.token_checks import padded


def counting() -> FlopCounterMode:
    """Torch's own counter, which knows of products and convolutions, and of Fourier transforms besides."""
    return FlopCounterMode(display=False, custom_mapping=dict.fromkeys(_TRANSFORMS, _transformed))


_TRANSFORMS = (torch.ops.aten._fft_c2c, torch.ops.aten._fft_r2c, torch.ops.aten._fft_c2r)


def _transformed(shape: Any, dims: list[int], *_: Any, out_shape: Any = None, **__: Any) -> int:
    """5 N log2 N for each transform of N numbers, by the convention of those who measure them (FFTW)."""
    size: int = math.prod(shape[dim] for dim in dims)
    transforms: int = math.prod(shape) // size
    return round(transforms * 5 * size * math.log2(size))


CHUNKS: Final = ((1, 1), (2, 1), (1, 2), (5, 1, 1, 5))
ROWS: Final = 112  # enough for a kernel that cuts rows into blocks
FEW: Final = 12
_SUBLAYERS: Final = {"attention": ("attention", "cross"), "feedforward": ("feedforward",)}


def decoding(case: Case, cell: Cell) -> Verdict:
    """Rows decoded in chunks of any size are what one pass gives."""
    made = case.specimen(cell)
    if not made.body.causal or not case.all_have(cell, "decodes"):
        return DOES_NOT_APPLY
    for chunks in CHUNKS:
        rows = tokens(2, sum(chunks))
        by = differ(made.decoded(rows, chunks), made.hidden(rows, source=tokens(2, 6, "source")))
        if by > TOLERANCE:
            return f"{sum(chunks)} rows decoded in chunks of {', '.join(map(str, chunks))} differ by {by:.2g}"
    return HOLDS


def kernels(case: Case, cell: Cell) -> Verdict:
    """Every kernel that serves it gives what the readable one does, and so do its gradients."""
    *faster, readable = KERNELS
    reference: Specimen | None = None
    stack = case.specimen(cell).stack()
    for kernel in faster:
        both = (kernel, readable)
        length = next((rows for rows in (FEW, ROWS) if kernel.name in stack.kernels(rows=rows, among=both)), None)
        if length is None:
            continue
        made = Specimen(cell.spec, case.registry, kernels=both)
        reference = reference or Specimen(cell.spec, case.registry, kernels=(readable,))
        for said, stream in _streams(case, cell, made, length):
            by = max(map(differ, _with_gradients(made, stream), _with_gradients(reference, stream)))
            if by > TOLERANCE:
                return f"on {length} rows{said} the kernel `{kernel.name}` differs by {by:.2g} from `{readable.name}`"
    return DOES_NOT_APPLY if reference is None else HOLDS


def _streams(case: Case, cell: Cell, made: Specimen, length: int) -> list[tuple[str, Stream]]:
    rows = made.tokens(2, length)
    if made.whole or not case.all_have(cell, "documents"):
        return [("", Stream(rows))]
    return [("", Stream(rows)), (" with padding", padded(tokens(2, length - 3), "right", 0)[0])]


def _with_gradients(made: Specimen, stream: Stream) -> list[Tensor]:
    with torch.enable_grad():
        hidden = made.hidden(stream)
        seen = slice(None) if stream.documents is None else slice(0, -3)  # what padding comes to is nobody's business
        loss = (hidden[:, seen] * noise("loss", *hidden.shape)[:, seen]).sum()
        grads = torch.autograd.grad(loss, list(made.stack().parameters()), allow_unused=True)
    return [hidden[:, seen], *(grad.reshape(1, -1) for grad in grads if grad is not None)]


def rows(case: Case, cell: Cell) -> Verdict:
    """An embedding makes a row of each token, or of an image as many as the model has."""
    made = case.specimen(cell)
    wanted = made.stack().shape.length if made.whole else FEW
    found = made.hidden(made.tokens(2, FEW)).shape[:2]
    return HOLDS if found == (2, wanted) else f"2 examples are {tuple(found)} rows, and are to be {(2, wanted)}"


def gradients(case: Case, cell: Cell) -> Verdict:
    """Every parameter has a gradient: one without would stop training on several devices, and would never learn."""
    return unlearnt(case.specimen(cell), FEW)


def unlearnt(made: Specimen, length: int) -> str:
    """Which parameter has no gradient, or none that is of any use."""
    with torch.enable_grad():
        scores = made.scores(made.hidden(made.asking(made.tokens(2, length))))
        loss = (scores * noise("loss", *scores.shape)).sum()
        for path in made.beside():
            rows = made.topology.run({path: Stream(made.tokens(2, length))}, path).hidden
            loss = loss + (rows * noise(path, *rows.shape)).sum()
        named = dict(made.topology.named_parameters())
        grads = torch.autograd.grad(loss, [*named.values()], allow_unused=True)
    for path, grad in zip(named, grads, strict=True):
        if grad is None and _unasked(made, path):
            continue
        if grad is None:
            return f"no gradient reaches `{path}`: it is never used"
        if not torch.isfinite(grad).all():
            return f"the gradient of `{path}` is not finite"
        # That of keys' biases has none: softmax takes no notice.
        if not grad.any() and made.about[path].role != "bias" and not _fed_otherwise(made, path):
            return f"the gradient of `{path}` is 0 everywhere, so it would never learn"
    return HOLDS


def _unasked(made: Specimen, path: str) -> bool:
    """Whether it norms the rows that ask a memory, where the attention to it declares that they ask nothing."""
    place, _, inside = path.partition(".placement.norms.cross.")
    if not inside:
        return False
    layer = made.topology.get_submodule(place)
    assert isinstance(layer, Layer)
    return layer.cross is not None and not layer.cross.traits.get("content_based", True)


def _fed_otherwise(made: Specimen, path: str) -> bool:
    """Whether a feed-forward's parameter has a gradient on rows of every direction: an expert of many may see few."""
    layer = path.partition(".feedforward.")[0]
    found = made.topology.get_submodule(layer) if layer != path else None
    if not isinstance(found, Layer) or found.feedforward is None:
        return False
    x = noise("rows", 8, ROWS, made.stack(layer.partition(".")[0]).shape.width)
    with torch.enable_grad():
        y, _ = found.feedforward(x)
        (grad,) = torch.autograd.grad((y * noise("loss", *y.shape)).sum(), [made.topology.get_parameter(path)])
    return bool(grad.any())


def cost(case: Case, cell: Cell) -> Verdict:
    """The operations that it declares are those that torch counts, where no window lets a kernel leave some out.

    An attention is counted without storage, where torch counts every kernel; a feed-forward on rows that there are, as
    what it does may depend on them.
    """
    made = case.specimen(cell) if case.entry.slot == "feedforward" else Specimen(cell.spec, case.registry, real=False)
    sublayers = _SUBLAYERS[case.entry.slot]
    for part in made.topology.parts:
        counted = _counted(made, part.path)
        few = made.stack(part.path).shape.length if made.whole else FEW
        load = Load(few, few, memory=few if part.cross else 0)
        for name in sublayers:
            wrong = HOLDS if name == "cross" and not part.cross else _priced(made, part.path, name, load, counted)
            if wrong:
                return wrong
    return HOLDS


def _priced(made: Specimen, path: str, name: str, load: Load, counted: dict[str, int]) -> str:
    for place, layer in enumerate(made.stack(path).layers):
        assert isinstance(layer, Layer)
        component: Any = getattr(layer, name)
        declared, found = component.cost(load).flops, counted.get(f"Stack.layers.{place}.{name}", 0)
        if _windowed(component):
            if declared > found:
                return (
                    f"with a window, it declares {declared:,} operations for {load.queries} rows, of {found:,} in all"
                )
        elif declared != found:
            return f"it declares {declared:,} operations for {load.queries} rows, but torch counts {found:,}"
    return HOLDS


def _windowed(component: nn.Module) -> bool:
    sights = (module.visibility for module in component.modules() if isinstance(module, Attend))
    return any(sight.window is not None or sight.blocks is not None for sight in sights)


def _counted(made: Specimen, path: str) -> dict[str, int]:
    """Operations by module, of one pass through one stack."""
    rows = made.tokens(1, FEW).to(next(made.topology.parameters()).device)
    memory = made.memory(rows) if path == "body" else None
    with counting() as counter:
        made.topology.run({path: Stream(rows)}, path, memory=memory)
    return {module: sum(counts.values()) for module, counts in counter.get_flop_counts().items()}


def remembering(case: Case, cell: Cell) -> Verdict:
    """The state that it declares is the state that it keeps."""
    made = case.specimen(cell)
    if not made.body.causal or not case.all_have(cell, "decodes"):
        return DOES_NOT_APPLY
    layer = made.stack().layers[0]
    assert isinstance(layer, Layer)
    like = noise("like", 1)
    for length in (1, FEW):
        kept = sum(value.numel() for value in layer.attention.start(1, length, like).values())
        declared = layer.attention.cost(Load(1, length)).state
        if kept != declared:
            return f"it declares {declared:,} elements of state for {length} rows, but keeps {kept:,}"
    return HOLDS

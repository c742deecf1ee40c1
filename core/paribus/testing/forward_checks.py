"""Checks of forward and backward passes: decoding, kernels, gradients, captured attention weights."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from paribus.kernels import KERNELS
from paribus.parts.attend import Attend
from paribus.parts.batch import PADDING, Stream
from paribus.parts.context import AttentionSublayer
from paribus.parts.shape import Load
from paribus.parts.stack import Layer
from paribus.slots.attention import Attention
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.small_model import TOLERANCE, SmallModel, fed_apart, max_difference, noise, tokens
from paribus.testing.token_checks import packed_stream, pad_tokens, weights_may_vanish

CHUNKS: Final = ((1, 1), (2, 1), (1, 2), (5, 1, 1, 5))
# Chunks that end in padding, start with padding, or start a document; one is long, with consecutive positions. The last
# document is in three chunks, so its later ones read what a state has kept of it and of documents before it.
PACKED_CHUNKS: Final = (3, 2, 1, 5, 16, 3, 2)
PACKED_DOCUMENTS: Final = (
    (0, 0, PADDING, PADDING, 0, 0, 0, 1, 1, 1, PADDING, *[2] * 21),
    (PADDING, PADDING, 0, 0, 0, PADDING, 0, 1, 1, 2, 2, *[3] * 19, PADDING, 3),
)
LONG_LENGTH: Final = 112  # long enough for kernels that split a sequence into blocks
SHORT_LENGTH: Final = 12


def decoding(case: Case, host: HostModel) -> Verdict:
    """Decoding with a cache, in chunks of any size, gives the output of one pass."""
    model = case.small_model(host)
    if not model.body.causal or not case.all_attentions_declare(host, "decodes"):
        return DOES_NOT_APPLY
    for chunks in CHUNKS:
        token_ids = tokens(2, sum(chunks))
        difference = max_difference(
            model.decode_chunks(token_ids, chunks), model.hidden(token_ids, source=tokens(2, 6, "source"))
        )
        if difference > TOLERANCE:
            return (
                f"{sum(chunks)} tokens decoded in chunks of {', '.join(map(str, chunks))} differ by {difference:.2g} "
                "from "
                "one pass. Usual cause: the cache lacks tokens, or positions start at 0 in each chunk"
            )
    return _packed_decoding_fault(model) if case.all_attentions_declare(host, "documents") else HOLDS


def _packed_decoding_fault(model: SmallModel) -> str:
    """Return a message if chunks with padding and several documents do not give the output of one pass."""
    stream = packed_stream(tokens(2, sum(PACKED_CHUNKS)), PACKED_DOCUMENTS)
    expected, output = model.hidden(stream), model.decode_chunks(stream, PACKED_CHUNKS)
    is_content = torch.tensor(PACKED_DOCUMENTS) != PADDING
    difference = max_difference(output[is_content], expected[is_content])
    if difference > TOLERANCE:
        return (
            f"packed documents with padding, decoded in chunks of {', '.join(map(str, PACKED_CHUNKS))}, differ by "
            f"{difference:.2g} from one pass. Usual cause: padding or another document enters the decoding state"
        )
    return HOLDS


def kernels(case: Case, host: HostModel) -> Verdict:
    """Every kernel gives the output and the gradients of the reference kernel."""
    *faster, reference_kernel = KERNELS
    reference: SmallModel | None = None
    stack = case.small_model(host).stack()
    for kernel in faster:
        kernel_pair = (kernel, reference_kernel)
        length = next(
            (
                token_count
                for token_count in (SHORT_LENGTH, LONG_LENGTH)
                if kernel.name in stack.kernels(queries=token_count, among=kernel_pair)
            ),
            None,
        )
        if length is None:
            continue
        model = SmallModel(host.spec, case.registry, kernels=kernel_pair)
        reference = reference or SmallModel(host.spec, case.registry, kernels=(reference_kernel,))
        for label, stream in _streams(case, host, model, length):
            difference = max(map(max_difference, _with_gradients(model, stream), _with_gradients(reference, stream)))
            if difference > TOLERANCE:
                return (
                    f"for {length} tokens{label}, the output or a gradient of the kernel `{kernel.name}` differs by "
                    f"{difference:.2g} "
                    f"from the reference kernel `{reference_kernel.name}`"
                )
    return DOES_NOT_APPLY if reference is None else HOLDS


def _streams(case: Case, host: HostModel, model: SmallModel, length: int) -> list[tuple[str, Stream]]:
    token_ids = model.tokens(2, length)
    if model.has_fixed_length or not case.all_attentions_declare(host, "documents"):
        return [("", Stream(token_ids))]
    return [("", Stream(token_ids)), (" with padding", pad_tokens(tokens(2, length - 3), "right", 0)[0])]


def _with_gradients(model: SmallModel, stream: Stream) -> list[Tensor]:
    with torch.enable_grad():
        hidden = model.hidden(stream)
        visible = slice(None) if stream.documents is None else slice(0, -3)  # outputs at padding are undefined
        loss = (hidden[:, visible] * noise("loss", *hidden.shape)[:, visible]).sum()
        grads = torch.autograd.grad(loss, list(model.stack().parameters()), allow_unused=True)
    return [hidden[:, visible], *(grad.reshape(1, -1) for grad in grads if grad is not None)]


def embedding_length(case: Case, host: HostModel) -> Verdict:
    """An embedding returns one vector per token; for an image, as many as the sequence length of the model."""
    model = case.small_model(host)
    expected_length = model.stack().shape.length if model.has_fixed_length else SHORT_LENGTH
    shape = model.hidden(model.tokens(2, SHORT_LENGTH)).shape[:2]
    expected = (2, expected_length)
    return HOLDS if shape == expected else f"(batch, sequence length) is {tuple(shape)}; expected {expected}"


def gradients(case: Case, host: HostModel) -> Verdict:
    """Every parameter has a finite gradient that is not 0; without one, it is not trained and DDP fails."""
    return gradient_fault(case.small_model(host), SHORT_LENGTH)


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
        if grad is None and _is_for_unused_queries(model, path):
            continue
        if grad is None:
            return f"no gradient reaches `{path}`. Usual cause: the forward pass does not use it"
        if not torch.isfinite(grad).all():
            return f"the gradient of `{path}` is not finite. Usual cause: a root or a division at 0"
        # A bias of the keys has a gradient of 0, because softmax is invariant to it.
        if grad.any() or model.parameter_info[path].role == "bias" or _may_have_no_gradient(model, path):
            continue
        if not _has_gradient_on_noise(model, path):
            return (
                f"the gradient of `{path}` is 0 everywhere, so it is not trained. Usual cause: a factor that is always "
                "0"
            )
    return HOLDS


def _may_have_no_gradient(model: SmallModel, path: str) -> bool:
    """Return True for what another component leaves without an effect: a bias of the position that takes all scores
    below 0, where weights of attention are 0, and a choice among outputs that an attention without keys leaves equal.
    """
    if "position" in path.split("."):
        return weights_may_vanish(model)
    layers = [layer for layer in model.layers() if ".placement." in path]
    return any(layer.attention.traits.get("reads_keys") == "none" for layer in layers)


def _is_for_unused_queries(model: SmallModel, path: str) -> bool:
    """Return True for what a placement does to the queries of a cross-attention with `content_based: False`."""
    layer_path, _, inside = path.partition(".placement.")
    if "cross" not in inside.split("."):
        return False
    layer = model.topology.get_submodule(layer_path)
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
        y, _ = fed_apart(layer_module.feedforward, x)
        (grad,) = torch.autograd.grad((y * noise("loss", *y.shape)).sum(), [model.topology.get_parameter(path)])
    return bool(grad.any())


def state_size(case: Case, host: HostModel) -> Verdict:
    """`cost` declares as many elements of decoding state per sequence as `start` allocates."""
    model = case.small_model(host)
    if not model.body.causal or not case.all_attentions_declare(host, "decodes"):
        return DOES_NOT_APPLY
    layer = model.stack().layers[0]
    assert isinstance(layer, Layer)
    example = noise("like", 1)
    for length in (1, SHORT_LENGTH):
        stored = sum(value.numel() for value in layer.attention.start(1, length, example).values())
        declared = layer.attention.cost(Load(1, length)).state
        if stored != declared:
            return (
                f"`cost` declares {declared:,} elements of state for {length} tokens, but `start` allocates {stored:,}"
            )
    return HOLDS


CAPTURE_LENGTHS: Final = (1, 3, 12)


def weights(case: Case, host: HostModel) -> Verdict:
    """Declared attention weights can be captured without changing the output, and are 0 at masked positions."""
    model = case.small_model(host)
    if model.has_fixed_length:
        return DOES_NOT_APPLY
    if not any(attention.traits.get("weights", False) for attention in _attentions(model)):
        return _undeclared_weights_fault(model) or DOES_NOT_APPLY
    for length in CAPTURE_LENGTHS:
        fault = weights_fault(model, tokens(2, length), tokens(2, 6, "source"))
        if fault:
            return fault
    return _padding_weights_fault(case, host, model)


def weights_fault(model: SmallModel, token_ids: Tensor, source: Tensor) -> str:
    """Return a message if the weights of a full pass do not match the declared traits."""
    if not any(attention.traits.get("weights", False) for attention in _attentions(model)):
        return HOLDS
    output = model.output(token_ids, source=source, capture=True)
    difference = max_difference(output.hidden, model.hidden(token_ids, source=source))
    if difference > TOLERANCE:
        return f"the output for {token_ids.shape[1]} tokens changes by {difference:.2g} when weights are captured"
    causal = model.body.causal and output.layout.order is None
    layers = _attention_layers(model)
    if len(output.captured) != len(layers):
        return f"{len(output.captured)} of {len(layers)} layers are captured. Usual cause: `capture` is not passed on"
    for index, (self_attention, cross) in enumerate(layers):
        captured = output.captured[index]
        for name, attention, keys in (("weights", self_attention, token_ids), ("cross", cross, source)):
            fault = _layer_weights_fault(name, attention, captured.get(name), keys, causal=causal and name == "weights")
            if fault:
                return f"layer {index}: {fault}"
    return HOLDS


def _layer_weights_fault(
    name: str, attention: AttentionSublayer | None, weights: Tensor | None, keys: Tensor, *, causal: bool
) -> str:
    declared = attention is not None and bool(attention.traits.get("weights", False))
    if (weights is not None) != declared:
        return f"its trait `weights` is {declared}, but {'no' if weights is None else 'a'} tensor `{name}` is captured"
    if attention is None or weights is None:
        return HOLDS
    if weights.ndim != 4 or weights.shape[0] != keys.shape[0] or weights.shape[-1] != keys.shape[1]:
        return (
            f"`{name}` has the shape {tuple(weights.shape)}; expected (B, H, T, S) for keys of shape "
            f"{tuple(keys.shape)}"
        )
    if causal and float(weights.triu(1).abs().max()) > TOLERANCE:
        return f"`{name}` has {float(weights.triu(1).abs().max()):.2g} at future tokens; expected 0"
    return _normalization_fault(name, attention, weights)


def _normalization_fault(name: str, attention: AttentionSublayer, weights: Tensor) -> str:
    """Return a message if weights declared as normalized do not sum to 1."""
    if not attention.traits.get("normalized", False):
        return HOLDS
    if float(weights.min()) < -TOLERANCE:
        return (
            f"`{name}` has a minimum of {float(weights.min()):.2g}; expected at least 0, as its trait `normalized` is "
            "True"
        )
    sums = weights.sum(-1)
    sinks = any(module.sinks is not None for module in attention.modules() if isinstance(module, Attend))
    off = (sums - 1).clamp_min(0) if sinks else (sums - 1).abs()
    if float(off.max()) > TOLERANCE:
        total = float(sums.flatten()[off.flatten().argmax()])
        return f"`{name}` of a query sum to {total:.6g}; expected 1, as its trait `normalized` is True"
    return HOLDS


def _padding_weights_fault(case: Case, host: HostModel, model: SmallModel) -> str:
    """Return a message if padding has a weight above 0."""
    if not case.all_attentions_declare(host, "documents"):
        return HOLDS
    for side in ("right", "left"):
        stream, span = pad_tokens(tokens(1, 4), side, 0)
        for index, captured in enumerate(model.output(stream, capture=True).captured):
            if "weights" in captured:
                is_padding = torch.ones(7, dtype=torch.bool)
                is_padding[span] = False
                maximum = float(captured["weights"][..., is_padding].abs().max())
                if maximum > TOLERANCE:
                    return f"layer {index}: padding on the {side} has the weight {maximum:.2g}; expected 0"
    return HOLDS


def _undeclared_weights_fault(model: SmallModel) -> str:
    """Return a message if capturing undeclared weights raises no error that names them."""
    try:
        model.output(Stream(tokens(1, 3)), capture=True)
    except ValueError as error:
        return HOLDS if "weights" in str(error) else f"expected an error that names `weights`, got: {error}"
    return "its trait `weights` is False, but capturing weights raises no error"


def _attentions(model: SmallModel) -> list[AttentionSublayer]:
    """Return the attentions of the body."""
    return [attention for layer in _attention_layers(model) for attention in layer if attention is not None]


def _attention_layers(model: SmallModel) -> list[tuple[AttentionSublayer | None, AttentionSublayer | None]]:
    """Return (self-attention, cross-attention) of each layer of the body."""
    if model.layers():
        return [(layer.attention, layer.cross) for layer in model.layers()]
    body = model.topology.get_submodule("body")
    layers = [module for module in body.modules() if isinstance(module, Layer)]  # of stacks within the body
    if layers:
        return [(layer.attention, layer.cross) for layer in layers]
    return [(None, module) for module in body.modules() if isinstance(module, Attention)]

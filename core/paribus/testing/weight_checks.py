"""Checks of captured attention weights against the declared traits."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from paribus.parts.attend import Attend
from paribus.parts.batch import Stream
from paribus.parts.context import AttentionSublayer
from paribus.slots.attention import Attention
from paribus.testing.host_models import Case, HostModel
from paribus.testing.results import DOES_NOT_APPLY, HOLDS, Verdict
from paribus.testing.small_model import TOLERANCE, SmallModel, max_difference, tokens
from paribus.testing.token_checks import pad_tokens

LENGTHS: Final = (1, 3, 12)


def weights(case: Case, cell: HostModel) -> Verdict:
    """Weights can be captured if declared, do not change the output, and are 0 at masked positions."""
    model = case.small_model(cell)
    if model.has_fixed_length:
        return DOES_NOT_APPLY
    if not any(attention.traits.get("weights", False) for attention in _attentions(model)):
        return _undeclared_weights_fault(model) or DOES_NOT_APPLY
    for length in LENGTHS:
        fault = weights_fault(model, tokens(2, length), tokens(2, 6, "source"))
        if fault:
            return fault
    return _padding_weights_fault(case, cell, model)


def weights_fault(model: SmallModel, token_ids: Tensor, source: Tensor) -> str:
    """Return a message if the weights of a full pass do not match the declared traits."""
    if not any(attention.traits.get("weights", False) for attention in _attentions(model)):
        return HOLDS
    output = model.output(token_ids, source=source, capture=True)
    difference = max_difference(output.hidden, model.hidden(token_ids, source=source))
    if difference > TOLERANCE:
        return f"{token_ids.shape[1]} tokens differ by {difference:.2g} when weights are captured"
    causal = model.body.causal and output.layout.order is None
    for index, (self_attention, cross) in enumerate(_attention_layers(model)):
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
        return f"its trait `weights` is {declared}, but there are {'no ' if weights is None else ''}`{name}`"
    if attention is None or weights is None:
        return HOLDS
    if weights.ndim != 4 or weights.shape[0] != keys.shape[0] or weights.shape[-1] != keys.shape[1]:
        return f"`{name}` are {tuple(weights.shape)}; expected: (B, H, T, S) of {tuple(keys.shape)} keys"
    if causal and float(weights.triu(1).abs().max()) > TOLERANCE:
        return f"`{name}` weigh rows that come later by {float(weights.triu(1).abs().max()):.2g}"
    return _normalization_fault(name, attention, weights)


def _normalization_fault(name: str, attention: AttentionSublayer, weights: Tensor) -> str:
    """Return a message if weights declared as normalized do not sum to 1."""
    if not attention.traits.get("normalized", False):
        return HOLDS
    if float(weights.min()) < -TOLERANCE:
        return (
            f"`{name}` have a minimum of {float(weights.min()):.2g}; expected: at least 0, as it declares `normalized`"
        )
    sums = weights.sum(-1)
    sinks = any(module.sinks is not None for module in attention.modules() if isinstance(module, Attend))
    off = (sums - 1).clamp_min(0) if sinks else (sums - 1).abs()
    if float(off.max()) > TOLERANCE:
        return f"`{name}` of a row sum to {float(sums.flatten()[off.flatten().argmax()]):.6g}; expected: 1"
    return HOLDS


def _padding_weights_fault(case: Case, cell: HostModel, model: SmallModel) -> str:
    """Return a message if padding has a weight above 0."""
    if not case.all_attentions_declare(cell, "documents"):
        return HOLDS
    for side in ("right", "left"):
        stream, span = pad_tokens(tokens(1, 4), side, 0)
        for index, captured in enumerate(model.output(stream, capture=True).captured):
            if "weights" in captured:
                is_padding = torch.ones(7, dtype=torch.bool)
                is_padding[span] = False
                maximum = float(captured["weights"][..., is_padding].abs().max())
                if maximum > TOLERANCE:
                    return f"layer {index}: padding on the {side} is weighed by {maximum:.2g}"
    return HOLDS


def _undeclared_weights_fault(model: SmallModel) -> str:
    """Return a message if capturing undeclared weights raises no error that names them."""
    try:
        model.output(Stream(tokens(1, 3)), capture=True)
    except ValueError as error:
        return HOLDS if "weights" in str(error) else f"expected an error about weights, got: {error}"
    return "its trait `weights` is False, but capturing them raises no error"


def _attentions(model: SmallModel) -> list[AttentionSublayer]:
    """Return the attentions of the body."""
    return [attention for layer in _attention_layers(model) for attention in layer if attention is not None]


def _attention_layers(model: SmallModel) -> list[tuple[AttentionSublayer | None, AttentionSublayer | None]]:
    """Return (self-attention, cross-attention) of each layer of the body."""
    if model.layers():
        return [(layer.attention, layer.cross) for layer in model.layers()]
    body = model.topology.get_submodule("body")
    return [(None, module) for module in body.modules() if isinstance(module, Attention)]

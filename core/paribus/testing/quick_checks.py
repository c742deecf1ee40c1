"""Invariants of one model in few passes, for matrices of thousands of models."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from paribus.parts.batch import PADDING, Stream
from paribus.slots.attention import Attention
from paribus.testing.forward_checks import gradient_fault
from paribus.testing.results import HOLDS
from paribus.testing.small_model import TOLERANCE, SmallModel, max_difference, relative_change, replace_tokens, tokens
from paribus.testing.token_checks import causality_fault, mixing_fault
from paribus.testing.weight_checks import weights_fault

ROWS: Final = 7
CHUNKS: Final = (5, 1, 1)
PADDING_LENGTH: Final = 3  # padding tokens


def quick_faults(model: SmallModel) -> list[str]:
    """Return faults in visibility, attention weights, decoding, padding and gradients; empty if there are none."""
    token_ids = tokens(1, ROWS)
    changed = torch.where(torch.eye(ROWS, dtype=torch.bool), replace_tokens(token_ids), token_ids)
    with torch.no_grad():
        hidden = _hidden(model, Stream(torch.cat([changed, token_ids])))
        if not torch.isfinite(hidden).all():
            return ["its rows are not finite"]
        whole = hidden[-1:]
        visibility_fault = _visibility_fault(model, relative_change(hidden[:-1], whole))
        faults = [
            visibility_fault,
            weights_fault(model, token_ids, tokens(1, 6, "source")),
            _decoding_fault(model, token_ids, whole),
            _padding_fault(model, token_ids, whole),
            gradient_fault(model, ROWS),
        ]
    return [fault for fault in faults if fault]


def _hidden(model: SmallModel, stream: Stream) -> Tensor:
    """(B, T) -> (B, T, D): hidden states; all examples share one source."""
    return model.hidden(stream, source=tokens(1, 6, "source").expand(stream.tokens.shape[0], -1))


def _visibility_fault(model: SmallModel, changed: Tensor) -> str:
    """Return a message if a position ignores its own token or reads one that it must not; input (token, position)."""
    independent = [token for token in range(ROWS) if float(changed[token, token]) <= TOLERANCE]
    if independent:
        return f"of {ROWS} rows, row {independent[0]} does not depend on its own token"
    return (causality_fault(changed) if model.body.causal else HOLDS) or mixing_fault(model, changed)


def _decoding_fault(model: SmallModel, token_ids: Tensor, whole: Tensor) -> str:
    if not model.body.causal or not _all_attentions_declare(model, "decodes"):
        return HOLDS
    difference = max_difference(model.decode_chunks(token_ids, CHUNKS), whole)
    return f"{ROWS} rows decoded in chunks of {CHUNKS} differ by {difference:.2g}" if difference > TOLERANCE else HOLDS


def _padding_fault(model: SmallModel, rows: Tensor, whole: Tensor) -> str:
    """Return a message if right or left padding changes the output, or padding alone is not finite."""
    if not _all_attentions_declare(model, "documents", "padding"):
        return HOLDS
    filled, length = torch.full((3, ROWS + PADDING_LENGTH), 20), ROWS + PADDING_LENGTH
    filled[0, :ROWS] = filled[1, PADDING_LENGTH:] = rows[0]
    ramp = torch.arange(length)
    hidden = torch.stack([ramp >= ROWS, ramp < PADDING_LENGTH, ramp >= 0])
    positions = torch.stack([ramp, ramp - PADDING_LENGTH, ramp])
    output = _hidden(model, Stream(filled, torch.zeros_like(filled).masked_fill(hidden, PADDING), positions))
    for side, unpadded in (("right", output[:1, :ROWS]), ("left", output[1:2, PADDING_LENGTH:])):
        difference = max_difference(unpadded, whole)
        if difference > TOLERANCE:
            return f"{ROWS} rows with {PADDING_LENGTH} of padding on the {side} differ by {difference:.2g} from without"
    return HOLDS if torch.isfinite(output).all() else "a sequence of nothing but padding is not finite"


def _all_attentions_declare(model: SmallModel, *traits: str) -> bool:
    """Return True if every attention of the model declares one of these traits."""
    attentions = [module for module in model.topology.modules() if isinstance(module, Attention)]
    return all(any(attention.traits.get(trait, False) for trait in traits) for attention in attentions)

"""How much a row weighs another, as a model shows it: what it declares of its weights is what they are."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from paribus.parts.attend import Attend
from paribus.parts.batch import Stream
from paribus.slots.attention import Attention
from paribus.testing.host_models import Case, Cell
from paribus.testing.results import DOES_NOT_APPLY, HOLDS, Verdict
from paribus.testing.small_model import TOLERANCE, Specimen, differ, tokens
from paribus.testing.token_checks import padded

LENGTHS: Final = (1, 3, 12)


def weights(case: Case, cell: Cell) -> Verdict:
    """Weights can be seen if it declares them, change nothing, and are 0 where a row may not look."""
    made = case.specimen(cell)
    if made.whole:
        return DOES_NOT_APPLY
    if not any(attention.traits.get("weights", False) for attention in _attentions(made)):
        return _shows(made) or DOES_NOT_APPLY
    for length in LENGTHS:
        wrong = unlike(made, tokens(2, length), tokens(2, 6, "source"))
        if wrong:
            return wrong
    return _padding(case, cell, made)


def unlike(made: Specimen, rows: Tensor, source: Tensor) -> str:
    """What weights of a whole pass are not as they are declared."""
    if not any(attention.traits.get("weights", False) for attention in _attentions(made)):
        return HOLDS
    output = made.output(rows, source=source, capture=True)
    by = differ(output.hidden, made.hidden(rows, source=source))
    if by > TOLERANCE:
        return f"{rows.shape[1]} rows differ by {by:.2g} when weights are asked for: they are those of another model"
    causal = made.body.causal and output.layout.order is None
    for place, (own, cross) in enumerate(_layers(made)):
        shown = output.captured[place]
        for name, attention, keys in (("weights", own, rows), ("cross", cross, source)):
            found = _wrong(name, attention, shown.get(name), keys, causal=causal and name == "weights")
            if found:
                return f"layer {place}: {found}"
    return HOLDS


def _wrong(name: str, attention: Attention | None, weights: Tensor | None, keys: Tensor, *, causal: bool) -> str:
    declared = attention is not None and bool(attention.traits.get("weights", False))
    if (weights is not None) != declared:
        return f"its trait `weights` is {declared}, but there are {'no ' if weights is None else ''}`{name}`"
    if attention is None or weights is None:
        return HOLDS
    if weights.ndim != 4 or weights.shape[0] != keys.shape[0] or weights.shape[-1] != keys.shape[1]:
        return f"`{name}` are {tuple(weights.shape)}; expected: (B, H, T, S) of {tuple(keys.shape)} keys"
    if causal and float(weights.triu(1).abs().max()) > TOLERANCE:
        return f"`{name}` weigh rows that come later by {float(weights.triu(1).abs().max()):.2g}"
    return _shared(name, attention, weights)


def _shared(name: str, attention: Attention, weights: Tensor) -> str:
    """Whether weights are shares, where they are declared to be."""
    if not attention.traits.get("normalized", False):
        return HOLDS
    if float(weights.min()) < -TOLERANCE:
        return f"`{name}` go down to {float(weights.min()):.2g}, though it declares that they are shares"
    sums = weights.sum(-1)
    sinks = any(module.sinks is not None for module in attention.modules() if isinstance(module, Attend))
    off = (sums - 1).clamp_min(0) if sinks else (sums - 1).abs()
    if float(off.max()) > TOLERANCE:
        return f"`{name}` of a row sum to {float(sums.flatten()[off.flatten().argmax()]):.6g}; expected: 1"
    return HOLDS


def _padding(case: Case, cell: Cell, made: Specimen) -> str:
    """Nobody weighs padding."""
    if not case.all_have(cell, "documents"):
        return HOLDS
    for side in ("right", "left"):
        stream, own = padded(tokens(1, 4), side, 0)
        for place, shown in enumerate(made.output(stream, capture=True).captured):
            if "weights" in shown:
                hidden = torch.ones(7, dtype=torch.bool)
                hidden[own] = False
                most = float(shown["weights"][..., hidden].abs().max())
                if most > TOLERANCE:
                    return f"layer {place}: padding on the {side} is weighed by {most:.2g}"
    return HOLDS


def _shows(made: Specimen) -> str:
    """Whether one that declares no weights gives some all the same, or nothing where an error would say so."""
    try:
        made.output(Stream(tokens(1, 3)), capture=True)
    except ValueError as error:
        return HOLDS if "weights" in str(error) else f"asked for weights, it says: {error}"
    return "its trait `weights` is False, but asking for them is no error"


def _attentions(made: Specimen) -> list[Attention]:
    """Those of the body."""
    return [each for layer in _layers(made) for each in layer if each is not None]


def _layers(made: Specimen) -> list[tuple[Attention | None, Attention | None]]:
    """The body's attentions, layer by layer: that of its own rows, and that to a memory; of no stack, the latter."""
    if made.layers():
        return [(layer.attention, layer.cross) for layer in made.layers()]
    body = made.topology.get_submodule("body")
    return [(None, module) for module in body.modules() if isinstance(module, Attention)]

"""One model, held against what must hold of any, in as few passes as will do: for matrices of thousands of models."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from paribus.parts.batch import PADDING, Stream
from paribus.slots.attention import Attention
from paribus.testing.forward_checks import unlearnt
from paribus.testing.results import HOLDS
from paribus.testing.small_model import TOLERANCE, Specimen, differ, moved, other, tokens
from paribus.testing.token_checks import leaking, reading
from paribus.testing.weight_checks import unlike

ROWS: Final = 7
CHUNKS: Final = (5, 1, 1)
LOST: Final = 3  # rows of padding


def briefly(made: Specimen) -> list[str]:
    """What does not hold of gradients, of who sees whom, of weights, decoding and padding: nothing, if all does."""
    rows = tokens(1, ROWS)
    changed = torch.where(torch.eye(ROWS, dtype=torch.bool), other(rows), rows)
    with torch.no_grad():
        given = _hidden(made, Stream(torch.cat([changed, rows])))
        if not torch.isfinite(given).all():
            return ["its rows are not finite"]
        whole = given[-1:]
        sight = _sight(made, moved(given[:-1], whole))
        found = [
            sight,
            unlike(made, rows, tokens(1, 6, "source")),
            _decoding(made, rows, whole),
            _padding(made, rows, whole),
            unlearnt(made, ROWS),
        ]
    return [wrong for wrong in found if wrong]


def _hidden(made: Specimen, stream: Stream) -> Tensor:
    """(B, T) -> (B, T, D), all of which read the same source, if they read one."""
    return made.hidden(stream, source=tokens(1, 6, "source").expand(stream.tokens.shape[0], -1))


def _sight(made: Specimen, changed: Tensor) -> str:
    """Rows read what they may, and themselves, and nothing else: of (token, row)."""
    blind = [token for token in range(ROWS) if float(changed[token, token]) <= TOLERANCE]
    if blind:
        return f"of {ROWS} rows, row {blind[0]} does not depend on its own token"
    return (leaking(changed) if made.body.causal else HOLDS) or reading(made, changed)


def _decoding(made: Specimen, rows: Tensor, whole: Tensor) -> str:
    if not made.body.causal or not _all(made, "decodes"):
        return HOLDS
    by = differ(made.decoded(rows, CHUNKS), whole)
    return f"{ROWS} rows decoded in chunks of {CHUNKS} differ by {by:.2g}" if by > TOLERANCE else HOLDS


def _padding(made: Specimen, rows: Tensor, whole: Tensor) -> str:
    """The rows with padding behind them, and before them; and a sequence of nothing else."""
    if not _all(made, "documents", "padding"):
        return HOLDS
    filled, length = torch.full((3, ROWS + LOST), 20), ROWS + LOST
    filled[0, :ROWS] = filled[1, LOST:] = rows[0]
    ramp = torch.arange(length)
    hidden = torch.stack([ramp >= ROWS, ramp < LOST, ramp >= 0])
    positions = torch.stack([ramp, ramp - LOST, ramp])
    found = _hidden(made, Stream(filled, torch.zeros_like(filled).masked_fill(hidden, PADDING), positions))
    for side, own in (("right", found[:1, :ROWS]), ("left", found[1:2, LOST:])):
        by = differ(own, whole)
        if by > TOLERANCE:
            return f"{ROWS} rows with {LOST} of padding on the {side} differ by {by:.2g} from without"
    return HOLDS if torch.isfinite(found).all() else "a sequence of nothing but padding is not finite"


def _all(made: Specimen, *traits: str) -> bool:
    """Whether every attention of the model declares one of these of itself."""
    attentions = [module for module in made.topology.modules() if isinstance(module, Attention)]
    return all(any(each.traits.get(trait, False) for trait in traits) for each in attentions)

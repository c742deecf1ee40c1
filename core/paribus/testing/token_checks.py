"""Which rows may depend on which: held by changing a token and looking at what else changes."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from paribus.parts.attend import Attend
from paribus.parts.batch import PADDING, Stream, TokenLayout
from paribus.parts.visibility import Visibility, visibility_mask, with_order
from paribus.testing.host_models import Case, Cell
from paribus.testing.results import DOES_NOT_APPLY, HOLDS, Verdict
from paribus.testing.small_model import TOLERANCE, Specimen, differ, moved, noise, other, tokens

LENGTHS: Final = (2, 3, 5, 12)  # the first that shows a mistake is the smallest


def causality(case: Case, cell: Cell) -> Verdict:
    """No row of a causal stack depends on a token behind it."""
    made = case.specimen(cell)
    if not made.body.causal:
        return DOES_NOT_APPLY
    return next((wrong for length in LENGTHS if (wrong := leaking(changes(made, length)))), HOLDS)


def leaking(changed: Tensor) -> str:
    """Which row moves with a token behind it, of (token, row)."""
    early = changed.tril(-1)
    if float(early.max()) <= TOLERANCE:
        return HOLDS
    token, row = _first(early)
    return f"of {len(early)} rows, changing token {token} moves row {row}, before it, by {early[token, row]:.2g}"


def prefix(case: Case, cell: Cell) -> Verdict:
    """What a causal stack gives for the first rows does not depend on how many follow."""
    made = case.specimen(cell)
    if not made.body.causal:
        return DOES_NOT_APPLY
    whole = made.hidden(tokens(1, LENGTHS[-1]))
    for length in range(1, LENGTHS[-1]):
        by = differ(made.hidden(tokens(1, length)), whole[:, :length])
        if by > TOLERANCE:
            return f"{length} rows alone are not the first {length} of {LENGTHS[-1]}: they differ by {by:.2g}"
    return HOLDS


def mixing(case: Case, cell: Cell) -> Verdict:
    """Rows read one another: each token reaches a row that may see it, or as few do as the attention declares."""
    made = case.specimen(cell)
    if made.whole:
        return DOES_NOT_APPLY
    return reading(made, changes(made, LENGTHS[1]))


def reading(made: Specimen, changed: Tensor) -> str:
    """Which token reaches no other row, or reaches one where it should not, of (token, row)."""
    length, others = len(changed), changed.clone().fill_diagonal_(0)
    reaching = [float(reached.max()) > TOLERANCE for reached in others]
    sees = {layer.attention.traits.get("reads_keys", "all") for layer in made.layers()} or {"all"}
    if sees == {"all"}:
        for token in sought(made, length):
            if not reaching[token]:
                return f"of {length} rows, changing token {token} moves no other row"
        return HOLDS
    if len(sees) == 1 and sum(reaching) != (expected := 1 if "one" in sees else 0):
        return f"of {length} rows, {sum(reaching)} move others when they change, but it declares {expected}"
    return HOLDS


def sought(made: Specimen, length: int) -> list[int]:
    """The tokens that another row may see, as far as the attentions declare it: with gaps, that is not all."""
    rows = with_order(TokenLayout(torch.arange(length).unsqueeze(0)))
    seen = torch.zeros(length, length, dtype=torch.bool)  # (row, token)
    mixes: list[set[Visibility]] = [
        {module.visibility for module in layer.attention.modules() if isinstance(module, Attend)}
        for layer in made.layers()
    ]
    for sights in mixes or [set()]:
        for sight in sights or {Visibility(made.body.causal)}:
            shown = visibility_mask(sight, rows, rows, window_by_index=True)
            seen |= torch.ones_like(seen) if shown is None else shown[0, 0]
    sought: list[int] = (seen & ~torch.eye(length, dtype=torch.bool)).any(0).nonzero().flatten().tolist()
    return sought


def batching(case: Case, cell: Cell) -> Verdict:
    """A sequence is what it is whatever else is in its batch."""
    made = case.specimen(cell)
    for length in LENGTHS:
        rows = made.tokens(3, length)
        source = tokens(3, 6, "source")
        together = made.hidden(rows, source=source)
        for row in range(3):
            by = differ(made.hidden(rows[row : row + 1], source=source[row : row + 1]), together[row : row + 1])
            if by > TOLERANCE:
                return f"sequence {row} of a batch of 3 with {length} rows differs by {by:.2g} from itself alone"
    return HOLDS


def determinism(case: Case, cell: Cell) -> Verdict:
    """Two passes of one model give the same bits, whatever the global generator's state."""
    made = case.specimen(cell)
    rows = made.tokens(2, LENGTHS[-1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = made.hidden(rows)
        torch.manual_seed(2)
        second = made.hidden(rows)
    if not torch.equal(first, second):
        return f"two passes over the same {LENGTHS[-1]} rows differ by {differ(first, second):.2g}, without dropout"
    return HOLDS


def padding(case: Case, cell: Cell) -> Verdict:
    """Padding, on either side and whatever its ids, changes nothing; rows of padding alone are finite."""
    made = case.specimen(cell)
    if made.whole or not case.all_have(cell, "documents", "padding"):
        return DOES_NOT_APPLY
    for length in LENGTHS[:3]:
        plain = tokens(1, length)
        wanted = made.hidden(plain)
        for side in ("right", "left"):
            for pad in (0, 20):
                stream, own = padded(plain, side, pad)
                by = differ(made.hidden(stream)[:, own], wanted)
                if by > TOLERANCE:
                    return f"{length} rows with 3 of padding (id {pad}) on the {side} differ by {by:.2g} from without"
        wrong = _source_padding(made, length)
        if wrong:
            return wrong
    return _nothing_but_padding(made)


def _source_padding(made: Specimen, length: int) -> str:
    if made.body.cross is None:
        return HOLDS
    body, source = tokens(1, length), tokens(1, 4, "source")
    wanted = made.hidden(body, source=source)
    for side in ("right", "left"):
        stream, _ = padded(source, side, 0)
        by = differ(made.hidden(body, source=stream), wanted)
        if by > TOLERANCE:
            return f"{length} rows differ by {by:.2g} when what they attend to has 3 rows of padding on the {side}"
    return HOLDS


def _nothing_but_padding(made: Specimen) -> str:
    rows = tokens(2, 4)
    documents = torch.tensor([[0] * 4, [PADDING] * 4])
    with torch.enable_grad():
        hidden = made.hidden(Stream(rows, documents=documents))
        grads = torch.autograd.grad(hidden.sin().sum(), list(made.topology.parameters()), allow_unused=True)
    if not torch.isfinite(hidden).all():
        return "a sequence of nothing but padding is not finite"
    if not all(torch.isfinite(grad).all() for grad in grads if grad is not None):
        return "a sequence of nothing but padding makes gradients that are not finite"
    return HOLDS


def documents(case: Case, cell: Cell) -> Verdict:
    """Documents that share a row of the batch are what they are alone."""
    made = case.specimen(cell)
    if made.whole or not case.all_have(cell, "documents"):
        return DOES_NOT_APPLY
    for first, second in ((1, 1), (2, 1), (3, 4)):
        rows = tokens(1, first + second)
        alone = torch.cat([made.hidden(rows[:, :first]), made.hidden(rows[:, first:])], dim=1)
        numbers = torch.tensor([[0] * first + [1] * second])
        positions = torch.tensor([[*range(first), *range(second)]])
        by = differ(made.hidden(Stream(rows, documents=numbers, positions=positions)), alone)
        if by > TOLERANCE:
            return f"documents of {first} and {second} rows, packed into one, differ by {by:.2g} from each alone"
    return HOLDS


def order(case: Case, cell: Cell) -> Verdict:
    """Rows that come in another order, and say so, are what they are in their own; none sees what its order hides."""
    made = case.specimen(cell)
    if made.whole or not case.all_have(cell, "order"):
        return DOES_NOT_APPLY
    for length in LENGTHS:
        rows = tokens(1, length)
        mixed = (torch.arange(length) * 5 + 1) % length if length % 5 else torch.arange(length).flip(0)
        stream = Stream(rows[:, mixed], positions=mixed.unsqueeze(0), order=mixed.unsqueeze(0))
        counted = Stream(rows, order=torch.arange(length).unsqueeze(0))
        own = made.hidden(rows if made.body.causal else counted)
        by = differ(made.hidden(stream), own[:, mixed])
        if by > TOLERANCE:
            return f"{length} rows in the order {mixed.tolist()} differ by {by:.2g} from the same in their own"
        changed = counted._replace(tokens=torch.cat([rows[:, :-1], other(rows[:, -1:])], dim=1))
        by = differ(made.hidden(changed)[:, :-1], own[:, :-1])
        if by > TOLERANCE:
            return f"of {length} rows in order, changing the last moves one before it by {by:.2g}"
    return HOLDS


def appended(case: Case, cell: Cell) -> Verdict:
    """Rows that are appended, and only ask, move no other; and one that stands where another does is what that is."""
    if not case.all_have(cell, "extra_queries"):
        return DOES_NOT_APPLY
    made = case.specimen(cell)
    stack = made.stack()
    memory = made.memory(tokens(2, 6, "source"))
    for length in LENGTHS:
        x = noise("rows", 2, length, stack.shape.width)
        rows = TokenLayout(torch.arange(length).unsqueeze(0))
        if made.body.causal:
            rows = with_order(rows)
        at = (torch.arange(3) * 5 + torch.arange(2).unsqueeze(1)) % length
        same = x.gather(1, at.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        plain = stack(x, rows, memory).hidden
        everything = torch.cat([x, same, noise("asking", *same.shape)], dim=1)
        both = stack(everything, rows.append_copies(at.repeat(1, 2)), memory, keys=rows).hidden
        by = differ(both[:, :length], plain)
        if by > TOLERANCE:
            return f"{length} rows differ by {by:.2g} with 6 behind them that only ask"
        by = differ(both[:, length : length + 3], plain.gather(1, at.unsqueeze(-1).expand_as(same)))
        if by > TOLERANCE:
            return f"rows behind {length} others, which are as these, differ from them by {by:.2g}"
    return HOLDS


def placing(case: Case, cell: Cell) -> Verdict:
    """A position that declares a moment tells rows apart by where they are, and one that declares none does not."""
    made = case.specimen(cell)
    if made.body.causal or made.body.cross is not None or made.whole or not cell.plain:
        return DOES_NOT_APPLY
    told = bool(case.entry.traits.get("hooks"))
    rows = tokens(1, 3)
    turned = torch.tensor([1, 2, 0])
    by = differ(made.hidden(rows[:, turned]), made.hidden(rows)[:, turned])
    if told and by <= TOLERANCE:
        return "3 rows in another order are the same rows in another order: it tells nothing of where they are"
    if not told and by > TOLERANCE:
        return f"it declares no moment, but 3 rows in another order differ by {by:.2g}"
    return HOLDS


def padded(rows: Tensor, side: str, pad: int) -> tuple[Stream, slice]:
    """(B, T) with 3 rows of padding, whose positions run on, and where the rows are in it."""
    batch, length = rows.shape
    filled = torch.full((batch, 3), pad)
    none, some = torch.full((batch, 3), PADDING), torch.zeros_like(rows)
    if side == "right":
        both, numbers, start = torch.cat([rows, filled], 1), torch.cat([some, none], 1), 0
    else:
        both, numbers, start = torch.cat([filled, rows], 1), torch.cat([none, some], 1), 3
    positions = torch.arange(-start, length + 3 - start).expand(batch, -1)
    return Stream(both, documents=numbers, positions=positions), slice(start, start + length)


def changes(made: Specimen, length: int) -> Tensor:
    """(token, row): by how much each row moves when each token is another."""
    rows = tokens(1, length)
    changed = torch.where(torch.eye(length, dtype=torch.bool), other(rows), rows)
    source = tokens(1, 6, "source")
    with torch.no_grad():
        return moved(made.hidden(changed, source=source.expand(length, -1)), made.hidden(rows, source=source))


def _first(changes: Tensor) -> tuple[int, int]:
    token, row = (~(changes <= TOLERANCE)).nonzero()[0].tolist()  # what is not a number is no smaller
    return token, row

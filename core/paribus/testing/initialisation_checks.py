"""What a model starts with: keyed by seed and path, so that a component moves no tensor but its own."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from paribus.testing.host_models import Case, Cell
from paribus.testing.results import DOES_NOT_APPLY, HOLDS, Verdict
from paribus.testing.small_model import Specimen

_STARTS_ALIKE: Final = frozenset({"bias", "gain"})  # at 0 and at 1, whatever the seed


def keyed(case: Case, cell: Cell) -> Verdict:
    """Built again, a model is bitwise the same, whatever the state of the global generator; another seed is another."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = Specimen(cell.spec, case.registry, shaken=False)
        torch.manual_seed(2)
        again = _tensors(Specimen(cell.spec, case.registry, shaken=False))
    for path, tensor in _tensors(first).items():
        if not torch.equal(tensor, again[path]):
            return f"`{path}` is drawn from the global generator: two models of one seed differ in it"
    apart = _tensors(Specimen({**cell.spec, "seed": cell.spec["seed"] + 1}, case.registry, shaken=False))
    same = [path for path, tensor in _drawn(first).items() if torch.equal(tensor, apart[path])]
    if same and len(same) == len(_drawn(first)):
        return f"`{same[0]}` and all others are the same for two seeds"
    return HOLDS


def untouched(case: Case, cell: Cell) -> Verdict:
    """Putting it in leaves every tensor bitwise as it was of which the same is known: path, role, shape, scale."""
    base = cell.said.partition(",")[0]
    before = Specimen(case.resolved(base, {}), case.registry, shaken=False)
    after = Specimen(cell.spec, case.registry, shaken=False)
    if case.entry.slot == "initialisation":
        return DOES_NOT_APPLY  # to change the tensors is what it is for
    held, now = _tensors(before), _tensors(after)
    for path, about in after.about.items():
        if path in now and before.about.get(path) == about and not torch.equal(held[path], now[path]):
            return f"`{path}` starts otherwise than without it, though it is in the same place, role and shape"
    return HOLDS


def _tensors(made: Specimen) -> dict[str, Tensor]:
    return {**dict(made.topology.named_parameters()), **dict(made.topology.named_buffers())}


def _drawn(made: Specimen) -> dict[str, Tensor]:
    tensors = dict(made.topology.named_parameters())
    return {path: tensor for path, tensor in tensors.items() if made.about[path].role not in _STARTS_ALIKE}

"""Every option that is accepted is honoured: another value makes another model, or makes it do something else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from paribus.errors import SpecError
from paribus.schema import Option
from paribus.testing.cells import Case, Cell, example, values
from paribus.testing.findings import DOES_NOT_APPLY, HOLDS, Verdict
from paribus.testing.specimen import Specimen, tokens

Trace = list[Tensor]
ROWS = 20
MOST = 3  # values of a number that are tried


def options(case: Case, cell: Cell) -> Verdict:
    """Each value of a choice, and another value of each number, changes something in some model."""
    if not case.entry.options:
        return DOES_NOT_APPLY
    plain = {each.said: _trace(Specimen(each.spec, case.registry, shaken=False)) for each in case.cells if each.plain}
    for path, option in flat(case.entry.options):
        wrong = _honoured(case, plain, path, option)
        if wrong:
            return wrong
    return HOLDS


def flat(options: Sequence[Option], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Option]]:
    """All options, those of groups one by one."""
    for option in options:
        if option.kind.name == "group":
            yield from flat(option.kind.options, (*path, option.name))
        else:
            yield (*path, option.name), option


def _honoured(case: Case, plain: Mapping[str, Trace], path: tuple[str, ...], option: Option) -> str:
    every = option.kind.name in ("choice", "bool")
    dead: list[Any] = []
    tried = 0
    for value in values(option, case.resolved(next(iter(plain)), {})):
        if tried == MOST and not every:
            break
        changed = [_changed(case, base, trace, path, value) for base, trace in plain.items()]
        if all(change is None for change in changed):
            continue  # no valid value here
        tried += 1
        if not any(changed):
            dead.append(value)
        elif not every:
            return HOLDS
    if dead:
        return f"the option `{'.'.join(path)}` is accepted and ignored: {dead[0]!r} gives what {option.sample!r} does"
    return HOLDS


def _changed(case: Case, base: str, plain: Trace, path: tuple[str, ...], value: Any) -> bool | None:
    """Whether the value changes anything in this model; None where it is not valid there."""
    node = example(case.entry)
    inner: dict[str, Any] = node
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = value
    try:
        spec = case.resolved(base, case.around(base, node))
        return not _same(_trace(Specimen(spec, case.registry, shaken=False)), plain)
    except SpecError:
        return None


def _trace(made: Specimen) -> Trace:
    """What a model has and does: its scores, its rows in training and what they add to the loss, its first values."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        rows = tokens(2, ROWS)
        torch.manual_seed(0)
        scores = made.topology.embedding.unembed(made.hidden(rows))
        made.topology.train()
        torch.manual_seed(0)
        training = made.output(rows)
        made.topology.eval()
    added = [] if training.auxiliary is None else [training.auxiliary]
    first = [parameter for child in made.children.values() for parameter in child.parameters()]
    return [scores, training.hidden, *added, *first]


def _same(one: Trace, two: Trace) -> bool:
    return len(one) == len(two) and all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, two, strict=True))

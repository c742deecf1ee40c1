"""Every option that is accepted is honoured: another value makes another model, or makes it do something else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paribus.errors import SpecError
from paribus.schema import Option
from paribus.testing.host_models import Case, Cell, example, values
from paribus.testing.results import DOES_NOT_APPLY, HOLDS, Verdict
from paribus.testing.small_model import Specimen, differ

ROWS = 20
ROUNDING = 1e-12  # two kernels differ by less, and an option that does something by more
MOST = 3  # values of a number that are tried


def options(case: Case, cell: Cell) -> Verdict:
    """Each value of a choice, and another value of each number, changes something in some model."""
    if not case.entry.options:
        return DOES_NOT_APPLY
    plain = [(each, _trace(each.spec, case)) for each in case.cells if each.plain]
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


def _honoured(case: Case, plain: Sequence[tuple[Cell, Trace]], path: tuple[str, ...], option: Option) -> str:
    every = option.kind.name in ("choice", "bool")
    dead: list[Any] = []
    tried = 0
    for value in values(option, plain[0][0].spec):
        if tried == MOST and not every:
            break
        changed = [_changed(case, cell, trace, path, value) for cell, trace in plain]
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


def _changed(case: Case, cell: Cell, plain: Trace, path: tuple[str, ...], value: Any) -> bool | None:
    """Whether the value changes anything in this model; None where it is not valid there, or no other."""
    node = example(case.entry)
    inner: dict[str, Any] = node
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
    inner[path[-1]] = value
    try:
        spec = case.resolved(cell.said, case.around(cell.said, node))
        return None if spec == cell.spec else not _same(_trace(spec, case), plain)
    except SpecError:
        return None


class Trace(NamedTuple):
    """What a model does: its scores, its rows in training and what they add to the loss; and what it starts with."""

    does: list[Tensor]
    has: dict[str, Tensor]


def _trace(spec: Mapping[str, Any], case: Case) -> Trace:
    """Of a model where it starts, and of one off there: a parameter that starts at 0 has its say in that one alone."""
    made = Specimen(spec, case.registry, shaken=False)
    has: dict[str, Tensor] = {
        f"{name}.{path}": parameter.detach().clone()
        for name, child in made.children.items()
        for path, parameter in child.named_parameters()
    }
    first = _done(made)
    made.shake()
    return Trace([*first, *_done(made)], has)


def _done(made: Specimen) -> list[Tensor]:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        rows = made.told(made.tokens(2, ROWS))
        torch.manual_seed(0)
        scores = made.scores(made.hidden(rows))
        made.topology.train()
        torch.manual_seed(0)
        training = made.output(rows)
        made.topology.eval()
    return [scores, training.hidden, *([] if training.auxiliary is None else [training.auxiliary.reshape(1)])]


def _same(one: Trace, two: Trace) -> bool:
    """Parameters that one of them alone has make no difference, if what it does is the same: they are never used."""
    both = one.has.keys() & two.has.keys()
    return (
        len(one.does) == len(two.does)
        and all(a.shape == b.shape and differ(a, b) <= ROUNDING for a, b in zip(one.does, two.does, strict=True))
        and all(torch.equal(one.has[path], two.has[path]) for path in both)
    )

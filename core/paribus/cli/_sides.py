"""What `paribus compare` does with two sets of trials, or with two trials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paribus.cli._reports import shown, tripped, usage
from paribus.cli.console import out
from paribus.errors import EXIT_FAILED, EXIT_OK, NotComparableError, Problem

if TYPE_CHECKING:
    from paribus.report.gates import Gate, Held
    from paribus.report.shown.grid import Grid
    from paribus.report.sides.sets import Side

_VALID = "two trials (folders or identities), two folders of trials, NAME@CODE of the store, or two benchmark reports"


def sides(
    before: str, after: str, store: Path, gates: Sequence[Gate], shape: str, *, metric: str, elsewhere: bool
) -> int:
    """Two trials, or two folders of trials; the exit code says whether all that was compared finished."""
    from paribus.report.gates import gate_table
    from paribus.report.sides.across import across
    from paribus.report.sides.duel import duel

    one, other = (_side(text, store) for text in (before, after))
    if one.alone and other.alone:
        if gates:
            what = "two single trials have no interval, so that no gate could ever trip"
            valid = "two folders of trials, with several seeds each"
            raise NotComparableError(Problem(code="no-interval", path="--fail-if", what=what, valid=valid))
        held = duel(one, other, elsewhere=elsewhere)
        _show(shape, held.grid(), held.to_json, "trials")
        return EXIT_OK
    table = across(one, other, metric=metric, elsewhere=elsewhere)
    found = gate_table(gates, table)
    _show(shape, table.grid(), table.to_json, "trials", found)
    return EXIT_OK if table.ok and not tripped(found) else EXIT_FAILED


def _side(text: str, store: Path) -> Side:
    from paribus.report.sides.sets import side_of

    found = side_of(text, store)
    if found is None:
        raise usage(f"`{text}` is no trial, no folder of trials, and no benchmark report", _VALID)
    return found


def _show(shape: str, grid: Grid, document: Callable[[], dict[str, Any]], name: str, held: Sequence[Held] = ()) -> None:
    shown(shape, {"text": grid.show, "markdown": lambda: out(grid.markdown())}, lambda: grid, document, name, held)

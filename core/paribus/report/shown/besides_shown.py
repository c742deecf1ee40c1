"""What a table says besides, in a terminal: a grid where there is room for it, else a few lines for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from paribus.report.shown import besides, cells
from paribus.report.shown.shades import STYLES
from paribus.report.tables.family import Family
from paribus.report.words import clean

if TYPE_CHECKING:
    from rich.console import RenderableType

GAP: Final = 2
LEAST: Final = 14  # places that a verdict may be folded to
NAMES: Final = range(40, 13, -2)  # places that names may be folded to, the best first


def besides_of(family: Family, width: int, plain: Callable[[str], str]) -> Iterator[RenderableType]:
    """A title, the verdicts, their certificates, and how they are to be read."""
    from rich.table import Table as Grid
    from rich.text import Text

    yield ""
    yield Text(plain(family.title), style="bold")
    rows = [(row.kind, [plain(text) for text in texts]) for row, texts in besides.lines(family)]
    headers = [plain(header) for header in besides.headers(family)]
    folds = _folds([headers, *(texts for _, texts in rows)], width)
    if folds is None:
        yield from _stacked(rows)
    else:
        grid = Grid(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
        for header in headers:
            grid.add_column(Text(header), justify="right" if header == "n" else "left", no_wrap=True)
        for kind, texts in rows:
            folded = [cells.folded(text, fold) for text, fold in zip(texts, folds, strict=True)]
            grid.add_row(*map(Text, folded[:-1]), Text(folded[-1], style=STYLES.get(kind, "")))
        yield grid
    yield _marked(family, plain)


def _folds(lines: list[list[str]], width: int) -> list[int] | None:
    """How wide each column may be: names are folded first, and verdicts with them; None where it cannot be done."""
    from rich.cells import cell_len

    needed = [max(cell_len(text) for text in column) for column in zip(*lines, strict=True)]
    names = len(needed) - 3
    for most in (max(needed[:names]), *NAMES):
        folds = [*(min(each, most) for each in needed[:names]), *needed[names:]]
        left = width - sum(folds[:-1]) - GAP * len(folds)
        if left >= min(needed[-1], LEAST):
            return [*folds[:-1], min(left, needed[-1])]
    return None


def _stacked(rows: Sequence[tuple[str, list[str]]]) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    for kind, (name, *more, count, difference, verdict) in rows:
        yield Text(" from ".join((name, *more)), style="bold")
        for text, style in ((verdict, STYLES.get(kind, "")), (f"{difference}, n {count}", "")):
            yield Padding(Text(text, style=style, overflow="fold"), (0, 0, 0, 2))


def _marked(family: Family, plain: Callable[[str], str]) -> RenderableType:
    """Certificates and captions, each folded beside its mark."""
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for ok, name, text in besides.certificates(family):
        style = "green" if ok else "bold magenta"
        grid.add_row(Text(plain("✓" if ok else "✗"), style=style), Text(plain(clean(f"{name}: {text}"))))
    for line in family.caption:
        grid.add_row(Text(plain("·"), style="dim"), Text(plain(clean(line)), style="dim"))
    return grid

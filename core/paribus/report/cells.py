"""The cells of a table as text: numbers with the digits that they have, names that cannot drive a terminal."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

from paribus.analysis.costs import Cost
from paribus.analysis.formatting import clean
from paribus.analysis.table import Row, Table

NONE: Final = "-"
TIMES: Final = "\N{MULTIPLICATION SIGN}"
COSTS: Final[Mapping[str, str]] = {
    "parameters": "params",
    "flops_per_token": "FLOPs/token",
    "cache_bytes_per_token": "cache/token",
    "total_flops": "train FLOPs",
    "tokens_per_second": "tokens/s",
    "peak_bytes": "memory",
}
WORDS: Final = re.compile(r"\([^()]*\),? *|[^\s(=,]+[=,]? *|.")  # what is not broken while there is room
BYTES: Final = ("cache_bytes_per_token", "peak_bytes")
FINEST: Final = 6  # decimals; what needs more is written with an exponent
LARGEST: Final = 1e7
BARE: Final = 3  # decimals where nothing says how many
SPREAD: Final = 2  # decimals by which the rows of one column may differ from the coarsest


def folded(text: str, width: int) -> str:
    """Lines of at most `width`, broken where a reader would: `attention=restricted`, and below it `(window=16)`."""
    lines = [""]
    for word in WORDS.findall(text):
        pieces = [word] if len(word.rstrip()) <= width else [f"{piece} " for piece in textwrap.wrap(word, width)]
        for piece in pieces:
            if len((lines[-1] + piece).rstrip()) <= width:
                lines[-1] += piece
            else:
                lines.append(piece)
    return "\n".join(line.rstrip() for line in lines if line.strip())


def digits(table: Table) -> dict[str, int]:
    """How many decimals each row of a table is worth."""
    return shared((table.baseline, *table.rows), decimals(table.baseline.mean) + 2)


def shared(rows: Sequence[Row], bare: int = BARE) -> dict[str, int]:
    """The same of any rows: two significant digits of half an interval, alike where possible; `bare` without any."""
    own = {row.variant: decimals(_size(row)) for row in rows if _size(row)}
    usual = min(max(own.values()), min(own.values()) + SPREAD) if own else bare
    return {row.variant: max(usual, own.get(row.variant, usual)) for row in rows}


def number(value: float | None, decimals: int, *, signed: bool = False) -> str:
    """`2.153`, `+0.031`, `-1.2e-08`."""
    if value is None:
        return NONE
    sign = "+" if signed else ""
    if decimals > FINEST or abs(value) >= LARGEST:
        return f"{value:{sign}.2e}" if signed else f"{value:.4g}"
    return f"{value:{sign},.{max(decimals, 0)}f}"


def difference(row: Row, decimals: int) -> str:
    """`+0.031 [+0.012, +0.050]`, or what there is of it."""
    if row.kind == "baseline":
        return ""
    found = number(row.difference, decimals, signed=True)
    if row.low is None or row.high is None:
        return found
    return f"{found} [{number(row.low, decimals, signed=True)}, {number(row.high, decimals, signed=True)}]"


def figure(row: Row, decimals_: int) -> str:
    """A difference without its interval, which would say why it has no more decimals: up to two more, where it is 0."""
    if row.difference is None:
        return ""
    own = decimals(row.difference)
    return number(row.difference, max(decimals_, min(own, decimals_ + 2)), signed=True)


def count(row: Row) -> str:
    """`5`, or `4/5` where not all that was planned is there."""
    return str(row.n) if row.n == row.planned else f"{row.n}/{row.planned}"


def verdict(row: Row) -> str:
    """The verdict, and what must be read with it."""
    return clean(row.said)


def cost(row: Row, name: str) -> str:
    """The baseline's as it is, a variant's as a multiple of that."""
    found = row.costs[name]
    rough = "~" if found.rough else ""
    if row.kind != "baseline":
        return NONE if found.ratio is None else f"{rough}{_ratio(found.ratio)}{TIMES}{_interval(found)}"
    if found.value is None:
        return NONE
    return rough + (compact(found.value, 1024, "BKMGT") if name in BYTES else compact(found.value, 1000, " kMGTPEZ"))


def _interval(found: Cost) -> str:
    """` [1.02, 1.05]`, where there is one."""
    if found.low is None or found.high is None:
        return ""
    return f" [{_ratio(found.low)}, {_ratio(found.high)}]"


def costs(table: Table) -> list[str]:
    """The costs that any row has."""
    return [name for name in COSTS if any(row.costs[name].value is not None for row in (table.baseline, *table.rows))]


def title(table: Table) -> str:
    stage = f" after {clean(table.stage)}" if table.stage else ""
    return f"{clean(table.study)}: {clean(table.metric)}{stage}, {table.better} is better"


def remarks(table: Table) -> Sequence[tuple[str, Sequence[str]]]:
    """What is said under the table, by how it is marked."""
    return [
        ("!", [clean(line) for line in table.warnings]),
        ("-", [clean(line) for line in table.notes]),
        ("·", [clean(line) for line in table.caption]),
    ]


def _size(row: Row) -> float:
    if row.low is not None and row.high is not None and row.high > row.low:
        return (row.high - row.low) / 2
    return abs(row.difference or 0.0)


def decimals(size: float | None) -> int:
    """As many as two significant digits of a number take."""
    return 1 - math.floor(math.log10(abs(size))) if size else 1


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if 0.1 <= ratio < 10 else f"{ratio:.3g}" if ratio < 1e5 else f"{ratio:.1e}"


def compact(value: float, step: int, units: str) -> str:
    """`36.3k`, `434M`: three digits and a unit."""
    at = 0
    while abs(value) >= 0.9995 * step and at < len(units) - 1:
        value, at = value / step, at + 1
    return f"{value:.3g}{units[at]}".strip()

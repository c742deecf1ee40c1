"""Text of the cells of a verdict table: verdicts, costs, title and remarks, and how long text is folded."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import Final

from paribus.analysis.costs import LABELS, Cost
from paribus.analysis.formatting import NO_VALUE, TIMES, clean, compact
from paribus.analysis.table import Row, Table

WORDS: Final = re.compile(r"\([^()]*\),? *|[^\s(=,]+[=,]? *|.")  # what is not broken while there is room
PARTS: Final = re.compile(r"[^\s._=-]+[._=-]*\s*|.")
BYTES: Final = ("cache_bytes_per_token", "peak_bytes")


def folded(text: str, width: int) -> str:
    """Fold text into lines of at most `width`, where a reader would: `attention=restricted`, then `(window=16)`."""
    lines = [""]
    for word in WORDS.findall(text):
        for piece in _pieces(word, width):
            if len((lines[-1] + piece).rstrip()) <= width:
                lines[-1] += piece
            else:
                lines.append(piece)
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _pieces(word: str, width: int) -> list[str]:
    """Return a word whole where it fits, else its parts between dots, hyphens and underscores, else pieces that fit."""
    if len(word.rstrip()) <= width:
        return [word]
    chunks = [f"{chunk} " for chunk in textwrap.wrap(word, width, break_long_words=False, break_on_hyphens=False)]
    parts = [part for chunk in chunks for part in (PARTS.findall(chunk) if len(chunk) > width + 1 else [chunk])]
    return [part[start : start + width] for part in parts for start in range(0, len(part.rstrip()), width)]


def verdict(row: Row) -> str:
    """Return the verdict with its flags."""
    return clean(row.summary)


def cost(row: Row, name: str) -> str:
    """Return the cost of the baseline, or the ratio of a variant to it."""
    value = row.costs[name]
    rough = "~" if value.rough else ""
    if row.kind != "baseline":
        return NO_VALUE if value.ratio is None else f"{rough}{_ratio(value.ratio)}{TIMES}{_interval(value)}"
    if value.value is None:
        return NO_VALUE
    return rough + (compact(value.value, 1024, "BKMGT") if name in BYTES else compact(value.value, 1000, " kMGTPEZ"))


def _interval(cost: Cost) -> str:
    """` [1.02, 1.05]`, or empty without an interval."""
    if cost.low is None or cost.high is None:
        return ""
    return f" [{_ratio(cost.low)}, {_ratio(cost.high)}]"


def costs(table: Table) -> list[str]:
    """Return the names of the costs that any row has."""
    return [name for name in LABELS if any(row.costs[name].value is not None for row in (table.baseline, *table.rows))]


def title(table: Table) -> str:
    stage = f" after {clean(table.stage)}" if table.stage else ""
    return f"{clean(table.study)}: {clean(table.metric)}{stage}, {table.better} is better"


def remarks(table: Table) -> Sequence[tuple[str, Sequence[str]]]:
    """Return the lines under the table, by their mark."""
    return [
        ("!", [clean(line) for line in table.warnings]),
        ("-", [clean(line) for line in table.notes]),
        ("·", [clean(line) for line in table.caption]),
    ]


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if 0.1 <= ratio < 10 else f"{ratio:.3g}" if ratio < 1e5 else f"{ratio:.1e}"

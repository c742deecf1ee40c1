"""The colours of verdicts, on any terminal and in any table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

STYLES: Final[Mapping[str, str]] = {
    "better": "bold green",
    "worse": "bold red",
    "equivalent": "bold cyan",
    "inconclusive": "yellow",
    "diverged": "bold magenta",
    "withheld": "bold magenta",
    "baseline": "dim",
    "aside": "dim",
    "faster": "bold green",
    "slower": "bold red",
}

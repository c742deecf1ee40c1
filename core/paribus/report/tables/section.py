"""What is said of a whole study besides its tables: a few lines under a title, and the same as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final


@final
@dataclass(frozen=True, kw_only=True)
class Section:
    """Lines that every reader is to see, after the tables' overview."""

    key: str  # what it is called in JSON
    title: str
    lines: tuple[str, ...]
    document: Mapping[str, Any]
    ok: bool = True  # whether all is there that the study plans

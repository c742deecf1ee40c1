"""Names in the properties of a record that verdicts tell apart. No torch is imported: `compare` reads them."""

from __future__ import annotations

from typing import Final

UNCHECKED: Final = "unchecked"  # key of the reason why nothing was checked
DECODING: Final = "decodes something else"


def withholds_verdict(name: str) -> bool:
    """Return True if a model that lacks a property has no verdict; no metric of a trial depends on decoding."""
    return name not in (UNCHECKED, DECODING)

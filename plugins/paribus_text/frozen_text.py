"""Text of CPython 3.11.7 in this package: every reader has the same, whatever Python runs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).with_name("python-3.11.7")  # written by tools/freeze_python_docs.py


def read_frozen_text(name: str) -> Mapping[str, str]:
    """Return the texts of one file by name: `topics` of the language reference, or `docstrings` of the modules."""
    with gzip.open(FOLDER / f"{name}.json.gz", "rt", encoding="utf-8") as file:
        texts: dict[str, str] = json.load(file)
    return texts

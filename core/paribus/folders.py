"""Where things are kept that can be made again: the index of plugins, encoded corpora."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache for paribus: $PARIBUS_CACHE_DIR, or the platform's usual place."""
    named = os.environ.get("PARIBUS_CACHE_DIR")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paribus"

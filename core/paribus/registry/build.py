"""The process that loads plugins for the index: `python -m paribus.registry.build`, with its orders on stdin."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from paribus.registry.cache import FORMAT
from paribus.registry.plugin_loading import load
from paribus.registry.plugin_sources import Door
from paribus.storage import atomic


def main() -> None:
    """Loads plugin after plugin, and writes what each gives as soon as it is known: the next may end the process."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for door, place in json.load(sys.stdin):
        atomic.write_json(Path(place), load(Door(**door)).piece.to_json(), schema=FORMAT)


if __name__ == "__main__":
    main()

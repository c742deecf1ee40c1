"""The process that loads plugins for the index: `python -m paribus.registry.build`, with its requests on stdin."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from paribus.registry.cache import FORMAT
from paribus.registry.plugin_loading import load_plugin
from paribus.registry.plugin_sources import PluginSource
from paribus.storage import atomic


def main() -> None:
    """Load each plugin and write its manifest at once, since the next plugin may end the process."""
    os.environ["OMP_NUM_THREADS"] = "1"
    for source, path in json.load(sys.stdin):
        manifest = load_plugin(PluginSource(**source)).manifest
        atomic.write_json(Path(path), manifest.to_json(), schema=FORMAT)


if __name__ == "__main__":
    main()

"""Sources of the modules of this process, as they were when they were imported: a file may be edited while it runs."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, final

from paribus.storage.packages import find_package


@final
class LoadedSource(NamedTuple):
    """Source of a module, read soon after its import."""

    text: bytes
    module: types.ModuleType
    spec: object  # another one after `importlib.reload`


def loaded_sources(known: Mapping[Path, LoadedSource]) -> dict[Path, LoadedSource]:
    """Return the sources of all imported modules but those of libraries.

    They are as known from earlier, unless a module was imported again since.
    """
    sources = dict(known)
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        package = find_package(name.partition(".")[0])
        if package.ignored or package.version:
            continue
        path, spec = Path(file), getattr(module, "__spec__", None)
        before = known.get(path)
        if before is None or before.module is not module or before.spec is not spec:
            with suppress(OSError):
                sources[path] = sources[path.resolve()] = LoadedSource(path.read_bytes(), module, spec)
    return sources

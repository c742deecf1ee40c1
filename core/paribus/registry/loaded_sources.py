"""Sources of the modules of this process, as they were when they were imported: a file may be edited while it runs."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, final

from paribus.storage.packages import Package, find_package


@final
class LoadedSource(NamedTuple):
    """Source of a module, read soon after its import."""

    path: Path
    target: Path  # of the path, where it is a link
    text: bytes
    module: types.ModuleType
    spec: object  # another one after `importlib.reload`


_READ: Final[dict[str, LoadedSource]] = {}


def loaded_sources(known: Mapping[Path, LoadedSource]) -> dict[Path, LoadedSource]:
    """Return the sources of all imported modules but those of libraries, and those of `known` that are gone."""
    sources = dict(known)
    packages: dict[str, Package] = {}
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        top = name.partition(".")[0]
        package = packages[top] = packages.get(top) or find_package(top)
        if package.ignored or package.version:
            continue
        source, spec = _READ.get(file), getattr(module, "__spec__", None)
        if source is None or source.module is not module or source.spec is not spec:
            try:
                source = LoadedSource(Path(file), Path(file).resolve(), Path(file).read_bytes(), module, spec)
            except OSError:
                continue
            _READ[file] = source
        sources[source.path] = sources[source.target] = source
    return sources

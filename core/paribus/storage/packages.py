"""Packages that code is imported from, and how each counts in an identity: not, by its version, or by its source."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
import sysconfig
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, final

LARGE: Final = 200  # Python files: a package with more of them counts by its version
SITES: Final = frozenset({"site-packages", "dist-packages"})
_CORE: Final = Path(__file__).parents[1]
_STDLIB: Final = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")})


@final
class Package(NamedTuple):
    """A top-level package or module."""

    ignored: bool = False  # the standard library, paribus itself, and what it needs: records have their versions
    version: str = ""  # of a large distribution: "scipy 1.13"
    folders: tuple[str, ...] = ()  # that hold the modules of a package
    file: str = ""  # of a module that is no package


IGNORED: Final = Package(ignored=True)


def find_package(name: str) -> Package:
    """Return the package of a top-level name; one without folders and file if it is not installed."""
    if name in sys.stdlib_module_names or name == "paribus" or name in _dependencies():
        return IGNORED
    return _find(name, tuple(sys.path))


@lru_cache(maxsize=1024)
def package_of_file(file: str) -> Package | None:
    """Return the package that holds the file of a code object, if it is installed; None for the user's own file."""
    if file.startswith("<frozen ") or Path(file).is_relative_to(_CORE):
        return IGNORED
    parts = Path(file).parts
    site = max((index for index, part in enumerate(parts) if part in SITES), default=-1)
    if site >= 0:
        return find_package(parts[site + 1].partition(".")[0])
    return IGNORED if file.startswith(_STDLIB) else None


@lru_cache(maxsize=256)
def _find(name: str, path: tuple[str, ...]) -> Package:
    """`path` is `sys.path`, since the answer depends on it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):  # such as `__main__`
        return Package()
    if spec is None:
        return Package()
    if spec.submodule_search_locations is None:
        return Package(file=spec.origin or "") if spec.has_location else Package()
    folders = tuple(map(str, spec.submodule_search_locations))
    return Package(version=_version(name, folders), folders=folders)


def _version(name: str, folders: tuple[str, ...]) -> str:
    """Return the name and version of a large package from an installed distribution, "" for any other."""
    installed = [Path(folder) for folder in folders if SITES & set(Path(folder).parts)]
    if not installed or len(list(islice((file for it in installed for file in it.rglob("*.py")), LARGE + 1))) <= LARGE:
        return ""
    with suppress(importlib.metadata.PackageNotFoundError):
        return f"{name} {importlib.metadata.version(name)}"
    distributions = importlib.metadata.packages_distributions().get(name, ())  # slow: for names such as sklearn
    return " and ".join(f"{it} {importlib.metadata.version(it)}" for it in distributions)


@lru_cache(maxsize=1)
def _dependencies() -> frozenset[str]:
    """Return the names under which the distributions that paribus needs are imported."""
    names: set[str] = set()
    try:
        needs = importlib.metadata.requires("paribus") or []
    except importlib.metadata.PackageNotFoundError:
        return frozenset()
    for need in needs:
        match = re.match(r"[\w.-]+", need)
        if match is None or "extra ==" in need:
            continue
        name = match[0]
        names.add(name.replace("-", "_"))
        with suppress(importlib.metadata.PackageNotFoundError):
            names.update((importlib.metadata.distribution(name).read_text("top_level.txt") or "").split())
    return frozenset(names)

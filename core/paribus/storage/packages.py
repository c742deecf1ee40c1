"""Packages that code is imported from, and how each counts in an identity: not, by its version, or by its source.

A distribution counts by its version if it was installed from an index and its files are those that were installed. One
that was built from a folder counts by its source, since its author edits it without another version; so does one whose
files were edited where they are installed.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import Distribution
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, final

LARGE: Final = 200  # Python files: of a package with more of them, the files are not compared
PROJECT: Final = "paribus"
SITES: Final = frozenset({"site-packages", "dist-packages"})
_CORE: Final = Path(__file__).parents[1]
_STDLIB: Final = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")})


@final
class Package(NamedTuple):
    """A top-level package or module."""

    ignored: bool = False  # the standard library, paribus itself, and what it needs: records have their versions
    version: str = ""  # of an installed distribution that counts by it: "scipy 1.13"
    folders: tuple[str, ...] = ()  # that hold the modules of a package
    file: str = ""  # of a module that is no package


IGNORED: Final = Package(ignored=True)


def find_package(name: str) -> Package:
    """Return the package of a top-level name; one without folders and file if it is not installed."""
    if name in sys.stdlib_module_names or name == PROJECT or name in _dependencies():
        return IGNORED
    return _find(name, tuple(sys.path))


@lru_cache(maxsize=1024)
def package_of_file(file: str) -> Package | None:
    """Return the package that holds the file of a code object, if it is installed; None for the user's own file."""
    path = Path(file)
    if file.startswith("<frozen ") or path.is_relative_to(_CORE):
        return IGNORED
    site = max((index for index, part in enumerate(path.parts) if part in SITES), default=-1)
    if site >= 0:
        return find_package(path.parts[site + 1].partition(".")[0])
    if file.startswith(_STDLIB):
        return IGNORED
    top = path.relative_to(source_root(path.parent)).parts[0].partition(".")[0] if path.is_file() else ""
    found = _find(top, tuple(sys.path))
    if file != found.file and not any(path.is_relative_to(folder) for folder in found.folders):
        return None
    package = find_package(top)  # in a folder of `pip install --target`
    return package if package.ignored or package.version else None


@lru_cache(maxsize=1024)
def source_root(folder: Path) -> Path:
    """Return the folder that holds the top-level package of a folder: itself, if it is in no package."""
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return folder


@lru_cache(maxsize=256)
def _find(name: str, path: tuple[str, ...]) -> Package:
    """`path` is `sys.path`, since the answer depends on it."""
    try:
        spec = importlib.util.find_spec(name) if name else None
    except (ImportError, ValueError, AttributeError):  # such as `__main__`
        return Package()
    if spec is None:
        return Package()
    if spec.submodule_search_locations is None:
        file = spec.origin if spec.has_location else None
        return Package(version=_version(name, [Path(file)]), file=file) if file else Package()
    folders = tuple(map(str, spec.submodule_search_locations))
    return Package(version=_version(name, [Path(folder) for folder in folders]), folders=folders)


def _version(name: str, paths: Sequence[Path]) -> str:
    """Return the name and version of an installed distribution that counts by them, "" for any other code."""
    distributions = [it for it in _distributions(name) if _holds(it, paths)]
    if not distributions or any(it.name == PROJECT for it in distributions):
        return ""
    files = islice((file for path in paths for file in path.rglob("*.py")), LARGE + 1)
    if len(list(files)) <= LARGE and not all(_is_from_index(it) and _is_as_installed(it, name) for it in distributions):
        return ""
    return " and ".join(f"{it.name} {it.version}" for it in distributions)


def _distributions(name: str) -> list[Distribution]:
    """Return the distributions that install a top-level name."""
    with suppress(importlib.metadata.PackageNotFoundError):
        distribution = importlib.metadata.distribution(name)
        files = distribution.files
        if files is None or any(file.parts[0] in (name, f"{name}.py") for file in files):
            return [distribution]
    names = importlib.metadata.packages_distributions().get(name, ())  # slow: for names such as sklearn
    return [importlib.metadata.distribution(it) for it in dict.fromkeys(names)]


def _holds(distribution: Distribution, paths: Sequence[Path]) -> bool:
    """Return whether a distribution is installed where a package is imported from; an editable one is not."""
    folder = Path(str(distribution.locate_file(""))).resolve()
    return any(path.parent.resolve() == folder for path in paths)


def _is_from_index(distribution: Distribution) -> bool:
    """Return whether a distribution is from a package index: others name where they are from."""
    is_conda = (distribution.read_text("INSTALLER") or "").strip() == "conda"  # whose builds name a folder
    return is_conda or distribution.read_text("direct_url.json") is None


def _is_as_installed(distribution: Distribution, name: str) -> bool:
    """Return whether the Python files of a package are those that were installed; False if they are not listed."""
    files = [it for it in distribution.files or () if it.suffix == ".py" and it.parts[0] in (name, f"{name}.py")]
    for file in files:
        if file.hash is None or file.hash.mode not in hashlib.algorithms_guaranteed:
            return False
        try:
            digest = hashlib.new(file.hash.mode, Path(str(file.locate())).read_bytes()).digest()
        except OSError:
            return False
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            return False
    return bool(files)


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

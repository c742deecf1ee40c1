"""Packages that code is imported from, and how each counts in an identity: not, by its version, or by its source.

A distribution counts by its version if it was installed from an index and its files are those that were installed. One
that was built from a folder counts by its source, since its author edits it without another version; so does one whose
files were edited where they are installed, or that has others. The files of a large one are not read.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import Distribution, FileHash
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, final

LARGE: Final = 200  # Python files: of a package with more of them, the files are not compared
DIGITS: Final = 16  # of a digest of installed files
PROJECT: Final = "paribus"
SITES: Final = frozenset({"site-packages", "dist-packages"})
_CORE: Final = Path(__file__).parents[1]
_STDLIB: Final = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")})


@final
class Package(NamedTuple):
    """A top-level package or module."""

    ignored: bool = False  # the standard library, paribus itself, and what it needs: records have their versions
    version: str = ""  # of an installed distribution that counts by it, as "scipy 1.13" or "einops 0.8.1 <digest>"
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
    """Return the name and version of an installed distribution that counts by them, "" for any other code.

    A digest of the installed files follows, since one version may be built again from other code. A large package from
    an index has none: files that describe the build differ between platforms.
    """
    folders = {path.parent for path in paths}
    distributions = _distributions(name, folders)
    # Each part of a namespace package has to be installed.
    is_installed = folders == {Path(str(it.locate_file(""))) for it in distributions}
    if not is_installed or any(it.name == PROJECT for it in distributions):
        return ""
    version = " and ".join(f"{it.name} {it.version}" for it in distributions)
    files = [*islice((it for path in paths for it in ([path] if path.is_file() else path.rglob("*.py"))), LARGE + 1)]
    is_large, is_from_index = len(files) > LARGE, all(map(_is_from_index, distributions))
    if is_large and is_from_index:
        return version
    hashes = {Path(str(file.locate())): file.hash for it in distributions for file in it.files or ()}
    if not is_large and not (is_from_index and all(_is_as_installed(file, hashes.get(file)) for file in files)):
        return ""
    listed = sorted(it.value for file, it in hashes.items() if it is not None and file.suffix == ".py")
    return f"{version} {hashlib.sha256(' '.join(listed).encode()).hexdigest()[:DIGITS]}"


def _distributions(name: str, folders: Iterable[Path]) -> list[Distribution]:
    """Return the distributions that install a top-level name in one of some folders."""
    found: list[Distribution] = []
    for folder in map(str, folders):
        named = [it for it in importlib.metadata.distributions(name=name, path=[folder]) if name in _installs(it)]
        found += named or _installed(folder).get(name, [])
    return sorted(found, key=lambda it: it.name)


@lru_cache(maxsize=64)
def _installed(folder: str) -> Mapping[str, list[Distribution]]:
    """Return the distributions in a folder, by each top-level name that they install: `sklearn` is of scikit-learn."""
    found: dict[str, list[Distribution]] = {}
    for distribution in importlib.metadata.distributions(path=[folder]):
        for name in _installs(distribution):
            found.setdefault(name, []).append(distribution)
    return found


def _installs(distribution: Distribution) -> set[str]:
    """Return the top-level names that a distribution has installed; an editable one, or one beside its source, none."""
    record = distribution.read_text("RECORD")
    if record is not None:
        return {*re.findall(r'^"?([^/.,\n]+)(?:/|\.[^/,\n]+,)', record, re.MULTILINE)}
    if not SITES & {*Path(str(distribution.locate_file(""))).parts}:
        return set()
    return {distribution.name, *(distribution.read_text("top_level.txt") or "").split()}


def _is_from_index(distribution: Distribution) -> bool:
    """Return whether a distribution is from a package index: others name where they are from."""
    is_conda = (distribution.read_text("INSTALLER") or "").strip() == "conda"  # whose builds name a folder
    return is_conda or distribution.read_text("direct_url.json") is None


def _is_as_installed(file: Path, expected: FileHash | None) -> bool:
    """Return whether a file is the one that was installed; False if it is not listed with a hash."""
    if expected is None or expected.mode not in hashlib.algorithms_guaranteed:
        return False
    try:
        digest = hashlib.new(expected.mode, file.read_bytes()).digest()
    except OSError:
        return False
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == expected.value


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

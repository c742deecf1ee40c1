"""Plugin sources: entry points of installed distributions, and files named by the user."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from paribus.errors import Problem, SpecError
from paribus.keyed import key32

GROUP = "paribus"
BUILTIN = "paribus"  # the distribution of the built-in plugins


@final
@dataclass(frozen=True, order=True)
class PluginSource:
    """Location of one plugin that is not imported yet."""

    distribution: str  # "" for a file, and for components added in Python
    name: str  # name of the entry point; for a file, its path as the user wrote it
    value: str = ""  # of an entry point, "package.module"; of a file, its absolute path
    version: str = ""
    needs: str = ""  # the distribution's requirement on paribus, if it has one

    def __str__(self) -> str:
        return f"{self.name} of {self.distribution} {self.version}" if self.distribution else self.name

    @property
    def label(self) -> str:
        """Short text for lists: the distribution and its version, or the file."""
        return f"{self.distribution} {self.version}" if self.distribution else self.name

    @property
    def module(self) -> str:
        """Name under which the module is imported; for a file, a name that no other module has."""
        if self.distribution:
            return self.value.partition(":")[0]
        stem = re.sub(r"\W", "_", Path(self.value).stem)
        status = Path(self.value).stat()
        return f"paribus_file_{stem}_{key32(self.value, status.st_mtime_ns, status.st_size):08x}"

    def files(self) -> list[Path]:
        """Return every .py file that can change what the plugin registers."""
        if not self.distribution:
            return [Path(self.value)]
        try:
            module_spec = importlib.util.find_spec(self.module.partition(".")[0])
        except (ImportError, ValueError):
            return []
        if module_spec is None:
            return []
        folders = module_spec.submodule_search_locations
        if folders is None:
            return [Path(module_spec.origin)] if module_spec.origin else []
        return sorted(file for folder in folders for file in Path(folder).rglob("*.py"))


def find_plugin_sources(
    plugins: Sequence[Path | str] = (), *, only: Collection[str] | None = None, no_plugins: bool = False
) -> tuple[PluginSource, ...]:
    """Return all plugin sources, sorted, so that the order of installation or of options changes nothing.

    `only` lists the entry points or distributions that may be loaded besides the built-in ones; with `no_plugins`,
    only the built-in ones are.
    """
    allowed: Collection[str] | None = () if no_plugins else only
    installed = (
        source
        for source in _entry_points()
        if allowed is None or source.distribution == BUILTIN or {source.name, source.distribution} & {*allowed}
    )
    return tuple(sorted({*installed, *(_file(Path(path)) for path in plugins)}))


def search_path() -> list[str]:
    """Return `sys.path` without the working folder that `python -m` or `-c` puts first."""
    starts_with_cwd = bool(sys.path) and not sys.flags.safe_path and sys.path[0] in ("", str(Path.cwd()))
    return [entry for entry in (sys.path[1:] if starts_with_cwd else sys.path) if entry]


def _entry_points() -> Iterator[PluginSource]:
    names: set[str] = set()
    for distribution in importlib.metadata.distributions(path=search_path()):
        text = distribution.read_text("entry_points.txt")
        if text is None or GROUP not in text:
            continue
        points = [point for point in distribution.entry_points if point.group == GROUP]
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower() if points else ""
        if not points or name in names:  # the first one on the path hides the rest, as for imports
            continue
        names.add(name)
        needs = next((need for need in distribution.requires or () if re.match(r"paribus(?![\w.-])", need)), "")
        for point in points:
            yield PluginSource(name, point.name, point.value, distribution.version, needs)


def _file(path: Path) -> PluginSource:
    if path.suffix != ".py" or not path.is_file():
        kind = "a folder" if path.is_dir() else "another file" if path.exists() else "a path that does not exist"
        message = f"expected a plugin in one Python file, got {kind}"
        valid = "a path that ends in .py"
        raise SpecError(Problem(code="not-a-plugin", location=str(path), message=message, valid=valid))
    return PluginSource("", str(path), str(path.resolve()))

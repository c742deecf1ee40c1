"""Through which doors plugins come: entry points of installed distributions, and files named by the user."""

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
OURS = "paribus"  # the distribution whose plugins are built in


@final
@dataclass(frozen=True, order=True)
class Door:
    """One plugin that could be loaded; nothing of it has been imported yet."""

    distribution: str  # "" for a file, and for what was given in Python
    name: str  # of the entry point; of a file, its path as the user gave it
    value: str = ""  # what an entry point names, "package.module"; of a file, its absolute path
    version: str = ""
    needs: str = ""  # the distribution's requirement on paribus, where it has one

    def __str__(self) -> str:
        return f"{self.name} of {self.distribution} {self.version}" if self.distribution else self.name

    @property
    def source(self) -> str:
        """Where it comes from, as lists show it."""
        return f"{self.distribution} {self.version}" if self.distribution else self.name

    @property
    def module(self) -> str:
        """Under what name its module is imported; a file gets one that no other module has."""
        if self.distribution:
            return self.value.partition(":")[0]
        stem = re.sub(r"\W", "_", Path(self.value).stem)
        stamp = Path(self.value).stat()
        return f"paribus_file_{stem}_{key32(self.value, stamp.st_mtime_ns, stamp.st_size):08x}"

    def files(self) -> list[Path]:
        """Every .py file whose change may change what this plugin offers."""
        if not self.distribution:
            return [Path(self.value)]
        try:
            found = importlib.util.find_spec(self.module.partition(".")[0])
        except (ImportError, ValueError):
            return []
        if found is None:
            return []
        if found.submodule_search_locations is None:
            return [Path(found.origin)] if found.origin else []
        return sorted(file for folder in found.submodule_search_locations for file in Path(folder).rglob("*.py"))


def doors(
    plugins: Sequence[Path | str] = (), *, only: Collection[str] | None = None, no_plugins: bool = False
) -> tuple[Door, ...]:
    """All doors, sorted, so that no order of installation or of options changes what follows.

    `only` lists the entry points or distributions that may be loaded besides the built-in ones; `no_plugins`: none may.
    """
    allowed: Collection[str] | None = () if no_plugins else only
    points = (
        door
        for door in _entry_points()
        if allowed is None or door.distribution == OURS or door.name in allowed or door.distribution in allowed
    )
    return tuple(sorted({*points, *(_file(Path(path)) for path in plugins)}))


def search_path() -> list[str]:
    """Where distributions are looked for: never in the working folder that `python -m` or `-c` put first."""
    first_is_cwd = bool(sys.path) and not sys.flags.safe_path and sys.path[0] in ("", str(Path.cwd()))
    return [entry for entry in (sys.path[1:] if first_is_cwd else sys.path) if entry]


def _entry_points() -> Iterator[Door]:
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions(path=search_path()):
        text = distribution.read_text("entry_points.txt")
        if text is None or GROUP not in text:
            continue
        points = [point for point in distribution.entry_points if point.group == GROUP]
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower() if points else ""
        if not points or name in seen:  # what comes first on the path hides the rest, as it does for imports
            continue
        seen.add(name)
        needs = next((need for need in distribution.requires or () if re.match(r"paribus(?![\w.-])", need)), "")
        for point in points:
            yield Door(name, point.name, point.value, distribution.version, needs)


def _file(path: Path) -> Door:
    if path.suffix != ".py" or not path.is_file():
        found = "a folder" if path.is_dir() else "no such file" if not path.exists() else "no Python file"
        what = f"a plugin is one Python file, but this is {found}"
        raise SpecError(
            Problem(code="no-plugin-file", location=str(path), message=what, valid="a path that ends in .py")
        )
    return Door("", str(path), str(path.resolve()))

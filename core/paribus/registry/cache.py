"""The index on disk: derived from the plugins' code by another process, so that who asks never imports torch.

A file for each plugin, named by a hash of all that it was derived from. A file that is missing, damaged or of other
code is made anew; nothing else ever reads or needs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from paribus.errors import StoreError
from paribus.registry.component_index import Broken, Index, Piece
from paribus.registry.plugin_sources import Door, doors, search_path
from paribus.registry.registry import refuse_broken_files
from paribus.schema import JSON
from paribus.storage import atomic
from paribus.storage.atomic import cache_folder

FORMAT: Final = 1
KEPT: Final = 256  # files in the cache folder; the oldest go
PATIENCE: Final = 180  # seconds for all plugins to load
_CORE: Final = ("hookspecs.py", "offer.py", "schema.py", "registry", "slots", "parts")


def index(
    *,
    plugins: Sequence[Path | str] = (),
    only: Collection[str] | None = None,
    no_plugins: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Index:
    """What is installed, without importing it; after a plugin changed that takes some seconds, and `tell` is told."""
    engine = _engine()
    wanted = {door: _key(door, engine) for door in doors(plugins, only=only, no_plugins=no_plugins)}
    folder = cache_folder() / "index"
    pieces = {door: piece for door, key in wanted.items() if (piece := _read(folder, key)) is not None}
    missing = {door: key for door, key in wanted.items() if door not in pieces}
    if missing:
        tell(f"looking at {len(missing)} plugins that are new or changed …")
        with tempfile.TemporaryDirectory() as spare:
            pieces |= _built(missing, _writable(folder, Path(spare)))
        _prune(folder)
    found = tuple(pieces[door] for door in wanted)
    refuse_broken_files(found)
    return Index(found)


def _built(missing: dict[Door, str], folder: Path) -> dict[Door, Piece]:
    """Lets another process load what is missing; one that kills its process is left out, and the rest go on."""
    pieces: dict[Door, Piece] = {}
    left = dict(missing)
    while left:
        ended = _child(left, folder)
        done = {door: piece for door, key in left.items() if (piece := _read(folder, key)) is not None}
        left = {door: key for door, key in left.items() if door not in done}
        pieces |= done
        if left:  # it loads them in order: the first one without a result is the one that ended it
            guilty = next(iter(left))
            del left[guilty]
            pieces[guilty] = Piece(guilty, broken=(Broken(guilty, ended),))
    return pieces


def _child(left: dict[Door, str], folder: Path) -> str:
    """Runs the loading process, and says how it ended."""
    order = [[vars(door), str(folder / f"{key}.json")] for door, key in left.items()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())}
    command = [sys.executable, "-P", "-m", "paribus.registry.build"]
    try:
        ended = subprocess.run(
            command,
            input=json.dumps(order),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the process that loaded it did not end within {PATIENCE} s"
    said = ended.stderr.strip().rpartition("\n")[2][:200]
    how = f"signal {-ended.returncode}" if ended.returncode < 0 else f"exit code {ended.returncode}"
    return f"the process that loaded it ended with {how}" + (f" ({said})" if said else "")


def _import_path() -> list[str]:
    here = str(Path(__file__).parents[2])  # where this paribus is, whatever else the path may find
    return [here, *(entry for entry in sys.path if entry and entry != here)]


def _read(folder: Path, key: str) -> Piece | None:
    try:
        return Piece.from_json(atomic.read_json(folder / f"{key}.json", schema=FORMAT))
    except (StoreError, KeyError, TypeError, ValueError):
        return None  # not there, or not to be trusted: it is derived, so it is made anew


def _engine() -> list[JSON]:
    """All that every piece is derived from: our own code, this Python, and what else is installed."""
    core = Path(__file__).parents[1]
    ours = [file for name in _CORE for file in ([core / name] if name.endswith(".py") else (core / name).rglob("*.py"))]
    sites = [Path(entry) for entry in search_path() if Path(entry).name in ("site-packages", "dist-packages")]
    path = os.environ.get("PYTHONPATH", "")  # what could not be imported may be there now
    return [FORMAT, sys.version, sys.executable, path, *map(_stamp, (*sorted(ours), *sites))]


def _key(door: Door, engine: list[JSON]) -> str:
    return atomic.digest_json([engine, list(vars(door).values()), [_stamp(file) for file in door.files()]])


def _stamp(path: Path) -> list[JSON]:
    try:
        found = path.stat()
    except OSError:
        return [str(path)]
    return [str(path), found.st_mtime_ns, found.st_size if path.suffix else 0]


def _writable(folder: Path, spare: Path) -> Path:
    """The cache folder, or a temporary one where that cannot be written: slower, and as right."""
    try:
        atomic.make_folder(folder)
    except StoreError:
        return spare
    return folder if os.access(folder, os.W_OK) else spare


def _prune(folder: Path) -> None:
    with suppress(OSError):  # another process prunes as well
        files: Iterable[Path] = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
        for file in list(files)[KEPT:]:
            file.unlink(missing_ok=True)

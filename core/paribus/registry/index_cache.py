"""The component index on disk.

Another process (`load_requested`) derives it from the plugins' code, so that its reader never imports torch. There is
one file for each plugin, named by a hash of everything that it was derived from. A file that is missing, damaged or
outdated is written anew; nothing else reads or needs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Final

from paribus.errors import StoreError
from paribus.registry.component_index import ComponentValues, Entry, Index, LoadFailure, PluginManifest, PluginSource
from paribus.registry.plugin_loading import LoadedPlugin, file_sources, find_plugin_sources, load_plugin, search_path
from paribus.registry.registry import raise_load_failures
from paribus.schema import JSON
from paribus.storage import atomic
from paribus.storage.atomic import cache_folder
from paribus.storage.code_hash import CodeHashes, dependencies
from paribus.storage.packages import package_of_file

FORMAT: Final = 3
LARGE: Final = 1 << 24  # bytes of a file, of which only size and time are compared
CODE: Final = frozenset({".py", ".pyc", ".so", ".pyd", ".dylib", ".dll", ".pth"})
SYSTEM: Final = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", f"{sys.base_prefix}/")
MAX_FILES: Final = 256  # in the cache folder; the oldest are deleted
TIMEOUT: Final = 90  # seconds for all plugins to load
_CORE: Final = (
    "hookspecs.py",
    "schema.py",
    "registry",
    "slots",
    "parts",
    "storage/code_hash.py",
    "storage/packages.py",
)


def index(
    *,
    plugins: Sequence[Path | str] = (),
    only: Collection[str] | None = None,
    no_plugins: bool = False,
    on_message: Callable[[str], None] = lambda _: None,
) -> Index:
    """Return the index of the installed plugins without importing them.

    After a plugin changed this takes some seconds; `on_message` reports that.
    """
    sources = find_plugin_sources(plugins, only=only, no_plugins=no_plugins)
    return Index(_manifests(sources, on_message), loads_named=only is None and not no_plugins)


def with_plugins(known: Index, files: Sequence[Path], on_message: Callable[[str], None] = lambda _: None) -> Index:
    """Return an index with the components of these plugin files, too, without importing them."""
    new = known.new_files(files)
    if not new:
        return known
    plugins = sorted((*known.plugins, *_manifests(file_sources(new), on_message)), key=lambda plugin: plugin.source)
    return replace(known, plugins=tuple(plugins), planned={})


def _manifests(sources: Sequence[PluginSource], on_message: Callable[[str], None]) -> tuple[PluginManifest, ...]:
    """Return the manifests of plugins, from the cache or derived anew."""
    environment = _environment()
    keys = {source: _key(source, environment) for source in sources}
    folder = cache_folder() / "index"
    manifests = _read_all(folder, keys)
    missing = {source: key for source, key in keys.items() if source not in manifests}
    if missing:
        noun = "1 new or changed plugin" if len(missing) == 1 else f"{len(missing)} new or changed plugins"
        on_message(f"indexing {noun} …")
        with tempfile.TemporaryDirectory() as temporary:
            manifests |= _load_missing(missing, _writable(folder, Path(temporary)))
        _prune(folder)
    ordered = tuple(manifests[source] for source in sources)
    raise_load_failures(ordered)
    return ordered


def _load_missing(missing: dict[PluginSource, str], folder: Path) -> dict[PluginSource, PluginManifest]:
    """Load plugins in another process. A plugin that ends the process becomes a failure, and the rest are loaded."""
    manifests: dict[PluginSource, PluginManifest] = {}
    remaining = dict(missing)
    while remaining:
        exit_text = _run_build(remaining, folder)
        manifests |= _read_all(folder, remaining)
        remaining = {source: key for source, key in remaining.items() if source not in manifests}
        if remaining:  # plugins are loaded in order: the first one without a result ended the process
            source = next(iter(remaining))
            del remaining[source]
            manifests[source] = PluginManifest(source, broken=(LoadFailure(source, exit_text),))
    return manifests


def _run_build(keys: dict[PluginSource, str], folder: Path) -> str:
    """Run the loading process, and describe how it ended."""
    requests = [[vars(source), str(folder / f"{key}.json")] for source, key in keys.items()]
    # Without random hashes, as the process of a trial: a plugin may have values in the order of a set.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_import_path()), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-P", "-c", f"from {__name__} import load_requested; load_requested()"]
    try:
        process = subprocess.run(
            command,
            input=json.dumps(requests),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the loading process did not end within {TIMEOUT} s"
    last_line = process.stderr.strip().rpartition("\n")[2][:200]
    code = process.returncode
    status = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"the loading process ended with {status}" + (f" ({last_line})" if last_line else "")


def _import_path() -> list[str]:
    root = str(Path(__file__).parents[2])  # this paribus first, whatever else is on the path
    return [root, *(entry for entry in sys.path if entry and entry != root)]


def _read_all(folder: Path, keys: dict[PluginSource, str]) -> dict[PluginSource, PluginManifest]:
    manifests: dict[PluginSource, PluginManifest] = {}
    for source, key in keys.items():
        with suppress(OSError, StoreError, KeyError, TypeError, ValueError):  # missing or damaged: derived anew
            file = folder / f"{key}.json"
            status = file.stat()
            manifest = _read(file, status.st_mtime_ns, status.st_size)
            if all(_content(Path(path)) == content for path, content in manifest.dependencies):
                manifests[source] = manifest
    return manifests


@lru_cache(maxsize=MAX_FILES)
def _read(file: Path, *stamp: int) -> PluginManifest:
    """Read a manifest once for each `stamp` of its file."""
    return PluginManifest.from_json(atomic.read_json(file, schema=FORMAT))


def indexed_values(source: PluginSource, digest: str) -> ComponentValues | None:
    """Return the values of this digest of a component in an index on disk, if it still has them."""
    entries = (entry for _, manifest in _saved(source) for entry in manifest.entries)
    return next((entry.values for entry in entries if entry.values.digest == digest), None)


def mark_outdated(source: PluginSource) -> None:
    """Mark what is on disk of a plugin, which has other values now, as outdated; messages still name what it had."""
    for file, manifest in _saved(source):
        with suppress(StoreError):
            outdated = replace(manifest, dependencies=((str(file.parent), "other values"),))
            atomic.write_json(file, outdated.to_json(), schema=FORMAT)


def _saved(source: PluginSource) -> Iterator[tuple[Path, PluginManifest]]:
    """Yield the files of a plugin in the cache, also those that other environments have."""
    for file in (cache_folder() / "index").glob("*.json"):
        with suppress(StoreError, KeyError, TypeError, ValueError):
            manifest = PluginManifest.from_json(atomic.read_json(file, schema=FORMAT))
            if (manifest.source.distribution, manifest.source.value) == (source.distribution, source.value):
                yield file, manifest


def _environment() -> str:
    """Return a digest of what every manifest depends on: our code, the Python version, and the installed packages."""
    sites = [Path(entry) for entry in search_path() if Path(entry).name in ("site-packages", "dist-packages")]
    path = os.environ.get("PYTHONPATH", "")  # a failed import may succeed with another path
    return atomic.digest_json([FORMAT, sys.version, sys.executable, path, _core_stamps(), *map(_stamp, sites)])


@cache
def _core_stamps() -> list[JSON]:
    """Return the stamps of our code, once: this process keeps what it has imported."""
    core = Path(__file__).parents[1]
    files = [
        file for name in _CORE for file in ([core / name] if name.endswith(".py") else (core / name).rglob("*.py"))
    ]
    return list(map(_stamp, sorted(files)))


def _key(source: PluginSource, environment: str) -> str:
    files = _builtin_stamps(source) if source.is_builtin else [[str(it), _content(it)] for it in source.files()]
    return atomic.digest_json([environment, list(vars(source).values()), files])


@lru_cache(maxsize=64)
def _builtin_stamps(source: PluginSource) -> list[JSON]:
    """Return the stamps of the files of a built-in plugin, read once in a process."""
    return list(map(_stamp, source.files()))


def _content(path: Path) -> str:
    """Return a digest of a file, of its size and time if it is large, and "" if it cannot be read."""
    try:
        status = path.stat()
        large = f"{status.st_size} {status.st_mtime_ns}"
        return large if status.st_size > LARGE else atomic.digest(path.read_bytes())
    except OSError:
        return ""


def _stamp(path: Path) -> list[JSON]:
    try:
        status = path.stat()
    except OSError:
        return [str(path)]
    return [str(path), status.st_mtime_ns, status.st_size if path.suffix else 0]


def _writable(folder: Path, temporary: Path) -> Path:
    """Return the cache folder, or the temporary one if the cache folder is not writable."""
    try:
        atomic.make_folder(folder)
    except StoreError:
        return temporary
    return folder if os.access(folder, os.W_OK) else temporary


def _prune(folder: Path) -> None:
    with suppress(OSError):  # another process may prune at the same time
        files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
        for file in files[MAX_FILES:]:
            file.unlink(missing_ok=True)


def load_requested() -> None:
    """Load the plugins on standard input; write each manifest at once, since the next plugin may end the process."""
    os.environ["OMP_NUM_THREADS"] = "1"
    opened: set[str] = set()
    sys.addaudithook(partial(_note_opened_file, opened))
    hashes = CodeHashes()
    for source, path in json.load(sys.stdin):
        loaded = load_plugin(PluginSource(**source), seconds=0)  # the reader ends this process in time
        manifest = _with_values(loaded, hashes, opened)
        atomic.write_json(Path(path), manifest.to_json(), schema=FORMAT)
    hashes.save()


def _note_opened_file(opened: set[str], event: str, arguments: tuple[Any, ...]) -> None:
    """Note a file that was opened for reading, by whatever part of Python."""
    if event == "open" and isinstance(arguments[0], str | bytes) and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
        opened.add(os.path.abspath(os.fsdecode(arguments[0])))  # noqa: PTH100  # the folder may change later


def _with_values(loaded: LoadedPlugin, hashes: CodeHashes, opened: Collection[str]) -> PluginManifest:
    """Return the manifest of a plugin with the values of its components, and the files that these depend on."""
    manifest = loaded.manifest
    entries = tuple(
        replace(entry, values=_stored_values(entry, loaded.classes[entry.slot, entry.name], hashes))
        for entry in manifest.entries
    )
    if manifest.source.is_builtin:
        return replace(manifest, entries=entries)
    files = {Path(file) for entry in entries for file in (entry.file, *entry.values.files) if file}
    code = dependencies(files | {*manifest.source.files()}, hashes).files
    paths = {*code, *filter(_is_data, map(Path, [*opened]))} - {*manifest.source.files()}
    return replace(manifest, entries=entries, dependencies=tuple((str(it), _content(it)) for it in sorted(paths)))


def _stored_values(entry: Entry, component: type, hashes: CodeHashes) -> ComponentValues:
    """Return the values of a component without what follows from its file; those of ours change with paribus only."""
    from paribus.registry.component_values import component_values

    values = component_values(component, entry.slot, hashes)
    code = dependencies([Path(entry.file)] if entry.file else [], hashes, external=not entry.source.is_builtin)
    files = tuple(file for file in values.files if Path(file).resolve() not in code.files)
    return replace(values, files=files, parts={} if entry.source.is_builtin else values.parts)


def _is_data(path: Path) -> bool:
    """Return whether a plugin depends on a file that was read while it was imported: neither code, nor a library's."""
    if path.suffix in CODE or path.is_relative_to(cache_folder()) or not path.is_file():
        return False
    package = package_of_file(str(path))
    is_library = package is not None and (package.ignored or package.version or not (package.folders or package.file))
    return not is_library and not str(path).startswith(SYSTEM)

"""Loading of plugins, from entry points of installed distributions and from files that the user names.

An error in one plugin is recorded in its manifest and hides no other plugin.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import re
import signal
import sys
import threading
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn, final

import pluggy

from paribus import hookspecs
from paribus.errors import Problem, SpecError, closest_match
from paribus.hookspecs import SLOTS
from paribus.registry.class_reader import read_component, slot_class
from paribus.registry.component_index import Entry, LoadFailure, PluginManifest, PluginSource
from paribus.registry.return_types import check_hooks, check_methods

GROUP = "paribus"
CLASS_SECONDS: Final = 120  # limit for the class of an indexed plugin, with torch, if it is the first to import it
LOAD_SECONDS: Final = 30  # limit for one plugin, besides the import of torch, which can take a minute


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
        if allowed is None or source.is_builtin or {source.name, source.distribution} & {*allowed}
    )
    return tuple(sorted({*installed, *file_sources(plugins)}))


def file_sources(paths: Sequence[Path | str]) -> list[PluginSource]:
    """Return the sources of plugin files, each file once."""
    sources = (_file_source(Path(path)) for path in reversed(paths))
    return list({source.value: source for source in sources}.values())


def search_path() -> list[str]:
    """Return `sys.path` without the working folder that `python -m` or `-c` puts first."""
    try:
        folder = str(Path.cwd())
    except FileNotFoundError:  # it was deleted
        folder = ""
    starts_with_cwd = bool(sys.path) and not sys.flags.safe_path and sys.path[0] in ("", folder)
    return [entry for entry in (sys.path[1:] if starts_with_cwd else sys.path) if entry]


def _entry_points() -> Iterator[PluginSource]:
    names: set[str] = set()
    for distribution in importlib.metadata.distributions(path=search_path()):
        text = distribution.read_text("entry_points.txt")
        if text is None or GROUP not in text:
            continue
        points = [point for point in distribution.entry_points if point.group == GROUP]
        if not points:
            continue
        metadata = distribution.metadata  # parsed at each access, also of `version`
        name = re.sub(r"[-_.]+", "-", metadata["Name"]).lower()
        if name in names:  # the first one on the path hides the rest, as for imports
            continue
        names.add(name)
        needs = next((need for need in distribution.requires or () if re.match(r"paribus(?![\w.-])", need)), "")
        for point in points:
            yield PluginSource(name, point.name, point.value, metadata["Version"], needs)


def _file_source(path: Path) -> PluginSource:
    if path.suffix != ".py" or not path.is_file():
        kind = "a folder" if path.is_dir() else "another file" if path.exists() else "a path that does not exist"
        message = f"expected a plugin in one Python file, got {kind}"
        valid = "a path that ends in .py"
        raise SpecError(Problem(code="not-a-plugin", location=str(path), message=message, valid=valid))
    return PluginSource("", str(path), str(path.resolve()))


@final
@dataclass
class LoadedPlugin:
    """A loaded plugin: its manifest, its classes, and the object whose lifecycle hooks pluggy calls."""

    manifest: PluginManifest
    classes: dict[tuple[str, str], type] = field(default_factory=dict)
    plugin: object | None = None


@final
class _RefusedError(Exception):
    """A known mistake of a plugin, whose message is complete without a stack frame."""


@final
class _LoadTimeoutError(BaseException):
    """A plugin took too long. Not an `Exception`, which a loop of the plugin may catch."""


def load_plugin(source: PluginSource, seconds: float | None = None) -> LoadedPlugin:
    """Load a plugin. Never raises, except for Ctrl-C: failures are in the manifest.

    A plugin that takes longer than `seconds` (default: `LOAD_SECONDS`; 0: no limit) fails.
    """
    classes: dict[tuple[str, str], type] = {}
    try:
        _check_requirement(source)
        importlib.import_module("torch")
        with _time_limit(LOAD_SECONDS if seconds is None else seconds):
            plugin = _import(source)
            manager = _manager(plugin, source)
            hooks = tuple(sorted(_marked_hooks(plugin)))
            entries, failures = _components(source, plugin, manager, classes)
            presets, studies = (_folder(name, manager) if name in hooks else "" for name in ("presets", "studies"))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return LoadedPlugin(PluginManifest(source, broken=(LoadFailure(source, summarize_error(error)),)))
    manifest = PluginManifest(source, tuple(entries), tuple(failures), presets, studies, hooks)
    return LoadedPlugin(manifest, classes, plugin)


def load_class(source: PluginSource, slot: str, name: str) -> type[Any]:
    """Return the class of a component that an index has; its options, which the index has too, are not read again."""
    with _time_limit(CLASS_SECONDS):
        plugin = _import(source)
        return _returned_components(slot, getattr(_manager(plugin, source).hook, slot)())[name]


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise an error in code that takes longer; only the main thread can be interrupted, so others have no limit."""
    if not seconds or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> NoReturn:
        raise _LoadTimeoutError(f"it did not finish loading within {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, stop)
    delay, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, delay, interval)  # of the caller, such as a test's time limit
        signal.signal(signal.SIGALRM, handler)


def summarize_error(error: BaseException, *, file: str = "") -> str:
    """Format an error as one line, with its notes and the last frame in a file, or else outside the import system."""
    message = next(iter(str(error).splitlines()), "")
    if isinstance(error, _RefusedError):
        return message
    hidden = ("importlib", __file__)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not any(name in f.filename for name in hidden)]
    frame = next((f for f in reversed(frames) if f.filename == file), frames[-1] if frames else None)
    location = "" if frame is None else f" ({frame.filename}:{frame.lineno}, in {frame.name})"
    if isinstance(error, SyntaxError):
        location = f" ({error.filename}:{error.lineno})"
    if isinstance(error, _LoadTimeoutError):
        return f"{message}{location}"
    notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {message}{location}{notes}{_sibling_hint(error)}"


def _sibling_hint(error: BaseException) -> str:
    """Explain a failed import of a file in the same folder, which is not on the import path."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    file = Path(frames[-1].filename).with_name(f"{error.name.partition('.')[0]}.py") if frames else None
    if file is None or not file.is_file():
        return ""
    return f"; {file.name} is in the same folder, but a plugin of several files must be an installed package"


def _check_requirement(source: PluginSource) -> None:
    if not source.needs:
        return
    from packaging.requirements import Requirement

    requirement = Requirement(source.needs)
    version = importlib.metadata.version("paribus")
    if (requirement.marker is None or requirement.marker.evaluate()) and not requirement.specifier.contains(
        version, prereleases=True
    ):
        raise _RefusedError(f"expected paribus {requirement.specifier}, got paribus {version}")


def _import(source: PluginSource) -> object:
    if source.distribution:
        return importlib.metadata.EntryPoint(source.name, source.value, GROUP).load()
    if source.module in sys.modules:  # the same file again: its classes must be the same objects
        return sys.modules[source.module]
    spec = importlib.util.spec_from_file_location(source.module, source.value)
    assert spec is not None, "a path that ends in .py has a loader"
    assert spec.loader is not None, "a path that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[source.module] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[source.module]
        raise
    return module


def _marked_hooks(plugin: object) -> dict[str, Any]:
    """Return the functions of a plugin that are marked as hooks."""
    members = ((name, getattr(plugin, name, None)) for name in dir(plugin))
    return {name: member for name, member in members if isinstance(getattr(member, "paribus_impl", None), dict)}


def _manager(plugin: object, source: PluginSource) -> pluggy.PluginManager:
    hooks = _marked_hooks(plugin)
    if not hooks:
        raise _RefusedError("it has no hook: mark its functions with `@paribus.hookimpl`")
    for name, function in hooks.items():
        _check_signature(name, function)
    manager = pluggy.PluginManager("paribus")
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, str(source))
    manager.check_pending()
    return manager


def _check_signature(name: str, function: Any) -> None:
    """Reject a hook that pluggy would reject, with both sides of the mismatch."""
    known = {hook for hook, value in vars(hookspecs).items() if hasattr(value, "paribus_spec")}
    definition = f"def {name}{inspect.signature(function)}"
    if name not in known:
        near = closest_match(name, known)
        rest = f"did you mean `{_definition(near)}`?" if near else f"valid: {', '.join(sorted(known))}"
        raise _RefusedError(f"unknown hook `{definition}`; {rest}")
    parameters = inspect.signature(getattr(hookspecs, name)).parameters
    if any(parameter not in parameters for parameter in inspect.signature(function).parameters):
        raise _RefusedError(f"expected the hook `{_definition(name)}`, got `{definition}`")


def _definition(name: str) -> str:
    return f"def {name}{inspect.signature(getattr(hookspecs, name))}".replace("'", "")


def _components(
    source: PluginSource, plugin: object, manager: pluggy.PluginManager, classes: dict[tuple[str, str], type]
) -> tuple[list[Entry], list[LoadFailure]]:
    entries: list[Entry] = []
    failures: list[LoadFailure] = []
    for slot in SLOTS:
        if slot not in _marked_hooks(plugin):
            continue
        for name, component in _returned_components(slot, getattr(manager.hook, slot)()).items():
            try:
                entries.append(read_component(slot, name, component, source))
                classes[slot, name] = component
                if not source.is_builtin:
                    check_methods(component, slot, name)
            except (TypeError, ValueError) as error:
                failures.append(LoadFailure(source, str(error), slot, str(name)))
    return entries, failures


def _returned_components(slot: str, results: list[Any]) -> Mapping[str, type]:
    components = results[0] if results else None
    if not isinstance(components, Mapping):
        base = slot_class(slot).__name__
        raise _RefusedError(f"the hook `{slot}`: expected Mapping[str, type[{base}]], got {type(components).__name__}")
    return components


def _folder(name: str, manager: pluggy.PluginManager) -> str:
    results = getattr(manager.hook, name)()
    folder = results[0] if results else None
    if not isinstance(folder, Path):
        raise _RefusedError(f"the hook `{name}`: expected a Path, got {type(folder).__name__}")
    if not folder.is_dir():
        raise _RefusedError(f"the hook `{name}`: expected a folder, got {folder}")
    return str(folder.resolve())


def lifecycle_hooks(loaded: Iterable[LoadedPlugin]) -> pluggy.HookRelay:
    """Return the lifecycle hooks of all plugins that were loaded."""
    manager = pluggy.PluginManager("paribus")
    manager.add_hookspecs(hookspecs)
    for plugin in loaded:
        if plugin.plugin is not None:
            manager.register(plugin.plugin, str(plugin.manifest.source))
    check_hooks(manager.hook)
    return manager.hook

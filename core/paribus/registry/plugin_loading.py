"""Loads one plugin, apart from all others: whatever goes wrong in it is told of it, and hides no other."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import pluggy

from paribus import hookspecs
from paribus.errors import closest_match
from paribus.hookspecs import SLOTS
from paribus.registry.class_reader import contract, entry_of
from paribus.registry.component_index import Broken, Entry, Piece
from paribus.registry.plugin_sources import GROUP, Door


@final
@dataclass
class Loaded:
    """A plugin after loading: its piece of the index, its classes, and what pluggy calls for a trial's life."""

    piece: Piece
    classes: dict[tuple[str, str], type] = field(default_factory=dict)
    plugin: object | None = None


@final
class _RefusedError(Exception):
    """A plugin did something that we understand and refuse; no frame would add to it."""


def load(door: Door) -> Loaded:
    """The plugin behind a door. It never raises, save for Ctrl-C: what broke is in the piece."""
    found = Loaded(Piece(door))
    try:
        _requirement(door)
        plugin = _imported(door)
        manager = _manager(plugin, door)
        hooks = tuple(sorted(_marked(plugin)))
        found.plugin = plugin
        entries, broken = _components(door, plugin, manager, found.classes)
        folders = {name: _folder(name, manager, plugin) for name in ("presets", "studies") if name in hooks}
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return Loaded(Piece(door, broken=(Broken(door, why(error)),)))
    found.piece = Piece(door, tuple(entries), tuple(broken), **folders, hooks=hooks)
    return found


def why(error: BaseException) -> str:
    """An error in one line, with the last frame that is not the import system's."""
    first = next(iter(str(error).splitlines()), "")
    if isinstance(error, _RefusedError):
        return first
    ours = ("importlib", __file__)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not any(name in f.filename for name in ours)]
    last = f" ({frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    if isinstance(error, SyntaxError):
        last = f" ({error.filename}:{error.lineno})"
    return f"{type(error).__name__}: {first}{last}{_beside(error)}"


def _beside(error: BaseException) -> str:
    """A plugin in one file finds nothing beside itself, as its folder is on nobody's path."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    beside = Path(frames[-1].filename).with_name(f"{error.name.partition('.')[0]}.py") if frames else None
    if beside is None or not beside.is_file():
        return ""
    return f"; {beside.name} lies beside it, but a plugin of several files is a package that is installed"


def _requirement(door: Door) -> None:
    if not door.needs:
        return
    from packaging.requirements import Requirement

    requirement = Requirement(door.needs)
    have = importlib.metadata.version("paribus")
    if (requirement.marker is None or requirement.marker.evaluate()) and not requirement.specifier.contains(
        have, prereleases=True
    ):
        raise _RefusedError(f"it needs paribus {requirement.specifier}, but this is paribus {have}")


def _imported(door: Door) -> object:
    if door.distribution:
        return importlib.metadata.EntryPoint(door.name, door.value, GROUP).load()
    if door.module in sys.modules:  # the same file as before: its classes are to be the same, too
        return sys.modules[door.module]
    spec = importlib.util.spec_from_file_location(door.module, door.value)
    assert spec is not None, "a path that ends in .py has a loader"
    assert spec.loader is not None, "a path that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[door.module] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[door.module]
        raise
    return module


def _marked(plugin: object) -> dict[str, Any]:
    """The functions of a plugin that are marked as hooks."""
    members = ((name, getattr(plugin, name, None)) for name in dir(plugin))
    return {name: member for name, member in members if isinstance(getattr(member, "paribus_impl", None), dict)}


def _manager(plugin: object, door: Door) -> pluggy.PluginManager:
    marked = _marked(plugin)
    if not marked:
        raise _RefusedError("it has no hook: mark its functions with `@paribus.hookimpl`")
    for name, function in marked.items():
        _signature(name, function)
    manager = pluggy.PluginManager("paribus")
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, str(door))
    manager.check_pending()
    return manager


def _signature(name: str, function: Any) -> None:
    """What pluggy refuses, told with both sides of the mismatch."""
    known = {hook for hook, value in vars(hookspecs).items() if hasattr(value, "paribus_spec")}
    found = f"def {name}{inspect.signature(function)}"
    if name not in known:
        near = closest_match(name, known)
        meant = f"; did you mean `{_expected(near)}`?" if near else f"; valid: {', '.join(sorted(known))}"
        raise _RefusedError(f"`{found}` is no hook of paribus{meant}")
    allowed = inspect.signature(getattr(hookspecs, name)).parameters
    if any(parameter not in allowed for parameter in inspect.signature(function).parameters):
        raise _RefusedError(f"the hook `{found}` takes what nobody gives it; expected: `{_expected(name)}`")


def _expected(name: str) -> str:
    return f"def {name}{inspect.signature(getattr(hookspecs, name))}".replace("'", "")


def _components(
    door: Door, plugin: object, manager: pluggy.PluginManager, classes: dict[tuple[str, str], type]
) -> tuple[list[Entry], list[Broken]]:
    entries: list[Entry] = []
    broken: list[Broken] = []
    for slot in SLOTS:
        if slot not in _marked(plugin):
            continue
        for name, component in _offered(slot, getattr(manager.hook, slot)()).items():
            try:
                entries.append(entry_of(slot, name, component, door))
                classes[slot, name] = component
            except (TypeError, ValueError) as error:
                broken.append(Broken(door, str(error), slot, str(name)))
    return entries, broken


def _offered(slot: str, results: list[Any]) -> Mapping[str, type]:
    offered = results[0] if results else None
    if not isinstance(offered, Mapping):
        base = contract(slot).__name__
        what = f"the hook `{slot}` returned {type(offered).__name__}; expected: Mapping[str, type[{base}]]"
        raise _RefusedError(what)
    return offered


def _folder(name: str, manager: pluggy.PluginManager, plugin: object) -> str:
    results = getattr(manager.hook, name)()
    folder = results[0] if results else None
    if not isinstance(folder, Path):
        raise _RefusedError(f"the hook `{name}` returned {type(folder).__name__}; expected: a Path")
    if not folder.is_dir():
        raise _RefusedError(f"the hook `{name}` returned {folder}, which is no folder")
    return str(folder.resolve())


def lifecycle(loaded: Iterable[Loaded]) -> pluggy.HookRelay:
    """The hooks of a trial's life, of all plugins that loaded."""
    manager = pluggy.PluginManager("paribus")
    manager.add_hookspecs(hookspecs)
    for one in loaded:
        if one.plugin is not None:
            manager.register(one.plugin, str(one.piece.door))
    return manager.hook

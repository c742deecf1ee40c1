"""The registry: an immutable object with the classes of all components, and the index of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from paribus.errors import PluginError, Problem
from paribus.registry.class_reader import entry_of
from paribus.registry.component_index import Entry, Index, Piece
from paribus.registry.plugin_loading import lifecycle, load
from paribus.registry.plugin_sources import Door, doors

if TYPE_CHECKING:
    import pluggy


@final
@dataclass(frozen=True, repr=False)
class Registry:
    """What is installed, as loaded: `get` gives classes, `index` what is known of them without importing any."""

    index: Index
    hook: pluggy.HookRelay = field(repr=False)
    files: tuple[Path, ...] = ()
    """The plugins that were named as files: another process loads these to have the same registry."""
    local: tuple[str, ...] = ()
    """What `with_` added, as slot.name: no other process can have it."""
    _classes: Mapping[tuple[str, str], type[Any]] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        counts = ", ".join(f"{slot} {len(entries)}" for slot, entries in self.index.entries.items() if entries)
        return f"<registry of {len(self.index.pieces)} plugins: {counts}>"

    def get(self, slot: str, name: str) -> type[Any]:
        """The class, or an error that says what there is, what is near, and which broken plugin may have it."""
        entry = self.index.find(slot, name)
        return self._classes[entry.slot, entry.name]

    def with_(self, **slots: Mapping[str, type[Any]]) -> Registry:
        """This registry and more components, for a notebook: `registry.with_(attention={"mine": Mine})`."""
        door = Door("", "with_()")
        entries: list[Entry] = []
        classes: dict[tuple[str, str], type[Any]] = {}
        for slot, components in slots.items():
            if slot not in self.index.entries:
                raise PluginError(_problem(slot, f'unknown slot "{slot}"'))
            for name, component in components.items():
                try:
                    entries.append(entry_of(slot, name, component, door))
                except (TypeError, ValueError) as error:
                    raise PluginError(_problem(f"{slot}.{name}", str(error))) from error
                classes[slot, name] = component
        index = Index((*self.index.pieces, Piece(door, tuple(entries))))
        for slot, name in classes:
            index.find(slot, name)  # taken: an error that names both claimants
        local = tuple(sorted({*self.local, *(f"{slot}.{name}" for slot, name in classes)}))
        return replace(self, index=index, local=local, _classes={**self._classes, **classes})


@final
class Lazy:
    """The classes of an index, each plugin loaded when one of its classes is first asked for."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._loaded: dict[Door, Mapping[tuple[str, str], type[Any]]] = {}

    def get(self, slot: str, name: str) -> type[Any]:
        """The class, or the error that the index has for it."""
        door = self.index.find(slot, name).door
        if door not in self._loaded:
            self._loaded[door] = load(door).classes
        return self._loaded[door][slot, name]


def installed(
    *, plugins: Sequence[Path | str] = (), only: Collection[str] | None = None, no_plugins: bool = False
) -> Registry:
    """All plugins that are installed, loaded here and now; a file among `plugins` that fails to load is an error."""
    loaded = [load(door) for door in doors(plugins, only=only, no_plugins=no_plugins)]
    pieces = tuple(one.piece for one in loaded)
    refuse_broken_files(pieces)
    files = tuple(Path(piece.door.value) for piece in pieces if not piece.door.distribution)
    classes = {key: component for one in loaded for key, component in one.classes.items()}
    return Registry(Index(pieces), lifecycle(loaded), files, (), classes)


def refuse_broken_files(pieces: Sequence[Piece]) -> None:
    """A file was named by the user, so it is needed: that it is broken is an error, and no warning."""
    broken = [broken for piece in pieces if not piece.door.distribution for broken in piece.broken]
    if broken:
        raise PluginError(*(Problem(code="plugin-failed", message=str(one)) for one in broken))


def _problem(path: str, what: str) -> Problem:
    return Problem(code="plugin-failed", path=path, message=what)

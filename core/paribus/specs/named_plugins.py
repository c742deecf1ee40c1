"""Plugins that a study, a spec or a record names: the key `plugins`, and the plugins that a trial was made with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from paribus.errors import PluginError, Problem, StoreError, closest_match, join_names
from paribus.registry import Index
from paribus.specs.components import components_of
from paribus.specs.model_sources import SOURCES
from paribus.specs.tree import UNREAD, Tree, value_text
from paribus.specs.values import Validator
from paribus.specs.yaml_reader import read_file
from paribus.storage.code_hash import CodeHashes
from paribus.storage.saved_model import SavedModel, find_model, read_model

PLUGINS: Final = "plugins"  # the key, and that of the plugins of a trial or a saved model
FILE: Final = ".py"


def place_files(tree: Tree, folder: Path) -> Tree:
    """Make the plugin files of a study or spec, and those of a study's base, relative to the working folder."""
    base = tree.data.get("base")
    for block in (tree.data, base if isinstance(base, dict) else {}):
        if isinstance(names := block.get(PLUGINS), list):
            block[PLUGINS] = [str(folder / name) if _is_file(name) else name for name in names]
    return tree


def files_of_study(tree: Tree, index: Index) -> list[Path]:
    """Return the plugin files that a study, or its base, names, and that may be loaded."""
    base = tree.data.get("base")
    files = [*_files(tree.data, index), *_files(base, index)]
    if isinstance(base, str) and _is_path(base) and Path(base).is_file():
        files += files_of_spec(base, index)
    return files


def files_of_starts(tree: Tree, index: Index) -> list[Path]:
    """Return the plugin files that the saved models need from which a study's base or stages start, or learn."""
    stages = tree.data.get("stages")
    blocks = [tree.data.get("base"), *(stages.values() if isinstance(stages, Mapping) else ())]
    return [file for block in blocks for file in files_of_sources(block, (), index)]


def files_of_spec(source: Any, index: Index) -> list[Path]:
    """Return the plugin files that a spec names: a path or a mapping; a preset has none."""
    return [*_files(_data(source), index)]


def files_of_sources(source: Any, overrides: Sequence[str], index: Index) -> list[Path]:
    """Return the plugin files that the saved models under `from` and `teacher` of a spec need."""
    words = (word.partition("=") for word in overrides)
    data = {**_data(source), **{key.removesuffix(".name"): value for key, _, value in words}}
    return [file for key in SOURCES for file in _files_of_source(data.get(key), index)]


def may_name_files(source: Any, overrides: Sequence[str]) -> bool:
    """Return whether a spec may need plugin files: a preset's name without a saved model needs none."""
    return not isinstance(source, str) or _is_path(source) or any(word.startswith(SOURCES) for word in overrides)


def _data(source: Any) -> Mapping[str, Any]:
    if isinstance(source, str | Path):
        path = Path(source)
        return place_files(read_file(path), path.parent).data if _is_path(str(source)) and path.is_file() else {}
    return source if isinstance(source, Mapping) else {}


def files_of_model(model: SavedModel, index: Index) -> list[Path]:
    """Return the plugin files that a saved model needs besides those of the index, or raise an error without one.

    A file is loaded only if its code is that of the training.
    """
    files, problems = recorded_files(model.plugins.items(), index)
    if problems:
        raise PluginError(*problems.values())
    return files


def recorded_files(
    recorded: Iterable[tuple[str, Mapping[str, str]]], index: Index
) -> tuple[list[Path], dict[str, Problem]]:
    """Return the plugin files of recorded components that an index lacks, and the problems of those without a file.

    Several records may have a component, made with older code of its file, too.
    """
    files: dict[str, Path] = {}
    problems: dict[str, Problem] = {}
    for component, plugin in recorded:
        slot, _, name = component.partition(".")
        if (slot, name) in index.claims:
            continue
        if problem := _recorded_problem(component, plugin, index):
            problems[component] = problem
        else:
            files[component] = Path(plugin["file"])
    missing = {component: problem for component, problem in problems.items() if component not in files}
    return list(dict.fromkeys(files.values())), missing


def plugins_of(components: Iterable[tuple[str, str]], index: Index, hashes: CodeHashes) -> dict[str, dict[str, str]]:
    """Return the plugin of each component, as slot.name, that does not come with Paribus."""
    plugins: dict[str, dict[str, str]] = {}
    for slot, name in sorted(components):
        source = index.find(slot, name).source
        if source.distribution and not source.is_builtin:
            plugins[f"{slot}.{name}"] = {"distribution": source.distribution, "version": source.version}
        elif not source.distribution and source.value:
            plugins[f"{slot}.{name}"] = {"file": source.value, "code": hashes.hash(Path(source.value))}
    return plugins


def plugins_of_spec(spec: Mapping[str, Any], index: Index) -> dict[str, dict[str, str]]:
    """Return the plugin of each component of a resolved spec, as slot.name, that does not come with Paribus."""
    return plugins_of(set(components_of(spec, index)), index, CodeHashes())


def check_plugins(validator: Validator, plugins: Any, kind: str) -> None:
    """Report the plugins under `plugins` that are not loaded; `kind` is study or spec."""
    if plugins is UNREAD:
        return
    if not isinstance(plugins, list | tuple) or not all(isinstance(name, str) for name in plugins):
        message = f"expected a list of names, got {value_text(plugins)}"
        validator.add_error("wrong-type", (PLUGINS,), message, f"{PLUGINS}: [./mine.py, paribus-sample]")
        return
    sources = [piece.source for piece in validator.index.plugins]
    names = sorted({source.name for source in sources} | {it.distribution for it in sources if it.distribution})
    for number, name in enumerate(plugins):
        keys = (PLUGINS, number)
        for broken in validator.index.broken:
            if name in (broken.source.name, broken.source.distribution):
                validator.add_error("plugin-failed", keys, f"this {kind} needs this plugin, but {broken}")
        if _is_file(name):
            if Path(name).resolve() not in validator.index.plugin_files:
                validator.add_error("plugin-missing", keys, *_missing_file(name, kind, validator.index))
        elif name not in names:
            message = f'unknown plugin "{name}", which this {kind} needs'
            valid = f"{join_names(names)}, or a file such as ./mine.py"
            validator.add_error("plugin-missing", keys, message, valid, closest_match(name, names))


def _missing_file(name: str, kind: str, index: Index) -> tuple[str, str]:
    if not Path(name).is_file():
        return f"this {kind} needs the plugin {name}, which does not exist", f"a file, relative to that of the {kind}"
    if not index.loads_named:
        return f"this {kind} needs the plugin {name}, but plugins that it names are switched off", f"--plugin {name}"
    return f"the plugin {name} is not loaded", f"--plugin {name}"


def _recorded_problem(component: str, plugin: Mapping[str, str], index: Index) -> Problem | None:
    """Return the reason why the recorded plugin of a component is not loaded, or None if it may be."""
    if "distribution" in plugin:
        name = f"{plugin['distribution']} {plugin.get('version', '')}".strip()
        message = f"the record was made with {name}, which is not installed"
        hint = f"pip install {plugin['distribution']}"
    else:
        path = Path(plugin["file"])
        hint = f"`--plugin {path}` loads it"
        if not path.is_file():
            message = f"the record was made with the plugin {path}, which does not exist"
            hint = f"`--plugin {path.name}` names it at another place"
        elif not index.loads_named:
            message = f"the record was made with the plugin {path}, but plugins that it names are switched off"
        elif CodeHashes().hash(path) != plugin.get("code"):
            message = (
                f"the record was made with the plugin {path}, which has changed since, so it is not loaded by itself"
            )
        else:
            return None
    return Problem(code="plugin-missing", path=component, message=message, hint=hint)


def _files_of_source(node: Any, index: Index) -> list[Path]:
    """Return the plugin files that the model under `from` or `teacher` needs; that it exists is checked elsewhere."""
    name = node.get("name") if isinstance(node, Mapping) else node
    if not isinstance(name, str) or not name:
        return []
    try:
        model = read_model(find_model(name))
    except StoreError:
        return []
    return files_of_model(model, index)


def _files(data: Any, index: Index) -> Iterator[Path]:
    """Yield the existing files under `plugins`, unless only chosen plugins may be loaded."""
    names = data.get(PLUGINS) if isinstance(data, Mapping) else None
    listed: Iterable[Any] = names if isinstance(names, list | tuple) and index.loads_named else ()
    yield from (Path(name) for name in listed if _is_file(name) and Path(name).is_file())


def _is_file(name: Any) -> bool:
    return isinstance(name, str) and name.endswith(FILE)


def _is_path(source: str) -> bool:
    return source.endswith((".yaml", ".yml")) or "/" in source

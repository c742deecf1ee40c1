"""Options behind a key of a spec or study: `optimizer.lr`, `attention.gqa.kv_heads`, `budget.tokens`, `vary`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, final

from paribus.errors import Problem, SpecError, closest_match, join_names
from paribus.hookspecs import SLOTS
from paribus.registry.class_reader import group_options
from paribus.schema import Kind, Option
from paribus.specs import fields
from paribus.specs.model_sources import SOURCES, source_options
from paribus.specs.trainer_options import trainer_options
from paribus.studies import study_keys

if TYPE_CHECKING:
    from paribus.registry import Index


@final
class OwnedOption(NamedTuple):
    """An option, and the component or section that has it."""

    owner: str  # "optimizer.adamw", "dims"
    option: Option


def plain_key(key: str) -> str:
    """Return the key of a whole model that a key of a part, a list or a base sets: `attention.kv_heads`.

    `parts.decoder.cross.attention.kv_heads`, `attention.0.kv_heads` and `base.attention.kv_heads` are examples.
    """
    words = [word for word in key.split(".") if not word.isdecimal()]
    if words[0] == "base" and len(words) > 1:
        words = words[1:]
    if words[0] == "parts" and len(words) > 2:
        words = words[3:] if words[2] == "cross" and len(words) > 3 else words[2:]
    if words[0] == "evaluate" and len(words) > 1:
        words[0] = "objective"
    return ".".join(words[:1] if words[1:] == ["name"] and words[0] in SLOTS else words)


def sections() -> Mapping[str, tuple[Option, ...]]:
    """Return the options of each key of a spec or study that is no slot."""
    return {
        "study": tuple(study_keys.STUDY_OPTIONS.values()),
        "program": group_options(study_keys.ProgramKeys),
        "dims": fields.DIMS,
        "data": fields.DATA,
        "freeze": fields.FREEZE_OPTIONS,
        "budget": group_options(study_keys.Budget),
        "dropout": (fields.DROPOUT,),
        "seed": (fields.SEED,),
    }


def find_options(index: Index, key: str) -> list[OwnedOption]:
    """Return the options that a key sets, by the components or sections that have it; empty if none has."""
    section, *rest = key.split(".")
    if not rest:
        return [
            found for study in ("study", "program") for found in _in_options(index, study, sections()[study], [key])
        ]
    if section in SLOTS:
        return [*_in_slot(index, section, rest)]
    options = [(owner, options) for name, owner, options in _all_sections() if name == section]
    if options:
        return [found for owner, its in options for found in _in_options(index, owner, its, rest)]
    slots = [slot for slot in SLOTS if section in index.entries[slot]]  # gqa.kv_heads
    return [found for slot in slots for found in _in_slot(index, slot, [section, *rest])]


def with_owners(options: Iterable[OwnedOption]) -> list[tuple[Option, list[str]]]:
    """Return each different option with all that have it."""
    groups: list[tuple[Option, list[str]]] = []
    for owner, option in options:
        names = next((names for known, names in groups if known == option), None)
        if names is None:
            groups.append((option, [owner]))
        else:
            names.append(owner)
    return groups


def _all_sections() -> Iterator[tuple[str, str, tuple[Option, ...]]]:
    """Yield each section that is no slot, its description, and its options."""
    yield from ((name, name, options) for name, options in sections().items())
    yield from ((name, name, source_options(name)) for name in SOURCES)
    yield "trainer", "trainer", trainer_options()
    for study, owner in (("study", ""), ("program", " of a program")):
        for option in sections()[study]:
            if options := _inner(option.kind):
                yield option.name, f"{option.name}{owner}", options


def _inner(kind: Kind) -> tuple[Option, ...]:
    """Return the options of a group, or of each item of a list of groups."""
    return kind.options or tuple(option for item in kind.items for option in item.options)


def _in_slot(index: Index, slot: str, words: Sequence[str], owner: str = "") -> Iterator[OwnedOption]:
    """Yield the options of all components of a slot, or of the one that the first word names."""
    entries = index.entries[slot]
    is_named = words[0] in entries and len(words) > 1
    for entry in [entries[words[0]]] if is_named else entries.values():
        name = f"{owner}={entry.name}" if owner else f"{slot}.{entry.name}"
        yield from _in_options(index, name, entry.options, words[is_named:])


def _in_options(index: Index, owner: str, options: Sequence[Option], words: Sequence[str]) -> Iterator[OwnedOption]:
    for option in options:
        if option.name.rstrip("_") != words[0]:
            continue
        if len(words) == 1:
            yield OwnedOption(owner, option)
        elif option.kind.name == "slot":
            yield from _in_slot(index, option.kind.slot, words[1:], f"{owner}.{option.name}")
        else:
            yield from _in_options(index, owner, _inner(option.kind), words[1:])


def unknown_key(index: Index, key: str) -> SpecError | None:
    """Return the error of a dotted key that its slot or section does not have, or None if it is in neither."""
    section, _, name = key.partition(".")
    components = tuple(index.entries[section]) if section in SLOTS else ()
    options = [options for known, _, options in _all_sections() if known == section]
    options += [entry.options for entry in index.entries[section].values()] if section in SLOTS else []
    names = [*components, *sorted({option.name for its in options for option in its} - {*components})]
    if not options:
        return None
    word = name.rpartition(".")[2]
    is_size = word not in names and word in {option.name for option in fields.DIMS}
    suggestion = f"dims.{word}" if is_size else closest_match(name, names) or fields.suggest_key(word, names)
    kind = "component or option" if components else "option"
    return SpecError(
        Problem(
            code="unknown-component" if components else "unknown-topic",
            path=section,
            message=f'unknown {kind} "{name}" of {section}',
            valid=join_names(names, limit=len(names)),
            suggestion=suggestion,
        )
    )

"""Two resolved specs in few words: slot by slot what differs, and of a component only what it does not do anyway.

Options and traits in words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from paribus.registry import Index, Part
from paribus.schema import AtLeast, AtMost, Divides, Limit, Option
from paribus.specs.fields import SUMMED

Plain = Mapping[str, Any]
Told = tuple[str, str, str]  # a dotted key, and both values


def differing(left: Plain, right: Plain, index: Index) -> Iterator[Told]:
    """What two resolved specs differ in: `attention: mha → gqa(kv_heads=2)`, `objective.mlm.rate: 0.15 → 0.3`."""
    for key in dict.fromkeys([*left, *right]):
        yield from _between(key, left.get(key), right.get(key), key, index)


def _between(path: str, left: Any, right: Any, slot: str, index: Index) -> Iterator[Told]:
    if left == right:
        return
    if isinstance(left, Mapping) and isinstance(right, Mapping) and left.get("name") == right.get("name"):
        for key in dict.fromkeys([*left, *right]):
            inner = key if key in index.entries else slot
            yield from _between(f"{path}.{key}", left.get(key), right.get(key), inner, index)
        return
    one, other = (_by_name(value) if slot in SUMMED else {} for value in (left, right))
    if set(one) & set(other):  # what both sums have is told option by option
        for name in dict.fromkeys([*one, *other]):
            yield from _between(f"{path}.{name}", one.get(name), other.get(name), slot, index)
        return
    yield path, spoken(left, slot, index), spoken(right, slot, index)


def _by_name(value: Any) -> dict[str, Any]:
    """Components by their names: of one, or of a list without doubles."""
    nodes = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    found = {node["name"]: node for node in nodes if isinstance(node, Mapping) and "name" in node}
    return found if len(found) == len(nodes) else {}


def spoken(value: Any, slot: str, index: Index) -> str:
    """A value of a spec, without what is so by default; `-` where there is none."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        entry = index.entries.get(slot, {}).get(str(value.get("name", "")))
        options = {option.name: option for option in entry.options} if entry is not None else {}
        return f"{value.get('name', '')}{_options(value, options, index)}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(spoken(item, slot, index) for item in value) + "]"
    return str(value)


def _options(node: Plain, known: Mapping[str, Option], index: Index) -> str:
    said = []
    for name, value in node.items():
        option = known.get(name)
        if name == "name" or (option is not None and not option.required and value == option.default):
            continue
        if option is not None and option.kind.name == "group" and isinstance(value, Mapping):
            inside = _options(value, {field.name: field for field in option.kind.options}, index)
            said += [f"{name}={inside}"] if inside else []
            continue
        said.append(f"{name}={spoken(value, option.kind.slot if option is not None else name, index)}")
    return f"({', '.join(said)})" if said else ""


_CAN: Final = {
    "causal": "hide what comes later",
    "cross": "attend to another stack",
    "documents": "keep documents of a packed row apart, and padding out",
    "padding": "keep padding out",
    "order": "follow an order of rows other than their own",
    "extra_queries": "let rows ask that no row sees, behind the others",
    "raw_memory": "give back a memory's rows as they stand",
    "residual": "be wrapped by a placement: it returns the width of the stream",
    "weights": "say how much each query weighs each key",
    "decodes": "decode step by step, keeping state",
    "any_width": "bring its rows to the width of each stack",
    "unembeds": "score rows against a vocabulary",
    "sharded": "step on parameters of which each process holds a piece",
    "compiles": "be compiled by torch",
}
_SIGHT: Final[Mapping[str, str]] = {
    "both": "needs rows that see both sides",
    "past": "needs rows that see only what came before",
    "any": "takes rows whatever they see",
}
_SAID: Final[Mapping[str, Callable[[Any], str]]] = {
    "visibility": lambda value: _SIGHT.get(value, ""),
    "hooks": lambda value: (
        f"tells where rows are by: {', '.join(value)}" if value else "tells nothing of where rows are"
    ),
    "position_hooks": lambda value: (
        f"asks a position to {', '.join(value)}" if value else "asks a position for nothing"
    ),
    "reads_keys": lambda value: "" if value == "all" else f"a row reads {value} of the others",
    "normalized": lambda value: f"the weights of a row {'sum to 1, or to less' if value else 'may sum to anything'}",
    "content_based": lambda value: "" if value else "what a row reads does not depend on what it holds",
    "final_norm": lambda value: f"{'a' if value else 'no'} norm follows the last layer",
    "needs": lambda value: f"needs {', '.join(value)}" if value else "",
    "provides": lambda value: f"has {', '.join(value)}" if value else "",
    "corrupts": lambda value: "changes what the model sees" if value else "",
    "example_kind": lambda value: f"forms examples as {value}" if value else "",
    "table": lambda value: "cannot place rows beyond its table" if value else "",
    "segments": lambda value: "tells two segments of an example apart" if value else "",
    "parts": lambda value: f"reads the stacks body, {', '.join(value)}" if value else "",
    "optional_parts": lambda value: f"reads {', '.join(value)} where there is one",
    "adds_padding": lambda value: "fills examples up with padding" if value else "",
    "sets_order": lambda value: "gives rows an order of their own" if value else "",
    "bias": lambda value: "" if value == "none" else f"its bias depends on {value}",
    "modality": lambda value: "" if value == "text" else f"of {value}",
    "packs_documents": lambda value: (
        f"takes {'rows of several whole documents' if value else 'no row of several documents'}"
    ),
    "provides_if": lambda value: ", ".join(f"{what} where `{option}` is given" for what, option in value.items()),
    "document_facts": lambda value: f"tells of its documents: {', '.join(value)}" if value else "",
    "teacher": lambda value: ", ".join(f"`{option}` is its teacher's dims.{size}" for size, option in value.items()),
    "options_from_corpus": lambda value: f"is told by the corpus: {', '.join(value)}" if value else "",
    "distance_bias": lambda value: "its bias depends on nothing but how far apart rows are" if value else "",
    "owner": lambda value: f"each {value} has its own",
    "every_evaluation": lambda value: "is asked at each evaluation" if value else "",
    "likelihood": lambda value: "tells how likely a text is: perplexity, bits per byte" if value else "",
    "own_tokens": lambda value: "shows the model rows of its own making" if value else "",
    "score_terms": lambda value: "" if value == 1 else f"{value} terms share the scale of the scores",
}


def option(option: Option) -> str:
    """What an option is, what it may be, and what it is unless it is set."""
    limits = "; ".join(filter(None, [str(option.kind), *map(limit, option.limits)]))
    if option.kind.name == "group":
        return f"{option.doc} (a group)"
    return f"{option.doc} ({limits}; {_default(option)})"


def _default(option: Option) -> str:
    if option.required:
        return f"needed, such as {json.dumps(option.example, ensure_ascii=False)}"
    return f"default {json.dumps(option.default, ensure_ascii=False)}"


def limit(limit: Limit) -> str:
    if isinstance(limit, Divides):
        return f"divides dims.{limit.dim}"
    if isinstance(limit, AtLeast):
        return f"at least dims.{limit.dim}"
    return f"at most dims.{limit.dim}" if isinstance(limit, AtMost) else str(limit)


def traits(traits: Mapping[str, Any]) -> Iterator[str]:
    """Each trait that says something as a few words: `can hide what comes later`."""
    for name, value in traits.items():
        if name in _CAN:
            yield f"{'can' if value else 'cannot'} {_CAN[name]}"
            continue
        said = _SAID.get(name, lambda value, name=name: f"{name}: {value}")(value)
        if said:
            yield said


def stacks(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        sees = "sees what came before" if part.causal else "sees both sides"
        cross = f", and attends to the {part.cross}" if part.cross else ""
        recurs = ", by a recurrence" if part.recurrent else ""
        yield f"part {part.name}, at {part.path}: {sees}{recurs}{cross}"


def reads(reads: Sequence[str]) -> Iterator[str]:
    if reads:
        yield f"reads {', '.join(reads)}"

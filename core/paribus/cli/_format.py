"""Text for spec differences, options and traits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from paribus.registry import Index, Part
from paribus.schema import AtLeast, AtMost, Divides, Limit, Option
from paribus.specs.fields import SUMMED

Plain = Mapping[str, Any]
Difference = tuple[str, str, str]  # dotted key, left value, right value


def spec_differences(left_spec: Plain, right_spec: Plain, index: Index) -> Iterator[Difference]:
    """Yield the differences of two resolved specs, such as `attention: mha → gqa(kv_heads=2)`."""
    for key in dict.fromkeys([*left_spec, *right_spec]):
        yield from _between(key, left_spec.get(key), right_spec.get(key), key, index)


def _between(path: str, left_value: Any, right_value: Any, slot: str, index: Index) -> Iterator[Difference]:
    if left_value == right_value:
        return
    if (
        isinstance(left_value, Mapping)
        and isinstance(right_value, Mapping)
        and left_value.get("name") == right_value.get("name")
    ):
        for key in dict.fromkeys([*left_value, *right_value]):
            inner = key if key in index.entries else slot
            yield from _between(f"{path}.{key}", left_value.get(key), right_value.get(key), inner, index)
        return
    left_nodes, right_nodes = (_by_name(value) if slot in SUMMED else {} for value in (left_value, right_value))
    if set(left_nodes) & set(right_nodes):  # components that both lists have are compared option by option
        for name in dict.fromkeys([*left_nodes, *right_nodes]):
            yield from _between(f"{path}.{name}", left_nodes.get(name), right_nodes.get(name), slot, index)
        return
    yield path, format_value(left_value, slot, index), format_value(right_value, slot, index)


def _by_name(value: Any) -> dict[str, Any]:
    """Map the names of one component or of a list to components; empty if names repeat."""
    nodes = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    by_name = {node["name"]: node for node in nodes if isinstance(node, Mapping) and "name" in node}
    return by_name if len(by_name) == len(nodes) else {}


def format_value(value: Any, slot: str, index: Index) -> str:
    """Format a value of a spec without the options that have their defaults; `-` for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        entry = index.entries.get(slot, {}).get(str(value.get("name", "")))
        options = {option.name: option for option in entry.options} if entry is not None else {}
        return f"{value.get('name', '')}{_options(value, options, index)}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(format_value(item, slot, index) for item in value) + "]"
    return str(value)


def _options(node: Plain, options: Mapping[str, Option], index: Index) -> str:
    texts = []
    for name, value in node.items():
        option = options.get(name)
        if name == "name" or (option is not None and not option.required and value == option.default):
            continue
        if option is not None and option.kind.name == "group" and isinstance(value, Mapping):
            inside = _options(value, {field.name: field for field in option.kind.options}, index)
            texts += [f"{name}={inside}"] if inside else []
            continue
        texts.append(f"{name}={format_value(value, option.kind.slot if option is not None else name, index)}")
    return f"({', '.join(texts)})" if texts else ""


_CAPABILITIES: Final = {
    "causal": "mask later positions",
    "cross": "attend to another stack",
    "documents": "keep packed documents apart, and mask padding",
    "padding": "mask padding",
    "order": "follow an order of tokens other than their positions",
    "extra_queries": "take appended query tokens that no other token sees",
    "raw_memory": "return the tokens of a memory unchanged",
    "residual": "be wrapped by a norm placement: it returns the width of the stream",
    "weights": "return its attention weights",
    "decodes": "decode step by step, keeping state",
    "any_width": "project its output to the width of each stack",
    "unembeds": "compute scores over a vocabulary",
    "sharded": "step on sharded parameters",
    "compiles": "be compiled by torch",
}
_SIGHT: Final[Mapping[str, str]] = {
    "both": "needs bidirectional tokens",
    "past": "needs causal tokens",
    "any": "works with causal and bidirectional tokens",
}
_DESCRIPTIONS: Final[Mapping[str, Callable[[Any], str]]] = {
    "visibility": lambda value: _SIGHT.get(value, ""),
    "hooks": lambda value: f"encodes positions through: {', '.join(value)}" if value else "encodes no positions",
    "position_hooks": lambda value: f"lets a position {', '.join(value)}" if value else "does not use a position",
    "reads_keys": lambda value: "" if value == "all" else f"a token attends to {value} of the others",
    "normalized": lambda value: f"the weights of a query {'sum to at most 1' if value else 'have any sum'}",
    "content_based": lambda value: "" if value else "the weights of a token do not depend on its content",
    "final_norm": lambda value: f"{'a' if value else 'no'} norm follows the last layer",
    "needs": lambda value: f"needs {', '.join(value)}" if value else "",
    "provides": lambda value: f"has {', '.join(value)}" if value else "",
    "corrupts": lambda value: "changes what the model sees" if value else "",
    "example_kind": lambda value: f"forms examples as {value}" if value else "",
    "table": lambda value: "cannot encode positions beyond its table" if value else "",
    "segments": lambda value: "distinguishes two segments of an example" if value else "",
    "parts": lambda value: f"reads the stacks body, {', '.join(value)}" if value else "",
    "optional_parts": lambda value: f"reads {', '.join(value)} where there is one",
    "adds_padding": lambda value: "pads examples" if value else "",
    "sets_order": lambda value: "gives tokens an order of its own" if value else "",
    "bias": lambda value: "" if value == "none" else f"its bias depends on {value}",
    "modality": lambda value: "" if value == "text" else f"of {value}",
    "packs_documents": lambda value: f"{'works' if value else 'does not work'} with packed documents",
    "provides_if": lambda value: ", ".join(
        f"{condition} where `{option}` is set" for condition, option in value.items()
    ),
    "document_facts": lambda value: f"has labels of its documents: {', '.join(value)}" if value else "",
    "teacher": lambda value: ", ".join(f"`{option}` is its teacher's dims.{size}" for size, option in value.items()),
    "options_from_corpus": lambda value: f"reads from the corpus: {', '.join(value)}" if value else "",
    "distance_bias": lambda value: "its bias depends only on the distance of tokens" if value else "",
    "owner": lambda value: f"each {value} has its own",
    "every_evaluation": lambda value: "runs at each evaluation" if value else "",
    "likelihood": lambda value: "gives the likelihood of a text: perplexity, bits per byte" if value else "",
    "own_tokens": lambda value: "runs the model on inputs of its own" if value else "",
    "score_terms": lambda value: "" if value == 1 else f"{value} terms share the scale of the scores",
}


def option(option: Option) -> str:
    """Describe an option: its meaning, limits and default."""
    limits = "; ".join(filter(None, [str(option.kind), *map(limit, option.limits)]))
    if option.kind.name == "group":
        return f"{option.doc} (a group)"
    return f"{option.doc} ({limits}; {_default(option)})"


def _default(option: Option) -> str:
    if option.required:
        return f"required, such as {json.dumps(option.example, ensure_ascii=False)}"
    return f"default {json.dumps(option.default, ensure_ascii=False)}"


def limit(limit: Limit) -> str:
    if isinstance(limit, Divides):
        return f"divides dims.{limit.dim}"
    if isinstance(limit, AtLeast):
        return f"at least dims.{limit.dim}"
    return f"at most dims.{limit.dim}" if isinstance(limit, AtMost) else str(limit)


def traits(traits: Mapping[str, Any]) -> Iterator[str]:
    """Yield a short description of each trait: `can mask later positions`."""
    for name, value in traits.items():
        if name in _CAPABILITIES:
            yield f"{'can' if value else 'cannot'} {_CAPABILITIES[name]}"
            continue
        text = _DESCRIPTIONS.get(name, lambda value, name=name: f"{name}: {value}")(value)
        if text:
            yield text


def stacks(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        visibility = "causal" if part.causal else "bidirectional"
        cross = f", and attends to the {part.cross}" if part.cross else ""
        recurrence = ", recurrent" if part.recurrent else ""
        yield f"part {part.name}, at {part.path}: {visibility}{recurrence}{cross}"


def reads(reads: Sequence[str]) -> Iterator[str]:
    if reads:
        yield f"reads {', '.join(reads)}"

"""Options and traits in words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from paribus.registry import Part
from paribus.schema import AtLeast, AtMost, Divides, Limit, Option

_CAN: Final = {
    "causal": "hide what comes later",
    "cross": "attend to another stack",
    "documents": "keep documents of a packed row apart, and padding out",
    "padding": "keep padding out",
    "order": "follow an order of rows other than their own",
    "appended": "let rows ask that no row sees, behind the others",
    "raw": "give back a memory's rows as they stand",
    "residual": "be wrapped by a placement: it returns the width of the stream",
    "weights": "say how much each query weighs each key",
    "decodes": "decode step by step, keeping state",
    "widens": "bring its rows to the width of each stack",
    "unembeds": "score rows against a vocabulary",
    "pieces": "step on parameters of which each process holds a piece",
    "compiles": "be compiled by torch",
}
_SIGHT: Final[Mapping[str, str]] = {
    "both": "needs rows that see both sides",
    "past": "needs rows that see only what came before",
    "any": "takes rows whatever they see",
}
_SAID: Final[Mapping[str, Callable[[Any], str]]] = {
    "sight": lambda value: _SIGHT.get(value, ""),
    "moments": lambda value: (
        f"tells where rows are by: {', '.join(value)}" if value else "tells nothing of where rows are"
    ),
    "consumes": lambda value: f"asks a position to {', '.join(value)}" if value else "asks a position for nothing",
    "sees": lambda value: "" if value == "all" else f"a row reads {value} of the others",
    "shares": lambda value: f"the weights of a row {'sum to 1, or to less' if value else 'may sum to anything'}",
    "asks": lambda value: "" if value else "what a row reads does not depend on what it holds",
    "final": lambda value: f"{'a' if value else 'no'} norm follows the last layer",
    "needs": lambda value: f"needs {', '.join(value)}" if value else "",
    "provides": lambda value: f"has {', '.join(value)}" if value else "",
    "corrupts": lambda value: "changes what the model sees" if value else "",
    "forms": lambda value: f"forms examples as {value}" if value else "",
    "table": lambda value: "cannot place rows beyond its table" if value else "",
    "segments": lambda value: "tells two segments of an example apart" if value else "",
    "parts": lambda value: f"reads the stacks body, {', '.join(value)}" if value else "",
    "may": lambda value: f"reads {', '.join(value)} where there is one",
    "pads": lambda value: "fills examples up with padding" if value else "",
    "orders": lambda value: "gives rows an order of their own" if value else "",
    "bias": lambda value: "" if value == "none" else f"its bias depends on {value}",
    "modality": lambda value: "" if value == "text" else f"of {value}",
    "packs": lambda value: f"takes {'rows of several whole documents' if value else 'no row of several documents'}",
    "where": lambda value: ", ".join(f"{what} where `{option}` is given" for what, option in value.items()),
    "tells": lambda value: f"tells of its documents: {', '.join(value)}" if value else "",
    "teacher": lambda value: ", ".join(f"`{option}` is its teacher's dims.{size}" for size, option in value.items()),
    "told": lambda value: f"is told by the corpus: {', '.join(value)}" if value else "",
    "distances": lambda value: "its bias depends on nothing but how far apart rows are" if value else "",
    "owner": lambda value: f"each {value} has its own",
    "often": lambda value: "is asked at each evaluation" if value else "",
    "likelihood": lambda value: "tells how likely a text is: perplexity, bits per byte" if value else "",
    "own": lambda value: "shows the model rows of its own making" if value else "",
    "terms": lambda value: "" if value == 1 else f"{value} terms share the scale of the scores",
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

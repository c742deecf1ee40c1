"""The shape of a record: keys that every record has, and the types of the values that comparisons read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, final


@final
class _Kind(NamedTuple):
    """Kind of a value, in the words of a message, and its test."""

    words: str
    holds: Callable[[Any], bool]
    is_required: bool = True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _all(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda values: isinstance(values, list) and all(map(holds, values))


def _is_mapping_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(holds, value.values()))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict)


TEXT: Final = _Kind("text", _is_text)
COUNT: Final = _Kind("a whole number of at least 0", _is_count)
NUMBER: Final = _Kind("a number", _is_number)
MAPPING: Final = _Kind("a mapping", _is_mapping)
NUMBERS: Final = _Kind("a mapping of numbers", _is_mapping_of(_is_number))
TEXTS: Final = _Kind("a mapping of texts", _is_mapping_of(_is_text))
NAMES: Final = _Kind("a list of texts", _all(_is_text))
CURVE: Final = _Kind(
    "a list of mappings of numbers with `step`",
    _all(lambda point: _is_mapping_of(_is_number)(point) and _is_count(point.get("step"))),
)
TENSORS: Final = _Kind(
    "a mapping of tensors with `shape`, `value` and `signs`",
    _is_mapping_of(lambda tensor: _is_mapping(tensor) and {"shape", "value", "signs"} <= tensor.keys()),
)
BATCHES: Final = _Kind(
    "a mapping of splits with `count`, `tokens`, `targets`, `digest` and `digests`",
    _is_mapping_of(
        lambda split: (
            _is_mapping(split)
            and _is_count(split.get("count"))
            and _is_text(split.get("digest"))
            and all(split.get(unit) is None or _is_count(split.get(unit)) for unit in ("tokens", "targets"))
            and TEXTS.holds(split.get("digests"))
        )
    ),
)
ANSWERS: Final = _Kind(
    "a mapping of scores with `questions`, `count`, and `bits` or `floats`",
    _is_mapping_of(
        lambda scores: (
            _is_mapping(scores)
            and _is_text(scores.get("questions"))
            and _is_count(scores.get("count"))
            and any(_is_text(scores.get(key)) for key in ("bits", "floats"))
        )
    ),
)
STATES: Final = _Kind("done or diverged", lambda value: value in ("done", "diverged"))


def _optional(kind: _Kind) -> _Kind:
    """Return a kind that may be missing or None: records of earlier versions do not have all keys."""
    return _Kind(kind.words, lambda value: value is None or kind.holds(value), is_required=False)


_COMPONENT: Final = _Kind(
    "a mapping with `name`", lambda value: isinstance(value, dict) and _is_text(value.get("name"))
)


SHAPE: Final[Mapping[tuple[str, ...], _Kind]] = {
    ("identity",): TEXT,
    ("spec",): MAPPING,
    ("spec", "seed"): COUNT,
    ("spec", "data"): MAPPING,
    ("spec", "dims"): MAPPING,
    ("spec", "dims", "length"): COUNT,
    ("spec", "tokenizer"): _COMPONENT,
    ("spec", "objective"): _Kind(
        "a component, or a list of components",
        lambda value: bool(value) and (_COMPONENT.holds(value) or _all(_COMPONENT.holds)(value)),
    ),
    ("provenance",): MAPPING,
    ("provenance", "machine"): _optional(MAPPING),
    ("provenance", "versions"): _optional(MAPPING),
    ("provenance", "verified"): _optional(MAPPING),
    ("provenance", "started"): _optional(NUMBER),
    ("provenance", "ended"): _optional(NUMBER),
    ("provenance", "training_seconds"): _optional(NUMBER),
    ("provenance", "peak_bytes"): _optional(NUMBER),
    ("provenance", "ignored"): _optional(NAMES),
    ("provenance", "neutral"): _optional(NAMES),
    ("provenance", "probed"): _optional(NAMES),
    ("provenance", "same_as_baseline"): _optional(NAMES),
    ("result",): MAPPING,
    ("result", "state"): STATES,
    ("result", "steps"): COUNT,
    ("result", "tokens"): COUNT,
    ("result", "metrics"): NUMBERS,
    ("result", "curve"): CURVE,
    ("result", "parameters"): COUNT,
    ("result", "flops_per_token"): NUMBER,
    ("result", "cache_bytes_per_token"): NUMBER,
    ("result", "training_flops"): _optional(NUMBER),
    ("result", "total_flops"): _optional(NUMBER),
    ("result", "unigram_baseline"): NUMBERS,
    ("result", "learned_below"): NUMBERS,
    ("result", "unmeasured"): _optional(TEXTS),
    ("result", "digests"): _optional(TEXTS),
    ("result", "data"): MAPPING,
    ("result", "data", "corpus"): TEXT,
    ("result", "data", "tokenizer"): TEXT,
    ("result", "data", "lost_bytes"): _optional(NUMBER),
    ("result", "certificate"): MAPPING,
    ("result", "certificate", "tensors"): _optional(MAPPING),
    ("result", "certificate", "validation"): TEXT,
    ("result", "certificate", "outputs"): _optional(TEXT),
    ("result", "certificate", "losses"): _optional(TEXT),
    ("result", "certificate", "batches"): _optional(TEXT),
    ("result", "certificate", "batch_digests"): _optional(TEXTS),
    ("result", "certificate", "order"): _optional(TEXT),
    ("result", "certificate", "first_step"): _optional(MAPPING),
    ("result", "certificate", "optimizer_options"): _optional(MAPPING),
    ("result", "certificate", "rates"): _optional(TEXTS),
    ("result", "certificate", "properties"): _optional(TEXTS),
    ("result", "certificate", "no_gradient"): _optional(NAMES),
    ("result", "certificate", "changed_tensors"): _optional(NAMES),
    ("result", "certificate", "generators"): _optional(NAMES),
    ("result", "certificate", "settings"): _optional(NAMES),
    ("result", "certificate", "hooks"): _optional(NAMES),
    ("result", "certificate", "skipped_steps"): _optional(COUNT),
    ("result", "certificate", "answers"): _optional(ANSWERS),
    ("result", "certificate", "targets"): _optional(MAPPING),
    ("result", "certificate", "targets", "training"): _optional(
        _Kind("numbers by step", _is_mapping_of(NUMBERS.holds))
    ),
    ("result", "certificate", "targets", "evaluation"): _optional(NUMBERS),
}


PROGRAM_SHAPE: Final[Mapping[tuple[str, ...], _Kind]] = {
    **{path: kind for path, kind in SHAPE.items() if path[0] == "provenance"},
    **{("result", key): SHAPE["result", key] for key in ("state", "steps", "metrics", "curve", "certificate")},
    ("identity",): TEXT,
    ("spec",): MAPPING,
    ("spec", "seed"): COUNT,
    ("spec", "program"): MAPPING,
    ("spec", "program", "metric"): MAPPING,
    ("provenance", "cpu_seconds"): _optional(NUMBER),
    ("result",): MAPPING,
    ("result", "certificate", "inputs"): TEXTS,
    ("result", "certificate", "values"): TEXT,
    ("result", "certificate", "witness"): _optional(MAPPING),
    ("result", "certificate", "witness", "tensors"): _optional(TENSORS),
    ("result", "certificate", "witness", "late"): _optional(COUNT),
    ("result", "certificate", "witness", "environment"): _optional(TEXTS),
    ("result", "certificate", "witness", "batches"): _optional(BATCHES),
}
"""The shape of a record of a program, of which less is known."""


def shape_faults(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield each value of a record that is missing or of another type than comparisons read."""
    spec = record.get("spec")
    shape = PROGRAM_SHAPE if isinstance(spec, Mapping) and "program" in spec else SHAPE
    for path, kind in shape.items():
        node: Any = record
        for key in path[:-1]:
            node = node.get(key) if isinstance(node, Mapping) else None
        if not isinstance(node, Mapping):  # reported as such, or missing and optional
            continue
        name = ".".join(path)
        if path[-1] not in node:
            if kind.is_required:
                yield f"it has no `{name}`; expected {kind.words}"
        elif not kind.holds(node[path[-1]]):
            yield f"its `{name}` is {str(node[path[-1]])[:40]!r}; expected {kind.words}"

"""What a spec says besides its components: sizes, data, seed. Options like those of components, and checked alike.

What fills a slot of a spec: one component, or a list of them where the slot takes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from paribus.errors import join_names
from paribus.schema import Kind, Option, Range
from paribus.specs.tree import UNREAD, Keys, join_keys
from paribus.specs.values import Validator, divisors

SCHEMA: Final = 1  # what `paribus: 1` in a spec means; another number is another way to write specs

ARCHITECTURE: Final = ("embedding", "attention", "position", "norm", "placement", "feedforward")
ALWAYS: Final = ("initialisation", "objective", "corpus", "tokenizer", "optimizer", "schedule")  # whatever the topology
CYCLED: Final = ("attention", "position", "norm", "placement", "feedforward")  # a list is cycled over the layers
SUMMED: Final = ("objective",)  # a list is a sum
MEASURED: Final = ("measure",)  # a list is asked one after the other
CROSS: Final = ("attention", "position")  # what a cross-attention has of its own
NO_POSITION: Final = "none"  # what tells rows of a memory apart, unless the spec says so: nothing

_INT = Kind("int")
_SIZE = 10**9

DIMS: Final = (
    Option("width", _INT, "width of the residual stream", (Range(1, _SIZE),), None, True, 64),
    Option("layers", _INT, "layers of each stack", (Range(1, 10_000),), None, True, 2),
    Option(
        "groups",
        Kind("int", optional=True),
        "sets of parameters, each shared by a run of successive layers (ALBERT: 1); null: every layer has its own",
        (Range(1, 10_000),),
    ),
    Option("heads", _INT, "query heads of each attention", (Range(1, 10**6),), None, True, 4),
    Option("head_width", Kind("int", optional=True), "width of a head; null: width / heads", (Range(1, _SIZE),)),
    Option("length", _INT, "rows of an example", (Range(1, _SIZE),), None, True, 64),
    Option("vocabulary", Kind("int", optional=True), "tokens there may be; null: the tokenizer's", (Range(1, _SIZE),)),
)
PART_DIMS: Final = (
    "width",
    "layers",
    "groups",
    "heads",
    "head_width",
    "length",
)  # the vocabulary is of the embedding, which parts share

DATA: Final = (
    Option("batch", _INT, "examples in a batch", (Range(1, _SIZE),), 32),
    Option("workers", _INT, "processes that make batches; 0: none besides the trial's own", (Range(0, 1024),), 0),
    Option("validation", _INT, "examples of the validation split that are evaluated, at most", (Range(1, _SIZE),), 512),
    Option("evaluations", _INT, "evaluations over a run, evenly, the last one at its end", (Range(1, 10_000),), 4),
    Option(
        "documents",
        Kind("choice", choices=("mixed", "apart", "packed")),
        "how documents share rows: one behind the other and cut wherever a row ends; the same, but none sees another; "
        "whole ones, as many as fit, each at positions of its own",
        (),
        "mixed",
    ),
    Option(
        "bucket",
        _INT,
        "batches whose examples are sorted by length together and padded to the longest; 0: all have dims.length rows",
        (Range(0, _SIZE),),
        0,
    ),
)
DROPOUT: Final = Option("dropout", Kind("float"), "share of activations that are dropped", (Range(0, below=1),), 0.0)
SEED: Final = Option("seed", _INT, "what all draws are keyed by", (Range(0, 2**63 - 1),), 0)
STEPS: Final = Option("max_steps", _INT, "training steps", (Range(1, 10**12),), 1)

KEYS: Final = (
    "topology", "dims", "embedding", "attention", "position", "norm", "placement", "feedforward", "initialisation",
    "dropout", "objective", "corpus", "tokenizer", "data", "optimizer", "schedule", "trainer", "evaluate", "measure",
    "parts", "from", "teacher", "seed",
)  # fmt: skip
META: Final = ("preset", "paribus", "plugins")  # about the spec; not in what it resolves to


def resolve_components(validator: Validator, slot: str, given: Any, keys: Keys, dims: Mapping[str, Any]) -> Any:
    """One component, or a list of them where the slot takes one."""
    if not isinstance(given, list) or slot not in (*CYCLED, *SUMMED, *MEASURED):
        return validator.read_component(slot, given, keys, dims)
    if not given:
        return validator.add_error("empty", keys, f"this list names no {slot}", "at least one")
    found = [validator.read_component(slot, item, (*keys, place), dims) for place, item in enumerate(given)]
    layers = dims["layers"]
    if slot in CYCLED and isinstance(layers, int) and len(found) > layers:
        what = f"a list of {len(found)} is cycled over {layers} layers, so its end would be ignored"
        validator.add_error("not-read", keys, what, f"a list of at most {layers}")
    if slot in (*SUMMED, *MEASURED):
        _once(validator, slot, found, keys)
    return found


def _once(validator: Validator, slot: str, found: list[Any], keys: Keys) -> None:
    names = [node["name"] for node in found if node is not UNREAD]
    for name in sorted({name for name in names if names.count(name) > 1}):
        validator.add_error("twice", keys, f"`{name}` is in this list more than once", f"each {slot} once")


def check_sizes(validator: Validator, dims: Mapping[str, Any], keys: Keys) -> None:
    """Heads share the width evenly, and groups the layers."""
    check_width(validator, dims, keys)
    layers, groups = dims["layers"], dims["groups"]
    if isinstance(groups, int) and isinstance(layers, int) and layers % groups:
        what = f"`dims.groups` ({groups}) does not divide `dims.layers` ({layers}), so that runs would not be equal"
        validator.add_error("not-divisible", (*keys, "groups"), what, join_names(divisors(layers)))


def check_width(validator: Validator, dims: Mapping[str, Any], keys: Keys) -> None:
    """Without a head width, the heads share the width evenly."""
    width, heads = dims["width"], dims["heads"]
    if dims["head_width"] is not None or not isinstance(width, int) or not isinstance(heads, int) or width % heads == 0:
        return
    near = " or ".join(str(size) for size in (width // heads * heads, (width // heads + 1) * heads) if size)
    few = [number for number in divisors(width) if number <= 2 * heads]
    what = f"`dims.width` ({width}) is no multiple of `{join_keys(keys)}.heads` ({heads})"
    valid = f"dims.width {near}, heads {join_names(few[-6:])}, or a head_width of its own"
    validator.add_error("not-divisible", (*keys, "heads"), what, valid)

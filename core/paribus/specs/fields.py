"""Keys of a spec: slots, and the options of `dims`, `data`, `dropout` and `seed`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from paribus.errors import join_names
from paribus.schema import Kind, Option, Range
from paribus.specs.tree import UNREAD, Keys, join_keys
from paribus.specs.values import Validator, divisors

SCHEMA: Final = 1  # the number in `paribus: 1`: the version of the format of specs

ARCHITECTURE: Final = ("embedding", "attention", "position", "norm", "placement", "feedforward")
ALWAYS: Final = ("initialisation", "objective", "corpus", "tokenizer", "optimizer", "schedule")  # for every topology
CYCLED: Final = ("attention", "position", "norm", "placement", "feedforward")  # a list is cycled over the layers
SUMMED: Final = ("objective",)  # a list is a sum
MEASURED: Final = ("measure",)  # a list is measured one after the other
CROSS: Final = ("attention", "position")  # slots of a cross-attention
NO_POSITION: Final = "none"  # default position of a cross-attention

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
    Option("length", _INT, "sequence length in tokens", (Range(1, _SIZE),), None, True, 64),
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
META: Final = ("preset", "paribus", "plugins")  # about the spec itself; not in the resolved spec


def resolve_components(validator: Validator, slot: str, value: Any, keys: Keys, dims: Mapping[str, Any]) -> Any:
    """Read one component, or a list of them if the slot takes a list."""
    if not isinstance(value, list) or slot not in (*CYCLED, *SUMMED, *MEASURED):
        return validator.read_component(slot, value, keys, dims)
    if not value:
        return validator.add_error("empty", keys, f"this list is empty; expected a name of {slot}", "at least one")
    components = [validator.read_component(slot, item, (*keys, index), dims) for index, item in enumerate(value)]
    layers = dims["layers"]
    if slot in CYCLED and isinstance(layers, int) and len(components) > layers:
        message = f"a list of {len(components)} is cycled over {layers} layers, so its last items would be ignored"
        validator.add_error("not-read", keys, message, f"a list of at most {layers}")
    if slot in (*SUMMED, *MEASURED):
        _once(validator, slot, components, keys)
    return components


def _once(validator: Validator, slot: str, components: list[Any], keys: Keys) -> None:
    names = [node["name"] for node in components if node is not UNREAD]
    for name in sorted({name for name in names if names.count(name) > 1}):
        validator.add_error("twice", keys, f"`{name}` is in this list twice", f"each {slot} once")


def check_sizes(validator: Validator, dims: Mapping[str, Any], keys: Keys) -> None:
    """Require that heads divide the width, and groups the layers."""
    check_width(validator, dims, keys)
    layers, groups = dims["layers"], dims["groups"]
    if isinstance(groups, int) and isinstance(layers, int) and layers % groups:
        message = f"`dims.groups` ({groups}) does not divide `dims.layers` ({layers}), so that runs would not be equal"
        validator.add_error("not-divisible", (*keys, "groups"), message, join_names(divisors(layers)))


def check_width(validator: Validator, dims: Mapping[str, Any], keys: Keys) -> None:
    """Require that heads divide the width, unless a head width is set."""
    width, heads = dims["width"], dims["heads"]
    if dims["head_width"] is not None or not isinstance(width, int) or not isinstance(heads, int) or width % heads == 0:
        return
    widths = " or ".join(str(size) for size in (width // heads * heads, (width // heads + 1) * heads) if size)
    divisors_ = [number for number in divisors(width) if number <= 2 * heads]
    message = f"`dims.width` ({width}) is not a multiple of `{join_keys(keys)}.heads` ({heads})"
    valid = f"dims.width {widths}, heads {join_names(divisors_[-6:])}, or a head_width of its own"
    validator.add_error("not-divisible", (*keys, "heads"), message, valid)

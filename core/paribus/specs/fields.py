"""What a spec says besides its components: sizes, data, seed. Options like those of components, and checked alike."""

from __future__ import annotations

from typing import Final

from paribus.schema import Kind, Option, Range

SCHEMA: Final = 1  # what `paribus: 1` in a spec means; another number is another way to write specs

ARCHITECTURE: Final = ("embedding", "attention", "position", "norm", "placement", "feedforward")
ALWAYS: Final = ("initialisation", "objective", "corpus", "tokenizer", "optimizer", "schedule")  # whatever the topology
CYCLED: Final = ("attention", "position", "norm", "placement", "feedforward")  # a list is cycled over the layers
SUMMED: Final = ("objective",)  # a list is a sum
ASKED: Final = ("measure",)  # a list is asked one after the other
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

"""The engine, which is the code that every trial runs: its hash, and the epoch of its numbers.

All engines of an epoch compute bitwise the same numbers. `make numerics` proves that an engine belongs to the latest
epoch, and adds its hash to `epochs.json`; so an edit that changes no number keeps all records.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple, final

from paribus.storage.atomic import digest_json
from paribus.storage.code_hash import CodeHashes

ROOT: Final = Path(__file__).parents[1]  # of the package
EPOCHS: Final = ROOT / "storage" / "epochs.json"
HASH_LENGTH: Final = 16  # hexadecimal digits of an engine's hash: 64 bits
ENGINE: Final = (
    "random_keys.py", "slots", "parts", "kernels", "assembly", "datamodule", "models", "evidence", "train", "inference"
)  # fmt: skip
UNHASHED: Final = frozenset(
    f"{name}.py"
    for name in (
        "slots/family",  # conversion, before a trial
        "train/api",  # public functions, which trials do not call
        "train/logger_callback",
        "datamodule/progress",
        "evidence/provenance",
        "train/spec_costs",  # sizes that planning matches, which are in the spec
        "train/timed_steps",  # speeds
        "train/step_memory",  # predicted sizes
        "datamodule/synthetic_corpus",  # of predictions and of the conformance kit
        "train/trial_options",
        "datamodule/worker_pool",  # its results have the order of its items, whatever the number of processes
        "inference/attention_maps",
        "inference/attention_scores",
        "inference/embed",
        "inference/fill_mask",
        "inference/label_likelihood",
        "inference/predict",
        "inference/prediction_inputs",
        "inference/timed_inference",
    )
)
"""Files of the engine that cannot change a number of a record."""


@final
class Epoch(NamedTuple):
    """Engines that compute the same numbers, and what changed at the beginning of their epoch."""

    number: int
    changed: str
    engines: frozenset[str]


@lru_cache(maxsize=1)
def engine_hash() -> str:
    """Return the hash of the code that every trial runs."""
    return hash_of_engine(ROOT)


def hash_of_engine(root: Path) -> str:
    """Return the hash of the engine in a folder of the package `paribus`."""
    hashes = CodeHashes()
    engine = digest_json([[path.relative_to(root).as_posix(), hashes.hash(path)] for path in engine_files(root)])
    hashes.save()
    return engine[:HASH_LENGTH]


def engine_files(root: Path) -> list[Path]:
    """Return the modules of the engine that can change a number of a record."""
    patterns = (name if name.endswith(".py") else f"{name}/**/*.py" for name in ENGINE)
    modules = (path for pattern in patterns for path in root.glob(pattern))
    return sorted(path for path in modules if path.relative_to(root).as_posix() not in UNHASHED)


@lru_cache(maxsize=1)
def epochs() -> tuple[Epoch, ...]:
    """Return all epochs, the latest last."""
    items = json.loads(EPOCHS.read_bytes())
    return tuple(Epoch(item["epoch"], item["changed"], frozenset(item["engines"])) for item in items)


def numbers_of_engine() -> str:
    """Return the name of what this engine computes, a part of every identity: its epoch, or itself if not proven."""
    latest, engine = epochs()[-1], engine_hash()
    return f"epoch {latest.number}" if engine in latest.engines else f"engine {engine}"


def is_proven_equal(engine: str) -> bool:
    """Return whether another engine was proven to compute what this one does."""
    return any({engine, engine_hash()} <= epoch.engines for epoch in epochs())

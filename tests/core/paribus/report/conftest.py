"""A study without a model: records as an honest engine writes them, and what a fault may have left in one."""

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from paribus.report.trials.entry import Entry, Question

BASE: dict[str, Any] = {
    "topology": {"name": "encoder"},
    "dims": {"width": 8, "layers": 2, "heads": 4, "head_width": None, "length": 16, "vocabulary": None},
    "embedding": {"name": "tokens", "tie": True},
    "attention": {"name": "mha", "scores": {"bias": True}},
    "position": {"name": "rope", "theta": 10000.0},
    "norm": {"name": "layernorm", "eps": 1e-5},
    "placement": {"name": "pre"},
    "feedforward": {"name": "mlp", "expand": 4.0},
    "initialisation": {"name": "normal", "std": 0.02},
    "dropout": 0.0,
    "objective": [{"name": "mlm", "rate": 0.15}],
    "corpus": {"name": "python-docs"},
    "tokenizer": {"name": "bytes"},
    "data": {"batch": 4, "workers": 0, "validation": 64},
    "optimizer": {"name": "adamw", "lr": 2e-3},
    "schedule": {"name": "warmup-cosine", "warmup": 0.1},
    "trainer": {"max_steps": 100},
    "evaluate": [{"name": "mlm", "rate": 0.15}],
    "parts": {},
}
ARCHITECTURE = (
    "topology",
    "dims",
    "embedding",
    "attention",
    "position",
    "norm",
    "placement",
    "feedforward",
    "initialisation",
)
METRIC = "val/mlm/loss"


def digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def varied_spec(varied: Mapping[str, Any], seed: int) -> dict[str, Any]:
    spec = {**copy.deepcopy(BASE), "seed": seed}
    for dotted, value in varied.items():
        *way, last = dotted.split(".")
        node = spec
        for key in way:
            node = node[key]
        slot = isinstance(node.get(last), dict) and isinstance(value, str)
        node[last] = {"name": value} if slot else copy.deepcopy(value)
    return spec


def tensors(spec: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """What every tensor begins as: keys and values are narrower where heads share them."""
    width = spec["dims"]["width"]
    narrow = {"mqa": width // 4, "gqa": width // 2}.get(spec["attention"]["name"], width)
    inner = int(width * spec["feedforward"]["expand"])
    shapes: dict[str, list[int]] = {"embedding.tokens.weight": [256, width]}
    for layer in range(spec["dims"]["layers"]):
        path = f"body.layers.{layer}"
        for head in "qkvo":
            rows = narrow if head in "kv" else width
            shapes[f"{path}.attention.heads.{head}.weight"] = [rows, width]
            shapes[f"{path}.attention.heads.{head}.bias"] = [rows]
        shapes[f"{path}.feedforward.inner.weight"] = [inner, width]
        shapes[f"{path}.placement.norms.attention.weight"] = [width]
    if spec["position"]["name"] == "learned":
        shapes["body.position.0.table.weight"] = [spec["dims"]["length"], width]
    return {path: tensor(spec, seed, path, shape) for path, shape in shapes.items()}


def tensor(spec: Mapping[str, Any], seed: int, path: str, shape: list[int]) -> dict[str, Any]:
    draws = digest(seed, path, shape)
    gain = 0.5 if spec["placement"]["name"] == "deepnorm" and path.split(".")[-2] in ("v", "o", "inner") else 1.0
    shaped = digest(spec["initialisation"], gain)
    drawn = len(shape) > 1
    return {
        "shape": shape,
        "draws": draws,
        "shaped": shaped,
        "value": digest(draws, shaped) if drawn else digest(shape),
        "signs": digest(draws) if drawn else "",
    }


def certificate(spec: Mapping[str, Any], seed: int) -> dict[str, Any]:
    told = copy.deepcopy(dict(spec))
    if told["attention"]["name"] == "restricted" and told["attention"]["window"] >= told["dims"]["length"]:
        told["attention"] = BASE["attention"]  # a window over everything is no window
    order = digest(seed, *(spec[key] for key in ("corpus", "tokenizer", "data", "trainer")), spec["dims"]["length"])
    return {
        "tensors": tensors(spec, seed),
        "outputs": digest(seed, {key: told[key] for key in ARCHITECTURE}),
        "validation": digest(
            spec["corpus"], spec["tokenizer"], spec["dims"]["length"], spec["evaluate"] or spec["objective"]
        ),
        "order": order,
        "batches": digest(order, spec["objective"]),
        "losses": digest(told),
        "no_gradient": [],
    }


def record_of(spec: Mapping[str, Any], seed: int, state: str, loss: float) -> dict[str, Any]:
    steps = spec["trainer"]["max_steps"]
    last = {METRIC: loss, "val/mlm/accuracy": 0.5}
    sizes = (entry["shape"] for entry in tensors(spec, seed).values())
    parameters = sum(size[0] * (size[1] if len(size) > 1 else 1) for size in sizes)
    return {
        "identity": digest(spec),
        "spec": copy.deepcopy(dict(spec)),
        "result": {
            "state": state,
            "steps": steps if state == "done" else steps // 2,
            "tokens": steps * spec["data"]["batch"] * spec["dims"]["length"],
            "metrics": last if state == "done" else {},
            "curve": [{"step": steps // 4, **last}, {"step": steps, **last}] if state == "done" else [],
            "frequencies": {METRIC: 3.25},
            "parameters": parameters,
            "flops_per_token": 100.0 * parameters,
            "cache_bytes_per_token": 0.0,
            "data": {"corpus": digest(spec["corpus"]), "tokenizer": digest(spec["tokenizer"])},
            "certificate": certificate(spec, seed),
        },
        "provenance": {
            "ended": 1.0,
            "training_seconds": 2.0,
            "contended": False,
            "peak_bytes": 4e8,
            "host": "here",
            "machine": {"device": "cpu", "name": "a processor", "threads": "1"},
            "versions": {"python": "3.11.7", "torch": "2.13.0+cpu", "numpy": "2.4.6"},
        },
    }


def make(
    variant: str = "baseline",
    seed: int = 0,
    *,
    varied: Mapping[str, Any] | None = None,
    matched: Mapping[str, Any] | None = None,
    loss: float = 2.0,
    state: Any = "done",
    edits: Mapping[str, Any] | None = None,
    **more: Any,
) -> Entry:
    """A trial; `edits` are put into its record afterwards, as `{"result.steps": 7}`: a fault, or another machine."""
    changes = {**(varied or {}), **(matched or {})}
    spec = varied_spec(changes, seed)
    document = {
        "variant": variant,
        "seed": seed,
        "spec": spec,
        "varied": dict(varied or {}),
        "code": "c" * 24,
        "corpus": "d",
    }
    if matched is not None:
        document["matched"] = dict(matched)
    record = record_of(spec, seed, state, loss) if state in ("done", "diverged") else None
    for place, value in (edits or {}).items():
        assert record is not None
        node: Any = record
        *way, last = place.split("/")
        for key in way:
            node = node[key]
        node[last] = value
    return Entry(variant=variant, seed=seed, trial=document, record=record, state=state, **more)


VARIED: dict[str, dict[str, Any]] = {
    "baseline": {},
    "mqa": {"attention": "mqa"},
    "gqa": {"attention": {"name": "gqa", "kv_heads": 2}},
    "rmsnorm": {"norm": "rmsnorm"},
    "lr": {"optimizer.lr": 1e-3},
}


def ask(entries: Sequence[Entry], seeds: Sequence[int] | None = None, **more: Any) -> Question:
    """The question of the study that these entries are of."""
    found = sorted({entry.seed for entry in entries}) if seeds is None else seeds
    variants: dict[str, Mapping[str, Any]] = {}
    for entry in entries:
        variants.setdefault(entry.variant, entry.asked)
    options = {"study": "attention", "baseline": "baseline", "metric": METRIC, **more}
    return Question(variants=variants, seeds=tuple(found), **options)


def study(**losses: Sequence[float | str]) -> list[Entry]:
    """Trials by variant, seed after seed: a number is the loss that it came to, a word is how else it ended."""
    return [
        make(variant, seed, varied=VARIED[variant], **({"state": found} if isinstance(found, str) else {"loss": found}))
        for variant, each in losses.items()
        for seed, found in enumerate(each)
    ]


def report(*, commit: str = "a" * 40, **benches: Sequence[float]) -> dict[str, Any]:
    """What pytest-benchmark writes: `test_x=[…]` are the rounds of one benchmark, in seconds."""
    return {
        "machine_info": {
            "node": "here",
            "release": "6.1",
            "system": "Linux",
            "python_version": "3.11.7",
            "cpu": {"brand_raw": "a processor", "count": 2, "hz_actual": [1, 0], "flags": ["avx"]},
        },
        "commit_info": {"id": commit, "dirty": False, "project": "mine"},
        "datetime": "2026-11-21T12:06:37+00:00",
        "version": "5.3.1",
        "benchmarks": [
            {
                "name": test,
                "fullname": f"test_it.py::{test}",
                "params": None,
                "extra_info": {},
                "options": {"timer": "perf_counter", "disable_gc": False},
                "stats": {
                    "median": sorted(rounds)[len(rounds) // 2],
                    "rounds": len(rounds),
                    "data": list(rounds),
                    "iterations": 1,
                },
            }
            for test, rounds in benches.items()
        ],
    }


@pytest.fixture(scope="session", name="report")
def _report() -> Callable[..., dict[str, Any]]:
    return report


@pytest.fixture(scope="session", name="make")
def _make() -> Callable[..., Entry]:
    return make


@pytest.fixture(scope="session", name="record")
def _record() -> Callable[..., dict[str, Any]]:
    return record_of


@pytest.fixture(scope="session", name="ask")
def _ask() -> Callable[..., Question]:
    return ask


@pytest.fixture(scope="session", name="study")
def _study() -> Callable[..., list[Entry]]:
    return study

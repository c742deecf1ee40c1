"""P7: time to expand, check, name and deduplicate a study of a thousand trials."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.children import python
from benchmarks.claims import Claim, counted
from benchmarks.paired import estimate

from paribus.planning.plan import Plan, plan
from paribus.registry import Index, index
from paribus.specs.tree import plain_tree
from paribus.studies.study import parse_study

LIMIT = 0.1  # CPU seconds
NUMBERS = {
    "optimizer.lr": [1e-4 * (1 + step) for step in range(20)],
    "dropout": [0.01 * (1 + step) for step in range(10)],
}
COMPONENTS = {
    "attention": ["mqa", "mha", {"name": "gqa", "kv_heads": 2}, {"name": "restricted", "window": 8}],
    "position": ["rope", "alibi", "none", "sinusoidal", "learned"],
    "norm": ["rmsnorm", "layernorm"],
    "optimizer.lr": [1e-3, 2e-3, 3e-3, 4e-3, 5e-3],
}
CHILD = """
import sys, time
from benchmarks.bench_planning import *
known = index()
began = time.process_time()
planned({vary}, known)
print(time.process_time() - began, file=sys.stderr)
print("torch" in sys.modules, file=sys.stderr)
"""


def planned(vary: Mapping[str, Any], component_index: Index) -> Plan:
    """Return the plan of a grid with five seeds."""
    study = {"base": "encoder-tiny", "design": "grid", "vary": vary, "seeds": 5, "metric": {"name": "val/mlm/loss"}}
    return plan(
        parse_study("thousand", plain_tree(study, "study"), component_index),
        component_index,
        fingerprint=lambda spec: "text",
    )


def test_planning(bench: Any) -> None:
    component_index = index()
    larger = {**NUMBERS, "optimizer.weight_decay": [0.1 * factor for factor in range(8)]}
    assert len(planned(NUMBERS, component_index).trials) == 5 + 20 * 10 * 5
    times = bench.rounds(
        {
            "numbers": lambda: planned(NUMBERS, component_index),
            "components": lambda: planned(COMPONENTS, component_index),
            "eight times as many": lambda: planned(larger, component_index),
        },
        minimum=4,
        maximum=20,
    )
    contrast = estimate(times["eight times as many"])
    for name, description in (
        ("numbers", "20 rates x 10 dropouts x 5 seeds"),
        ("components", "200 architectures x 5 seeds"),
    ):
        bench.claim(Claim("P7", f"a plan of {description}", estimate(times[name]), "s", limit=LIMIT, contrast=contrast))


def test_planning_first_of_all(bench: Any) -> None:
    """Time processes that plan once, imports and the reading of the index included."""
    torch: list[bool] = []

    def child(vary: str) -> float:
        process = python(["-c", CHILD.format(vary=vary)])
        assert process.code == 0, process.errors
        torch.append(process.torch)
        return float(process.errors.split()[-2])

    names = {"NUMBERS": "20 rates x 10 dropouts x 5 seeds", "COMPONENTS": "200 architectures x 5 seeds"}
    times = bench.children({vary: partial(child, vary) for vary in names}, minimum=5, maximum=20)
    for vary, description in names.items():
        bench.claim(Claim("P7", f"the first plan of a process, {description}", estimate(times[vary]), "s", limit=LIMIT))
    bench.claim(counted("P7", "plans that import torch", sum(torch)))

"""P7: what it takes to expand, check, name and deduplicate a study of a thousand trials."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.children import python
from benchmarks.claims import Claim, counted
from benchmarks.paired import estimate

from paribus.planning.plan import Plan, plan
from paribus.registry import Index, index
from paribus.specs.input_limits import plain_tree
from paribus.studies.study import parse_study

LIMIT = 0.1  # CPU seconds
NUMBERS = {"optimizer.lr": [1e-4 * (1 + at) for at in range(20)], "dropout": [0.01 * (1 + at) for at in range(10)]}
COMPONENTS = {
    "attention": ["mqa", "mha", {"name": "gqa", "kv_heads": 2}, {"name": "restricted", "window": 8}],
    "position": ["rope", "alibi", "none", "sinusoidal", "learned"],
    "norm": ["rmsnorm", "layernorm"],
    "optimizer.lr": [1e-3, 2e-3, 3e-3, 4e-3, 5e-3],
}
ALONE = """
import sys, time
from benchmarks.bench_planning import *
known = index()
began = time.process_time()
planned({vary}, known)
print(time.process_time() - began, file=sys.stderr)
print("torch" in sys.modules, file=sys.stderr)
"""


def planned(vary: Mapping[str, Any], known: Index) -> Plan:
    """A grid with five seeds."""
    study = {"base": "encoder-tiny", "design": "grid", "vary": vary, "seeds": 5, "metric": {"name": "val/mlm/loss"}}
    return plan(parse_study("thousand", plain_tree(study, "study"), known), known, fingerprint=lambda spec: "text")


def test_planning(bench: Any) -> None:
    known = index()
    larger = {**NUMBERS, "optimizer.weight_decay": [0.1 * at for at in range(8)]}
    assert len(planned(NUMBERS, known).trials) == 5 + 20 * 10 * 5
    times = bench.rounds(
        {
            "numbers": lambda: planned(NUMBERS, known),
            "components": lambda: planned(COMPONENTS, known),
            "eight times as many": lambda: planned(larger, known),
        },
        least=4,
        most=20,
    )
    contrast = estimate(times["eight times as many"])
    for name, what in (("numbers", "20 rates x 10 dropouts x 5 seeds"), ("components", "200 architectures x 5 seeds")):
        bench.claim(Claim("P7", f"a plan of {what}", estimate(times[name]), "s", limit=LIMIT, contrast=contrast))


def test_planning_first_of_all(bench: Any) -> None:
    """Processes that plan once: they import what reads YAML, and read the files of the engine and of the components."""
    torch: list[bool] = []

    def child(vary: str) -> float:
        ended = python(["-c", ALONE.format(vary=vary)])
        assert ended.code == 0, ended.said
        torch.append(ended.torch)
        return float(ended.said.split()[-2])

    names = {"NUMBERS": "20 rates x 10 dropouts x 5 seeds", "COMPONENTS": "200 architectures x 5 seeds"}
    times = bench.children({vary: partial(child, vary) for vary in names}, least=5, most=20)
    for vary, what in names.items():
        bench.claim(Claim("P7", f"the first plan of a process, {what}", estimate(times[vary]), "s", limit=LIMIT))
    bench.claim(counted("P7", "plans that import torch", sum(torch)))

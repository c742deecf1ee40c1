"""Designs, settings, stages and budgets are made apart and asked for together: every pair is planned, or refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.planning.api import study
from paribus.registry import Index

SEEDS = 3
BASE: dict[str, Any] = {
    "base": {"preset": "encoder-tiny", "dims.width": 32, "dims.layers": 1, "dims.length": 32},
    "seeds": SEEDS,
    "budget": {"steps": 3},
    "metric": {"name": "val/mlm/loss", "margin": 0.05},
}
CHANGES = [{"name": "a", "norm": "rmsnorm"}, {"name": "b", "attention": "mqa"}, {"name": "c", "position": "alibi"}]
DESIGNS: dict[str, tuple[int, dict[str, Any]]] = {  # with how many variants there are, the baseline included
    "one-at-a-time": (3, {"vary": {"attention": ["mqa"], "norm": ["rmsnorm"]}}),
    "grid": (5, {"vary": {"attention": ["mqa", "gqa"], "norm": ["rmsnorm", "scalenorm"]}}),
    "grid, with conditions": (
        3,
        {"vary": {"attention": ["mha", "restricted"],
                  "attention.window": {"values": [4, 8], "when": {"attention": "restricted"}}}},
    ),
    "list": (2, {"variants": CHANGES[:1]}),
    "ladder": (4, {"changes": CHANGES}),
    "leave-one-out": (4, {"changes": CHANGES}),
    "factorial": (8, {"changes": CHANGES}),
    "factorial, half": (4, {"changes": CHANGES, "fraction": "1/2"}),
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "nothing else": {},
    "scales": {"scales": {"s": {"dims.width": 16}, "m": {"dims.width": 32}}},
    "tune": {"tune": {"optimizer.lr": [1e-3, 2e-3]}},
    "stages": {"stages": {"pretrain": {}, "finetune": {"objective": "mlm"}}},
    "seconds": {"budget": {"seconds": 5}},
    "scales and stages": {
        "scales": {"s": {"dims.width": 16}, "m": {"dims.width": 32}},
        "stages": {"pretrain": {}, "finetune": {"objective": "mlm"}},
    },
}
TRIALS = {"scales": 2, "stages": 2, "scales and stages": 4}  # for one of a plain study


@pytest.mark.few(16)
@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("design", DESIGNS)
def test_every_design_goes_with_every_setting(design: str, more: str, plugin_index: Index, tmp_path: Path) -> None:
    variants, says = DESIGNS[design]
    plan = study(
        {**BASE, "design": design.partition(",")[0], **says, **MORE[more]}, registry=plugin_index, store=tmp_path
    ).plan
    assert len(plan.variants) == variants
    identities = Counter(trial.identity for trial in plan.trials)
    assert set(identities.values()) == {1}
    if more != "tune":
        assert len(plan.trials) == variants * SEEDS * TRIALS.get(more, 1)
    else:  # what follows from the tuning is not known yet
        assert len(plan.trials) > variants * SEEDS
        assert not plan.is_complete


@pytest.mark.parametrize("design", ["ladder", "factorial"])
def test_designs_that_compare_variants_with_each_other_cannot_stop_early(
    design: str, plugin_index: Index, tmp_path: Path
) -> None:
    options = {"design": design, "stop": "when-decided", "seeds": 8}
    with raises_problem(SpecError, "incompatible-options", design):
        study({**BASE, **DESIGNS[design][1], **options}, registry=plugin_index, store=tmp_path)

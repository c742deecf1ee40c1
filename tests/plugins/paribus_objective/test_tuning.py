"""Tuning of a pretrained encoder on labels: kept, new and dropped parameters."""

import math
from pathlib import Path
from typing import Any

import pytest

from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.train.trial import TrialContext, run_trial

SMALL = ("dims.width=16", "dims.layers=2", "dims.heads=4", "dims.vocabulary=400", "data.batch=4", "data.validation=8")


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


def run_spec(registry: Registry, folder: Path, *overrides: str) -> dict[str, Any]:
    folder.mkdir()
    spec = resolved("bert-tiny", *SMALL, *overrides, registry=registry)
    result: dict[str, Any] = run_trial(spec, registry, TrialContext(folder.name, folder))["result"]
    return result


@pytest.fixture(scope="module")
def pretrained(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trials") / "pretrained"
    run_spec(registry, folder, "trainer.max_steps=2")
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("task", "head"),
    [
        (("classify", "word-order"), {"head.dense.weight", "head.scores.weight"}),
        (("tag", "code-words"), {"head.weight"}),
        (("extract", "cloze"), {"head.weight"}),
        (("choose", "continuations"), {"head.dense.weight", "head.scores.weight"}),
        (("regress", "overlap"), {"head.dense.weight", "head.scores.weight"}),
    ],
)
def test_tuning_keeps_the_body_and_replaces_the_head(
    task: tuple[str, str], head: set[str], pretrained: Path, registry: Registry, tmp_path: Path
) -> None:
    objective, corpus = task
    task_overrides = (f"from={pretrained}", f"objective={objective}", f"corpus={corpus}", "trainer.max_steps=2")
    result = run_spec(registry, tmp_path / "tuned", *task_overrides)
    warm_start = result["from"]
    assert warm_start["converted"] == {}
    assert all(path.startswith(("body.", "embedding.")) for path in warm_start["kept"])
    assert {f"objectives.{objective}.{path}" for path in head} <= set(warm_start["new"])
    assert all(path.startswith(f"objectives.{objective}.") for path in warm_start["new"])
    assert all(path.startswith(("objectives.mlm.", "objectives.nsp.")) for path in warm_start["dropped"])
    loss = f"val/{objective}/loss"
    assert 0 < result["learned_below"][loss] < result["unigram_baseline"][loss]
    assert all(map(math.isfinite, result["metrics"].values()))

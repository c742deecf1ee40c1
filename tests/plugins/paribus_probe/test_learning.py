"""A small decoder learns a probe task, and its measures agree with the literature."""

from pathlib import Path
from typing import Any

import pytest

import paribus
from paribus.specs import resolved
from paribus.train.trial import TrialContext, run_trial
from paribus_measure.induction_score import InductionScore
from paribus_measure.length_extrapolation import LengthExtrapolation
from paribus_measure.steps_to_threshold import StepsToThreshold
from paribus_probe.copy import Copy

LEARNED = 0.8  # share of exact answers; about 0 by chance
ANSWERS = "objective={name: completion, separator: false, stop: false}"
TAGS = "objective={name: tag, classes: 8}"
PAIRS = "measure=[{name: few-shot, corpus: {name: minimal-pairs, choices: true}, shots: [0], examples: 256}]"
EASY = (  # corpus, overrides, metric, the value that it reaches, steps
    ("{name: group-words, length: 16}", (TAGS, "attention=lstm", "position=none"), "val/tag/accuracy", 0.95, 450),
    ("memorise", (TAGS,), "val/tag/accuracy", 0.95, 300),
    ("minimal-pairs", (PAIRS,), "val/few-shot/accuracy.k0", 0.8, 400),
    ("{name: addition, digits: 2}", (ANSWERS, "optimizer.lr=4e-3"), "val/completion/exact", 0.9, 1200),
    (
        "{name: depo, nodes: 3, hops: 1, symbols: 16}",
        ("objective={name: completion, separator: false, marks: true}", "optimizer.lr=4e-3"),
        "val/completion/accuracy",
        0.8,
        800,
    ),
    (
        "{name: mano, operations: 4, modulus: 2}",
        (ANSWERS, "attention=lstm", "position=none", "optimizer.lr=4e-3"),
        "val/completion/exact",
        0.9,
        800,
    ),
    (
        "{name: brevo, nodes: 4, symbols: 6}",
        ("objective={name: completion, separator: false}",),
        "val/completion/accuracy",
        0.8,
        800,
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize(("corpus", "overrides", "metric", "value", "steps"), EASY)
def test_a_tiny_model_learns_an_easy_form_of_a_task(
    corpus: str, overrides: tuple[str, ...], metric: str, value: float, steps: int, tmp_path: Path
) -> None:
    registry = paribus.installed()
    size = ("tokenizer=symbols", "position=rope", "dims.length=24", "data={batch: 32, workers: 0}")
    budget = f"trainer.max_steps={steps}"
    spec = resolved("gpt-tiny", f"corpus={corpus}", *size, *overrides, budget, registry=registry)
    metrics = run_trial(spec, registry, TrialContext("task", tmp_path))["result"]["metrics"]
    assert metrics[metric] >= value


@pytest.mark.slow
def test_a_decoder_learns_to_copy_but_not_longer_texts(tmp_path: Path) -> None:
    """Rotary positions do not extend to untrained distances: "Train Short, Test Long" (Press et al. 2022)."""
    offers: Any = {
        "corpus": {"probed": Copy},
        "measure": {"longer": LengthExtrapolation, "induced": InductionScore, "when": StepsToThreshold},
    }
    registry = paribus.installed().with_components(**offers)
    spec = resolved(
        "gpt-tiny",
        "corpus={name: probed, length: 8, symbols: 8}",
        "tokenizer=symbols",
        "objective={name: completion, separator: false, stop: false}",
        f"measure=[induced, longer, {{name: when, metric: val/completion/exact, value: {LEARNED}}}]",
        "position=rope",
        "dims.length=18",
        "data={batch: 32, evaluations: 10, workers: 0}",
        "trainer.max_steps=1000",
        registry=registry,
    )
    result = run_trial(spec, registry, TrialContext("copy", tmp_path))["result"]
    metrics = result["metrics"]
    assert metrics["val/completion/loss"] < 0.1 < result["unigram_baseline"]["val/completion/loss"]
    assert metrics["val/completion/exact"] >= LEARNED
    passed = [point["step"] for point in result["curve"] if point["val/completion/exact"] >= LEARNED]
    assert (metrics["val/when/reached"], metrics["val/when/steps"]) == (1.0, passed[0])
    assert metrics["val/induced/gain"] > 1  # nats of gain on repeated random tokens
    assert metrics["val/longer/completion.exact.x2"] < 0.1
    assert metrics["val/longer/completion.loss.x2"] > 10 * metrics["val/completion/loss"]

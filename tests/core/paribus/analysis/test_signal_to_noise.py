"""Signal to noise of metrics, compared with least squares, and from the records of a study."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import scipy.stats

from paribus.analysis.calibrate import calibrate_entries
from paribus.analysis.signal_to_noise import signal_to_noise, signals
from paribus.analysis.trials import ComparisonSpec, TrialEntry

Study = Callable[..., list[TrialEntry]]
Ask = Callable[..., ComparisonSpec]
Make = Callable[..., TrialEntry]

LOSS, ACCURACY = "val/mlm/loss", "val/mlm/accuracy"
BASELINE = [2.00, 2.03, 1.98, 2.01, 2.05]
CLOSE = [2.011, 2.039, 1.992, 2.021, 2.058]
WILD = [2.05, 1.97, 2.06, 1.95, 2.07]


def draws(models: int, n: int, signal: float) -> list[list[float]]:
    rng = np.random.default_rng([models, n, int(10 * signal)])
    values = 2 + rng.normal(size=n) + signal * rng.normal(size=(models, 1)) + rng.normal(size=(models, n))
    return [list(map(float, row)) for row in values]


@pytest.mark.parametrize(("models", "n", "signal"), [(3, 2, 1.0), (4, 5, 0.0), (8, 12, 2.0)])
def test_the_estimates_are_those_of_least_squares(models: int, n: int, signal: float) -> None:
    values = np.array(draws(models, n, signal))
    rows, columns = np.indices(values.shape).reshape(2, -1)
    factors = np.hstack([np.eye(models)[rows], np.eye(n)[columns]])
    degrees = (models - 1, (models - 1) * (n - 1))
    residual, without = (
        float(((values.ravel() - x @ np.linalg.lstsq(x, values.ravel(), rcond=None)[0]) ** 2).sum())
        for x in (factors, np.eye(n)[columns])
    )
    noise, between = residual / degrees[1], (without - residual) / degrees[0]
    found = signal_to_noise("m", values.tolist())
    assert found.seed_noise == pytest.approx(math.sqrt(noise))
    assert found.signal == pytest.approx(math.sqrt(max(0.0, between - noise) / n))
    assert found.interval is not None
    assert found.ratio == pytest.approx(math.sqrt(max(0.0, between / noise - 1) / n))
    for end, tail in zip(found.interval, (0.975, 0.025), strict=True):
        expected = max(0.0, between / noise / scipy.stats.f.ppf(tail, *degrees) - 1) / n
        assert end**2 == pytest.approx(expected)


def test_two_models_have_noise_and_no_signal() -> None:
    found = signal_to_noise("m", [BASELINE, WILD])
    difference = np.subtract(WILD, BASELINE)
    assert found.seed_noise == pytest.approx(difference.std(ddof=1) / math.sqrt(2))
    assert (found.signal, found.ratio, found.interval) == (None, None, None)


def test_equal_seeds_have_no_ratio() -> None:
    found = signal_to_noise("m", [[value + shift for value in BASELINE] for shift in (0.1, 0.2, 0.4)])
    assert (found.seed_noise, found.ratio) == (0.0, None)


def trial(make: Make, variant: str, seed: int, losses: Sequence[float], accuracy: float) -> TrialEntry:
    curve = [{"step": 10 * step, LOSS: loss, ACCURACY: accuracy} for step, loss in enumerate(losses)]
    return make(variant, seed, edits={"result/curve": curve, "result/metrics": {LOSS: losses[-1], ACCURACY: accuracy}})


@pytest.mark.parametrize("points", [8, 4, 3])
def test_the_noise_of_evaluations_is_that_around_a_line_without_what_variants_share(
    make: Make, ask: Ask, points: int
) -> None:
    rng = np.random.default_rng(0)
    slopes, shared, own = rng.normal(size=(3, 2, 1)), rng.normal(size=(2, 8)), rng.normal(size=(3, 2, 8))
    losses = (9 - slopes * np.arange(8) + 5 * shared + own)[..., -points:]
    names = ("baseline", "mqa", "gqa")
    models = [
        {seed: trial(make, name, seed, losses[i, seed].tolist(), seed + 0.1) for seed in (0, 1)}
        for i, name in enumerate(names)
    ]
    loss, accuracy = signals(models, ask([it for own in models for it in own.values()]))
    assert (loss.metric, accuracy.metric) == (LOSS, ACCURACY)
    if points == 3:
        assert (loss.evaluation_noise, accuracy.evaluation_noise) == (None, None)
        return
    last = own[..., -min(points, 5) :]
    line = np.vander(np.arange(last.shape[-1]), 2)
    residuals = last - last @ line @ np.linalg.pinv(line)
    residuals -= residuals.mean(0)
    assert loss.evaluation_noise == pytest.approx(math.sqrt(float((residuals**2).sum()) / (2 * 2 * (len(line) - 2))))
    assert accuracy.evaluation_noise == pytest.approx(0)


def test_only_metrics_and_seeds_of_all_trials_count(make: Make, ask: Ask) -> None:
    entries = [trial(make, variant, seed, [2.0, 2.0 + seed], 0.5) for variant in ("a", "b") for seed in range(4)]
    assert entries[0].record is not None
    del entries[0].record["result"]["metrics"][ACCURACY]
    models = [{it.seed: it for it in entries[:4]}, {it.seed: it for it in entries[4:7]}]
    assert [(it.metric, it.n) for it in signals(models, ask(entries))] == [(LOSS, 3)]
    assert signals(models[:1], ask(entries)) == ()


def test_a_calibration_has_the_signal_of_three_models_and_not_of_two(study: Study, ask: Ask) -> None:
    three = study(baseline=BASELINE, mqa=CLOSE, gqa=[value + 0.4 for value in WILD])
    calibration = calibrate_entries(three, ask(three))
    expected = signal_to_noise(LOSS, [BASELINE, CLOSE, [value + 0.4 for value in WILD]])
    assert calibration.signals[0] == expected
    assert json.loads(json.dumps(calibration.to_json()))["signals"][0]["ratio"] == pytest.approx(expected.ratio)
    assert "signal to noise" in str(calibration)
    two = study(baseline=BASELINE, mqa=CLOSE, gqa=["pending"] * 5)
    assert calibrate_entries(two, ask(two)).signals[0].signal is None

"""Error rate over all families of a page: ladders in several settings without any true difference."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from paribus.analysis.compare import compare_settings
from paribus.analysis.table import Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]

RUNGS = {"one": {"norm": "rmsnorm"}, "two": {"norm": "rmsnorm", "attention": "mqa"}}
BELOW = {"one": "baseline", "two": "one"}


def page(make: Make, ask: Ask, rng: np.random.Generator, settings: int) -> Table:
    """A ladder of two rungs, six seeds each, whose losses are all of one distribution."""
    settings_entries = []
    for index in range(settings):
        entries = [
            make(name, seed, varied=varied, loss=2 + float(rng.normal(0, 0.1)))
            for seed in range(6)
            for name, varied in {"baseline": {}, **RUNGS}.items()
        ]
        settings_entries.append((entries, dataclasses.replace(ask(entries), setting=f"s{index}", rungs_below=BELOW)))
    return compare_settings(settings_entries)


def test_the_steps_of_all_settings_share_one_alpha(make: Make, ask: Ask) -> None:
    rng = np.random.default_rng(0)
    table = page(make, ask, rng, 2)
    steps = [item.families[0] for item in table.settings]
    levels = [row.level for item in steps for row in item.rows if row.level is not None]
    assert min(levels) >= 0.975
    assert "Holm over 2 steps at 97.5 %, and so those of all 2 settings together at 95 %" in steps[0].caption[0]
    assert "with the verdicts above, 90 % for both together" in steps[0].caption[0]
    assert any("All verdicts of variants together hold with 95 % confidence" in line for line in table.caption)
    (alone,) = page(make, ask, rng, 1).families
    assert "Holm over 2 steps at 95 %; with the verdicts above, 90 % for both together" in alone.caption[0]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [1, 3])
def test_null_studies_keep_the_stated_error_rate(make: Make, ask: Ask, settings: int) -> None:
    rng = np.random.default_rng(1)
    variants = steps = 0
    for _ in range(150):
        table = page(make, ask, rng, settings)
        variants += any(
            row.kind in ("better", "worse") for setting_table in table.settings for row in setting_table.rows
        )
        steps += any(
            row.kind in ("better", "worse")
            for setting_table in table.settings
            for row in setting_table.families[0].rows
        )
    assert variants <= 0.09 * 150  # 5 % and what luck may add to it in so many
    assert steps <= 0.09 * 150

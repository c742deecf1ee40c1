"""Transfer of verdicts across scales, and rank agreement with intervals over seeds."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.analysis.scale_transfer import DECIDED, kendall_tau, rank_agreement, transfer_verdict

KINDS = ("better", "worse", "equivalent", "inconclusive", "diverged", "withheld", "missing")


def test_a_verdict_transfers_only_where_every_scale_decides_and_alike() -> None:
    """Check all combinations of verdicts at three scales."""
    for kinds in product(KINDS, repeat=3):
        verdict = transfer_verdict(kinds)
        if "better" in kinds and "worse" in kinds:
            assert verdict == "reverses", kinds
        elif kinds[0] == kinds[1] == kinds[2] and kinds[0] in DECIDED:
            assert verdict == "transfers", kinds
        else:
            assert verdict == "undecided", kinds
        assert transfer_verdict(kinds[::-1]) == verdict


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (("worse", "worse"), "transfers"),
        (("equivalent", "equivalent"), "transfers"),
        (("worse", "equivalent"), "undecided"),
        (("worse", "inconclusive"), "undecided"),
        (("inconclusive", "inconclusive"), "undecided"),
        (("better", "inconclusive", "worse"), "reverses"),
        (("diverged", "diverged"), "undecided"),
        (("withheld", "withheld"), "undecided"),
    ],
)
def test_transfer_verdict_of_two_scales(kinds: Sequence[str], expected: str) -> None:
    assert transfer_verdict(kinds) == expected


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=12))
def test_tau_is_that_of_scipy(pairs: list[tuple[int, int]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    small, large = zip(*pairs, strict=True)
    tau = kendall_tau(small, large)
    expected = stats.kendalltau(small, large, variant="b").statistic
    if math.isnan(expected):
        assert tau is None
    else:
        assert tau == pytest.approx(expected, abs=1e-12)


def drawn(effects: Sequence[float], noise: float, seeds: int, rng: random.Random) -> Mapping[str, Mapping[int, float]]:
    """Differences of variants with these true effects."""
    return {
        f"v{place}": {seed: effect + rng.gauss(0, noise) for seed in range(seeds)}
        for place, effect in enumerate(effects)
    }


def test_a_stable_order_agrees() -> None:
    rng = random.Random(1)
    same_order = rank_agreement(drawn((0, 1, 2, 3), 0.01, 5, rng), drawn((0, 2, 4, 5), 0.01, 5, rng))
    assert (same_order.tau, same_order.low, same_order.high) == (1.0, 1.0, 1.0)
    assert same_order.verdict == "agree"
    reversed_order = rank_agreement(drawn((0, 1, 2, 3), 0.01, 5, rng), drawn((3, 2, 1, 0), 0.01, 5, rng))
    assert reversed_order.verdict == "reverse"
    assert reversed_order.tau == -1.0


@pytest.mark.thorough
def test_a_random_order_rarely_agrees() -> None:
    """Without true differences, any order of the variants comes from the seeds."""
    rng = random.Random(2)
    verdicts = [rank_agreement(drawn((0,) * 4, 1.0, 5, rng), drawn((0,) * 4, 1.0, 5, rng)).verdict for _ in range(20)]
    assert sum(verdict != "undecided" for verdict in verdicts) <= 1


def test_noise_shared_between_scales_is_no_agreement() -> None:
    differences = drawn((0, 0, 0), 1.0, 5, random.Random(8))
    agreement = rank_agreement(differences, differences)
    assert agreement.tau == 1.0
    assert agreement.verdict == "undecided"


def test_few_equal_seeds_give_no_interval() -> None:
    """A metric that counts a few examples may by chance give the same difference on every seed."""
    five_seeds, six_seeds = (
        {f"v{place}": dict.fromkeys(range(seeds), place) for place in range(3)} for seeds in (5, 6)
    )
    assert (rank_agreement(five_seeds, five_seeds).low, rank_agreement(five_seeds, five_seeds).verdict) == (
        None,
        "undecided",
    )
    assert rank_agreement(six_seeds, six_seeds).verdict == "agree"


def test_the_same_records_give_the_same_interval() -> None:
    small, large = (drawn((0, 0.3, 0.5), 0.5, 5, random.Random(seed)) for seed in (3, 4))
    assert rank_agreement(small, large) == rank_agreement(small, large)


def test_only_seeds_that_all_variants_have_count() -> None:
    rng = random.Random(5)
    small, large = (drawn((0, 1), 0.01, 5, rng) for _ in range(2))
    incomplete = {"v0": dict(list(small["v0"].items())[:3]), "v1": small["v1"]}
    assert rank_agreement(incomplete, large).seeds == 3


@pytest.mark.parametrize("variants", [0, 1])
def test_fewer_than_two_variants_have_no_order(variants: int) -> None:
    differences = drawn((0, 1)[:variants], 0.1, 5, random.Random(6))
    agreement = rank_agreement(differences, differences)
    assert (agreement.tau, agreement.verdict) == (None, "undecided")


def test_one_seed_has_no_interval() -> None:
    differences = drawn((0, 1, 2), 0.1, 1, random.Random(7))
    agreement = rank_agreement(differences, differences)
    assert agreement.tau == 1.0
    assert agreement.low is None
    assert agreement.verdict == "undecided"

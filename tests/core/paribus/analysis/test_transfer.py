"""Whether a verdict transfers is said only where every scale decides, and an order only where seeds would keep it."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.analysis.transfer import DECIDED, kendall_tau, rank_agreement, transfer_verdict

KINDS = ("better", "worse", "equivalent", "inconclusive", "diverged", "withheld", "missing")


def test_a_verdict_transfers_only_where_every_scale_decides_and_alike() -> None:
    """The whole truth table of three scales."""
    for kinds in product(KINDS, repeat=3):
        found = transfer_verdict(kinds)
        if "better" in kinds and "worse" in kinds:
            assert found == "reverses", kinds
        elif kinds[0] == kinds[1] == kinds[2] and kinds[0] in DECIDED:
            assert found == "transfers", kinds
        else:
            assert found == "undecided", kinds
        assert transfer_verdict(kinds[::-1]) == found


@pytest.mark.parametrize(
    ("kinds", "said"),
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
def test_what_two_scales_say(kinds: Sequence[str], said: str) -> None:
    assert transfer_verdict(kinds) == said


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=12))
def test_tau_is_that_of_scipy(pairs: list[tuple[int, int]]) -> None:
    stats = pytest.importorskip("scipy.stats")
    first, second = zip(*pairs, strict=True)
    found = kendall_tau(first, second)
    wanted = stats.kendalltau(first, second, variant="b").statistic
    if math.isnan(wanted):
        assert found is None
    else:
        assert found == pytest.approx(wanted, abs=1e-12)


def drawn(
    effects: Sequence[float], noise: float, seeds: int, chance: random.Random
) -> Mapping[str, Mapping[int, float]]:
    """Differences of variants with these true effects."""
    return {
        f"v{place}": {seed: effect + chance.gauss(0, noise) for seed in range(seeds)}
        for place, effect in enumerate(effects)
    }


def test_an_order_that_no_seed_disturbs_agrees() -> None:
    chance = random.Random(1)
    found = rank_agreement(drawn((0, 1, 2, 3), 0.01, 5, chance), drawn((0, 2, 4, 5), 0.01, 5, chance))
    assert (found.tau, found.low, found.high) == (1.0, 1.0, 1.0)
    assert found.verdict == "agree"
    other = rank_agreement(drawn((0, 1, 2, 3), 0.01, 5, chance), drawn((3, 2, 1, 0), 0.01, 5, chance))
    assert other.verdict == "reverse"
    assert other.tau == -1.0


def test_an_order_of_noise_is_rarely_said_to_agree() -> None:
    """Where all variants are truly alike, whatever order shows is that of the seeds."""
    chance = random.Random(2)
    told = [rank_agreement(drawn((0,) * 4, 1.0, 5, chance), drawn((0,) * 4, 1.0, 5, chance)).verdict for _ in range(20)]
    assert sum(each != "undecided" for each in told) <= 1


def test_noise_that_a_seed_brings_to_both_scales_is_no_agreement() -> None:
    one = drawn((0, 0, 0), 1.0, 5, random.Random(8))
    found = rank_agreement(one, one)
    assert found.tau == 1.0
    assert found.verdict == "undecided"


def test_a_few_seeds_that_all_say_the_same_are_no_certainty() -> None:
    """A metric that counts a few examples may give one difference on every seed: by chance, with so few of them."""
    few, more = ({f"v{place}": dict.fromkeys(range(seeds), place) for place in range(3)} for seeds in (5, 6))
    assert (rank_agreement(few, few).low, rank_agreement(few, few).verdict) == (None, "undecided")
    assert rank_agreement(more, more).verdict == "agree"


def test_the_same_records_give_the_same_interval() -> None:
    first, second = (drawn((0, 0.3, 0.5), 0.5, 5, random.Random(seed)) for seed in (3, 4))
    assert rank_agreement(first, second) == rank_agreement(first, second)


def test_only_seeds_that_all_variants_have_count() -> None:
    chance = random.Random(5)
    first, second = (drawn((0, 1), 0.01, 5, chance) for _ in range(2))
    less = {"v0": dict(list(first["v0"].items())[:3]), "v1": first["v1"]}
    assert rank_agreement(less, second).seeds == 3


@pytest.mark.parametrize("variants", [0, 1])
def test_fewer_than_two_variants_have_no_order(variants: int) -> None:
    one = drawn((0, 1)[:variants], 0.1, 5, random.Random(6))
    found = rank_agreement(one, one)
    assert (found.tau, found.verdict) == (None, "undecided")


def test_one_seed_has_no_interval() -> None:
    one = drawn((0, 1, 2), 0.1, 1, random.Random(7))
    found = rank_agreement(one, one)
    assert found.tau == 1.0
    assert found.low is None
    assert found.verdict == "undecided"

"""P4: how the cost of an attention grows with the rows: of each that is registered, and of windows above all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from benchmarks.attending import Job, runner, sample
from benchmarks.claims import Claim
from benchmarks.paired import Estimate, estimate, exponent, local_slopes, ratio
from benchmarks.peak import peaks

from paribus.registry import Registry, index, installed

SIZES = (512, 1024, 2048, 4096, 8192)
SMALLER = (256, 512, 1024, 2048, 4096)  # for all others, some of which write out every weight
WINDOW = {"window": 65}  # 64 rows to each side: ModernBERT's window of 128
MODES = {"forward": False, "forward and backward": True}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


@pytest.mark.parametrize("mode", MODES)
def test_time_of_a_window(bench: Any, registry: Registry, mode: str) -> None:
    windowed = grown(bench, registry, Job("restricted", WINDOW, 0, MODES[mode], "mixing"), SIZES, least=8)
    full = grown(bench, registry, Job("mha", {}, 0, MODES[mode], "mixing"), SIZES, least=3, share=0.5)
    where = f"n {SIZES[0]}…{SIZES[-1]}, {mode}"
    bench.claim(
        Claim(
            "P4",
            f"restricted, time exponent, {where}",
            exponent(SIZES, windowed),
            unit="",
            limit=1.10,
            contrast=exponent(SIZES, full),
            note=slopes(windowed, SIZES),
        ),
        Claim(
            "P4",
            f"full attention, time exponent, {where}",
            exponent(SIZES, full),
            unit="",
            limit=1.9,
            at_most=False,
            note=slopes(full, SIZES),
        ),
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_window_against_a_band_mask(bench: Any, registry: Registry, mode: str) -> None:
    job = Job("restricted", WINDOW, SIZES[-1], MODES[mode], "mixing")
    windowed = runner(registry, job)
    masked = runner(registry, job._replace(masked=True))
    times = bench.rounds({"restricted": windowed, "twin": windowed, "band mask": masked}, least=5, warm=1)
    bench.claim(
        Claim(
            "P4",
            f"a band mask / restricted, time, n {SIZES[-1]}, {mode}",
            ratio(times["band mask"], times["restricted"]),
            limit=25,
            at_most=False,
            twin=ratio(times["twin"], times["restricted"]),
        )
    )


def test_memory_of_a_window(bench: Any) -> None:
    jobs = [Job("restricted", WINDOW, rows, True, "pass") for rows in SIZES]
    masked = [job._replace(masked=True) for job in jobs[:-1]]  # the last would take a minute
    found = bench.once(lambda: peaks([*jobs * 3, *masked]))
    count = len(SIZES)
    windowed, dense = [found[at : at + count] for at in range(0, 3 * count, count)], [found[3 * count :]]
    bench.claim(
        Claim(
            "P4",
            f"restricted, memory exponent, n {SIZES[0]}…{SIZES[-1]}, forward and backward",
            exponent(SIZES, windowed),
            unit="",
            limit=1.05,
            contrast=exponent(SIZES[:-1], dense),
            note=slopes(windowed, SIZES),
        )
    )


@pytest.mark.parametrize("name", [entry.name for entry in index().entries["attention"].values()])
def test_time_of_each(bench: Any, registry: Registry, name: str) -> None:
    for mode, backward in MODES.items():
        times = grown(bench, registry, Job(name, sample(registry, name), 0, backward), SMALLER, least=3, share=0.2)
        told = estimate([each[-1] for each in times]).times(1e3)
        bench.claim(
            Claim("", f"{name}, time exponent, {mode}", exponent(SMALLER, times), "", note=slopes(times, SMALLER)),
            Claim("", f"{name}, n {SMALLER[-1]}, {mode}", told, "ms"),
        )


def test_memory_of_each(bench: Any, registry: Registry) -> None:
    names = [entry.name for entry in index().entries["attention"].values()]
    jobs = [Job(name, sample(registry, name), rows, True) for name in names for rows in SMALLER]
    found = bench.once(lambda: peaks(jobs))
    for at, name in enumerate(names):
        own = found[at * len(SMALLER) : (at + 1) * len(SMALLER)]
        power, most = exponent(SMALLER, [own]), own[-1] / 2**20
        bench.claim(
            Claim("", f"{name}, memory exponent, forward and backward", power, "", note=slopes([own], SMALLER)),
            Claim("", f"{name}, n {SMALLER[-1]}, memory, forward and backward", Estimate(most, most, most), "MiB"),
        )


def grown(
    bench: Any, registry: Registry, job: Job, sizes: Sequence[int], *, least: int, share: float = 1.0
) -> list[list[float]]:
    """CPU seconds, round by round and size by size."""
    mode = "forward and backward" if job.backward else "forward"
    names = {rows: f"{job.attention}, n {rows}, {mode}" for rows in sizes}
    contestants = {names[rows]: runner(registry, job._replace(rows=rows)) for rows in sizes}
    times = bench.rounds(contestants, least=least, most=40, share=share, warm=1)
    return [list(each) for each in zip(*(times[names[rows]] for rows in sizes), strict=True)]


def slopes(rounds: Sequence[Sequence[float]], sizes: Sequence[int]) -> str:
    return "local slopes " + ", ".join(f"{slope:.2f}" for slope in local_slopes(sizes, rounds))

"""P4: growth of time and memory of each registered attention with sequence length, windows in particular."""

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
SMALLER = (256, 512, 1024, 2048, 4096)  # for the other attentions, some of which store every weight
WINDOW = {"window": 65}  # 64 tokens to each side: ModernBERT's window of 128
PEAK_JOB = "benchmarks.attending:peak_job"
MODES = {"forward": False, "forward and backward": True}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


@pytest.mark.parametrize("mode", MODES)
def test_time_of_a_window(bench: Any, registry: Registry, mode: str) -> None:
    windowed = times_by_size(bench, registry, Job("restricted", WINDOW, 0, MODES[mode], "mixing"), SIZES, minimum=8)
    full = times_by_size(bench, registry, Job("mha", {}, 0, MODES[mode], "mixing"), SIZES, minimum=3, share=0.5)
    description = f"n {SIZES[0]}…{SIZES[-1]}, {mode}"
    bench.claim(
        Claim(
            "P4",
            f"restricted, time exponent, {description}",
            exponent(SIZES, windowed),
            unit="",
            limit=1.05,
            contrast=exponent(SIZES, full),
            note=slopes(windowed, SIZES),
        ),
        Claim(
            "P4",
            f"full attention, time exponent, {description}",
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
    times = bench.rounds({"restricted": windowed, "twin": windowed, "band mask": masked}, minimum=5, warmup=1)
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
    masked = [job._replace(masked=True) for job in jobs[:-1]]  # the longest would take a minute
    bytes_used = bench.once(lambda: peaks(PEAK_JOB, [job._asdict() for job in [*jobs * 3, *masked]]))
    count = len(SIZES)
    windowed, dense = (
        [bytes_used[start : start + count] for start in range(0, 3 * count, count)],
        [bytes_used[3 * count :]],
    )
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
        times = times_by_size(
            bench, registry, Job(name, sample(registry, name), 0, backward), SMALLER, minimum=3, share=0.2
        )
        largest = estimate([round_times[-1] for round_times in times]).times(1e3)
        bench.claim(
            Claim("", f"{name}, time exponent, {mode}", exponent(SMALLER, times), "", note=slopes(times, SMALLER)),
            Claim("", f"{name}, n {SMALLER[-1]}, {mode}", largest, "ms"),
        )


def test_memory_of_each(bench: Any, registry: Registry) -> None:
    names = [entry.name for entry in index().entries["attention"].values()]
    jobs = [Job(name, sample(registry, name), rows, True) for name in names for rows in SMALLER]
    bytes_used = bench.once(lambda: peaks(PEAK_JOB, [job._asdict() for job in jobs]))
    for number, name in enumerate(names):
        component_bytes = bytes_used[number * len(SMALLER) : (number + 1) * len(SMALLER)]
        power, peak = exponent(SMALLER, [component_bytes]), component_bytes[-1] / 2**20
        bench.claim(
            Claim(
                "", f"{name}, memory exponent, forward and backward", power, "", note=slopes([component_bytes], SMALLER)
            ),
            Claim("", f"{name}, n {SMALLER[-1]}, memory, forward and backward", Estimate(peak, peak, peak), "MiB"),
        )


def times_by_size(
    bench: Any, registry: Registry, job: Job, sizes: Sequence[int], *, minimum: int, share: float = 1.0
) -> list[list[float]]:
    """Return CPU seconds by round and size."""
    mode = "forward and backward" if job.backward else "forward"
    names = {rows: f"{job.attention}, n {rows}, {mode}" for rows in sizes}
    contestants = {names[rows]: runner(registry, job._replace(rows=rows)) for rows in sizes}
    times = bench.rounds(contestants, minimum=minimum, maximum=40, share=share, warmup=1)
    return [list(round_times) for round_times in zip(*(times[names[rows]] for rows in sizes), strict=True)]


def slopes(rounds: Sequence[Sequence[float]], sizes: Sequence[int]) -> str:
    return "local slopes " + ", ".join(f"{slope:.2f}" for slope in local_slopes(sizes, rounds))

"""Fixtures of the benchmarks: rounds of contestants under pytest-benchmark, and claims."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, final

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # `import benchmarks.paired`, however pytest was started

from benchmarks import claims, machine  # after the change of sys.path
from benchmarks.paired import Rounds

Result = TypeVar("Result")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seconds", type=float, default=12.0, help="wall seconds for each comparison; a small value for a quick check"
    )


def pytest_benchmark_generate_machine_info() -> dict[str, Any]:
    return machine.described()


@final
class Bench:
    """Timing of a benchmark, and its claims."""

    def __init__(self, fixture: Any, seconds: float) -> None:
        self.fixture = fixture
        self.seconds = seconds
        fixture.extra_info["claims"] = []

    def rounds(
        self,
        contestants: Mapping[str, Callable[[], object]],
        *,
        minimum: int = 5,
        maximum: int = 200,
        share: float = 1.0,
        warmup: int = 2,
    ) -> dict[str, list[float]]:
        """Return CPU seconds of each contestant by round, for as many rounds as fit into `--seconds`."""
        return self._run(Rounds(contestants), minimum, maximum, share, warmup)

    def children(
        self, contestants: Mapping[str, Callable[[], float]], *, minimum: int, maximum: int
    ) -> dict[str, list[float]]:
        """Return the same for contestants that run in separate processes and return their CPU seconds."""
        return self._run(Rounds(contestants, lambda run: run()), minimum, maximum, 1.0, 1)

    def _run(self, rounds: Rounds, minimum: int, maximum: int, share: float, warmup: int) -> dict[str, list[float]]:
        duration = rounds.warm(warmup)
        count = min(maximum, max(minimum, int(self.seconds * share / max(duration, 1e-4))))
        if self.fixture.stats is None:
            self.fixture.pedantic(rounds, rounds=count)
        else:  # pytest-benchmark times one call in a test
            for _ in range(count):
                rounds()
        self.save(rounds.times)
        return rounds.times

    def once(self, run: Callable[[], Result]) -> Result:
        """Run a function once that measures itself."""
        result: Result = self.fixture.pedantic(run, rounds=1)
        return result

    def save(self, times: Mapping[str, list[float]]) -> None:
        """Save the raw rounds."""
        self.fixture.extra_info.setdefault("microseconds", {}).update(claims.microseconds(times))

    def claim(self, *new_claims: claims.Claim) -> None:
        self.fixture.extra_info["claims"] += claims.to_json(new_claims)


@pytest.fixture
def bench(benchmark: Any, request: pytest.FixtureRequest) -> Bench:
    return Bench(benchmark, request.config.getoption("--seconds"))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Use one thread, since two threads on two shared cores would measure other processes."""
    import torch

    torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    config.option.benchmark_timer = "time.process_time"
    config.option.benchmark_disable_gc = True

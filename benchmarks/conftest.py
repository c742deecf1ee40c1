"""What every benchmark is given: rounds of contestants under pytest-benchmark, and a place for what they show."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, final

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))  # `import benchmarks.paired`, however pytest was started

from benchmarks import claims, machine  # the line above lets it be found
from benchmarks.paired import Rounds

Result = TypeVar("Result")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seconds", type=float, default=12.0, help="wall seconds for each comparison; tiny ones show whether it runs"
    )


def pytest_benchmark_generate_machine_info() -> dict[str, Any]:
    return machine.described()


@final
class Bench:
    """One benchmark: it is timed once, and may claim as much as it likes."""

    def __init__(self, fixture: Any, seconds: float) -> None:
        self.fixture = fixture
        self.seconds = seconds
        fixture.extra_info["claims"] = []

    def rounds(
        self,
        contestants: Mapping[str, Callable[[], object]],
        *,
        least: int = 5,
        most: int = 200,
        share: float = 1.0,
        warm: int = 2,
    ) -> dict[str, list[float]]:
        """CPU seconds of each contestant, round by round: as many rounds as `--seconds` has room for."""
        return self._run(Rounds(contestants), least, most, share, warm)

    def children(
        self, contestants: Mapping[str, Callable[[], float]], *, least: int, most: int
    ) -> dict[str, list[float]]:
        """The same for contestants that run in processes of their own, and return their CPU seconds."""
        return self._run(Rounds(contestants, lambda run: run()), least, most, 1.0, 1)

    def _run(self, rounds: Rounds, least: int, most: int, share: float, warm: int) -> dict[str, list[float]]:
        took = rounds.warm(warm)
        count = min(most, max(least, int(self.seconds * share / max(took, 1e-4))))
        if self.fixture.stats is None:
            self.fixture.pedantic(rounds, rounds=count)
        else:  # pytest-benchmark times one thing a test
            for _ in range(count):
                rounds()
        self.save(rounds.times)
        return rounds.times

    def once(self, run: Callable[[], Result]) -> Result:
        """For what measures itself, in processes of its own."""
        found: Result = self.fixture.pedantic(run, rounds=1)
        return found

    def save(self, times: Mapping[str, list[float]]) -> None:
        """The raw rounds, for whoever wants to judge them otherwise."""
        self.fixture.extra_info.setdefault("microseconds", {}).update(claims.microseconds(times))

    def claim(self, *found: claims.Claim) -> None:
        self.fixture.extra_info["claims"] += claims.to_json(found)


@pytest.fixture
def bench(benchmark: Any, request: pytest.FixtureRequest) -> Bench:
    return Bench(benchmark, request.config.getoption("--seconds"))


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Two threads on two shared cores measure the neighbours."""
    import torch

    torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    config.option.benchmark_timer = "time.process_time"
    config.option.benchmark_disable_gc = True

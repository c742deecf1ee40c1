"""P8: CPU time of commands that do not need torch, from the start of Python to its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from benchmarks.children import Ran, python, ran
from benchmarks.claims import Claim, counted
from benchmarks.paired import estimate

LIMIT = 0.2  # CPU seconds
STUDY = """
base: {preset: encoder-tiny, dims.width: 16, dims.length: 16, data.batch: 4}
vary: {attention: [mqa, {name: gqa, kv_heads: 2}]}
seeds: 3
budget: {steps: 4}
metric: {name: val/mlm/loss, better: lower, margin: 0.05}
"""


class Command(NamedTuple):
    """Arguments of `paribus`; STUDY is replaced by a study that has been run."""

    words: tuple[str, ...]
    code: int = 0


COMMANDS = {
    "--help": Command(("--help",)),
    "list": Command(("list",)),
    "explain attention.gqa": Command(("explain", "attention.gqa")),
    "status": Command(("status", "STUDY")),
    "compare": Command(("compare", "STUDY")),
    "check, of a bad spec": Command(("check", "encoder-tiny", "attention=gqa", "attention.kv_heads=3"), code=2),
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Small study with all of its records."""
    folder = tmp_path_factory.mktemp("study")
    path, store = folder / "small.yaml", folder / "runs"
    path.write_text(STUDY, encoding="utf-8")
    process = ran(["run", str(path), "--store", str(store)])
    assert process.code == 0, process.errors
    return [str(path), "--store", str(store)]


def test_command_line(bench: Any, study: list[str], tmp_path: Path) -> None:
    results: dict[str, Ran] = {}

    def recording(name: str, run: Callable[[], Ran]) -> Callable[[], float]:
        def seconds() -> float:
            results[name] = run()
            return results[name].seconds

        return seconds

    def command(name: str) -> Callable[[], Ran]:
        words = [part for word in COMMANDS[name].words for part in (study if word == "STUDY" else [word])]
        return lambda: ran(words)

    contestants = {name: recording(name, command(name)) for name in COMMANDS}
    contestants["import torch"] = recording("import torch", lambda: python(["-c", "import torch"]))
    times = bench.children(contestants, minimum=4, maximum=12)
    slow = estimate(times["import torch"])
    for name, (_, code) in COMMANDS.items():
        assert results[name].code == code, f"paribus {name}: {results[name].errors}"
        bench.claim(Claim("P8", f"paribus {name}", estimate(times[name]), "s", limit=LIMIT, contrast=slow))
    imported = [name for name in COMMANDS if results[name].torch]
    bench.claim(counted("P8", f"of these {len(COMMANDS)}, that import torch", len(imported), ", ".join(imported)))

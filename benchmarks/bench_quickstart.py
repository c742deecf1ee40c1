"""P10: the quickstart study in wall time, on all cores and without caches."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.children import COMMAND, watched
from benchmarks.claims import Claim
from benchmarks.paired import Estimate

LOSS = re.compile(r"loss \d")
METRIC = "val/clm/loss"
DECIDED = ("better", "worse", "equivalent")


def test_quickstart(bench: Any, tmp_path: Path) -> None:
    store, cache = tmp_path / "runs", {"PARIBUS_CACHE_DIR": str(tmp_path / "cache")}
    code, lines, total = bench.once(lambda: watched(["run", "quickstart", "--store", str(store)], cache))
    assert code == 0, "\n".join(line.text for line in lines[-20:])
    first_loss = next(line.seconds for line in lines if LOSS.search(line.text))
    table = verdicts(store, cache)
    decided = [name for name, row in table.items() if row["kind"] in DECIDED]
    learned, worst = learning(store, table)
    bench.claim(
        Claim("P10", "quickstart, from the command to its verdicts", once(total), "s", limit=150),
        Claim("P10", "quickstart, from the command to the first loss", once(first_loss), "s", limit=10),
        Claim("P10", "quickstart, how far below unigrams", once(learned), "nats", limit=0.5, at_most=False, note=worst),
        Claim(
            "P10",
            "quickstart, variants with a verdict",
            once(len(decided)),
            "",
            limit=4,
            at_most=False,
            note=f"{', '.join(decided)}, of {len(table)}",
        ),
    )


def verdicts(store: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Return the rows of the verdict table by variant."""
    command = [sys.executable, *COMMAND, "compare", "quickstart", "--store", str(store), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return {row["variant"]: row for row in json.loads(done.stdout)["rows"]}


def learning(store: Path, table: dict[str, Any]) -> tuple[float, str]:
    """Return by how much the worst attention beats the loss of the unigram baseline."""
    worst = max((name for name in table if name.startswith("attention")), key=lambda name: table[name]["mean"])
    record = json.loads(next(store.rglob("record.json")).read_text(encoding="utf-8"))["body"]
    baseline: float = record["result"]["unigram_baseline"][METRIC]
    return baseline - table[worst]["mean"], f"of the attentions, {worst} is the worst"


def once(figure: float) -> Estimate:
    """Return a single measurement as an estimate without an interval."""
    return Estimate(figure, figure, figure)

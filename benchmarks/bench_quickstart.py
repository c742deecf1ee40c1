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
METRIC = "val/mlm/loss"


def test_quickstart(bench: Any, tmp_path: Path) -> None:
    store, cache = tmp_path / "runs", {"PARIBUS_CACHE_DIR": str(tmp_path / "cache")}
    code, lines, total = bench.once(lambda: watched(["run", "quickstart", "--store", str(store)], cache))
    assert code == 0, "\n".join(line.text for line in lines[-20:])
    first_loss = next(line.seconds for line in lines if LOSS.search(line.text))
    learned, note = learning(store, cache)
    bench.claim(
        Claim("P10", "quickstart, from the command to its verdicts", once(total), "s", limit=150),
        Claim("P10", "quickstart, from the command to the first loss", once(first_loss), "s", limit=10),
        Claim("P10", "quickstart, how far below unigrams", once(learned), "nats", limit=0.5, at_most=False, note=note),
    )


def learning(store: Path, environment: dict[str, str]) -> tuple[float, str]:
    """Return by how much the worst attention beats the loss of the unigram baseline."""
    command = [sys.executable, *COMMAND, "compare", "quickstart", "--store", str(store), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    means = {row["variant"]: row["mean"] for row in json.loads(done.stdout)["rows"]}
    worst = max((name for name in means if name.startswith("attention")), key=means.__getitem__)
    record = json.loads(next(store.rglob("record.json")).read_text(encoding="utf-8"))["body"]
    return record["result"]["unigram_baseline"][METRIC] - means[worst], f"of the attentions, {worst} is the worst"


def once(figure: float) -> Estimate:
    """Return a single measurement as an estimate without an interval."""
    return Estimate(figure, figure, figure)

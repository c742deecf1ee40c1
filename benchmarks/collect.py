"""The metric of every trial of a study, by variant and seed, in a small file: `python benchmarks/collect.py STUDY`.

What resamples real trials reads these files: tests of coverage, and the cost of a verdict.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # run by its path, this is no part of a package

from benchmarks import machine  # noqa: E402  # the line above lets it be found

from paribus.specs.yaml_reader import read_file  # noqa: E402  # the same
from paribus.storage.store import Store  # noqa: E402  # the same

TRIALS = HERE / "results" / "trials"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path, help="a file of benchmarks/studies/, which was run before")
    parser.add_argument("--store", type=Path, default=Path("runs"), help="where its records are")
    parser.add_argument("--commit", help="of which commit they are, if not of this one")
    asked = parser.parse_args(argv)
    found = collected(asked.study, asked.store, asked.commit or head())
    TRIALS.mkdir(exist_ok=True)
    path = TRIALS / f"{asked.study.stem}.json"
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{path}: {', '.join(f'{name}: {len(own)}' for name, own in found['values'].items())}")
    return 0


def collected(study: Path, root: Path, commit: str) -> dict[str, Any]:
    """What the records of a study say, and where and how they were made."""
    store = Store(root, study.stem)
    says = read_file(study).data
    metric = says["metric"]["name"]
    values: dict[str, dict[int, float]] = {}
    seconds: dict[str, list[float]] = {}
    frequencies = None
    for record in store.records():
        trial, result = store.trial(record["identity"]), record["result"]
        if trial is None or result["state"] != "done":
            continue
        values.setdefault(trial["variant"], {})[trial["seed"]] = result["metrics"][metric]
        seconds.setdefault(trial["variant"], []).append(record["provenance"]["training_seconds"])
        frequencies = result["frequencies"].get(metric, frequencies)
    return {
        "study": says,
        "metric": metric,
        "frequencies": frequencies,
        "machine": machine.described(),
        "commit": commit,
        "collected": str(datetime.datetime.now(tz=datetime.UTC).date()),
        "seconds": {name: sorted(own)[len(own) // 2] for name, own in sorted(seconds.items())},
        "values": {name: dict(sorted(own.items())) for name, own in sorted(values.items())},
    }


def head() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

"""Write the metric of every trial of a study, by variant and seed, to a file: `python benchmarks/collect.py STUDY`.

Tests of coverage and the cost of a verdict resample the trials in these files.
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
sys.path.insert(0, str(HERE.parent))  # run as a script, this file is not in a package

from benchmarks import machine  # noqa: E402  # the line above lets it be found

from paribus.specs.yaml_reader import read_file  # noqa: E402  # the same
from paribus.storage.store import Store  # noqa: E402  # the same

TRIALS = HERE / "results" / "trials"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path, help="file of benchmarks/studies/ that was run before")
    parser.add_argument("--store", type=Path, default=Path("runs"), help="store of its records")
    parser.add_argument("--commit", help="commit of the records; default: the current one")
    options = parser.parse_args(argv)
    document = collected(options.study, options.store, options.commit or head())
    TRIALS.mkdir(exist_ok=True)
    path = TRIALS / f"{options.study.stem}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{path}: {', '.join(f'{name}: {len(losses)}' for name, losses in document['values'].items())}")
    return 0


def collected(study: Path, root: Path, commit: str) -> dict[str, Any]:
    """Return the metrics of a study by variant and seed, with their provenance."""
    store = Store(root, study.stem)
    study_spec = read_file(study).data
    metric = study_spec["metric"]["name"]
    values: dict[str, dict[int, float]] = {}
    seconds: dict[str, list[float]] = {}
    unigram_baseline = None
    for record in store.records():
        trial, result = store.trial(record["identity"]), record["result"]
        if trial is None or result["state"] != "done":
            continue
        values.setdefault(trial["variant"], {})[trial["seed"]] = result["metrics"][metric]
        seconds.setdefault(trial["variant"], []).append(record["provenance"]["training_seconds"])
        unigram_baseline = result["unigram_baseline"].get(metric, unigram_baseline)
    return {
        "study": study_spec,
        "metric": metric,
        "unigram_baseline": unigram_baseline,
        "machine": machine.described(),
        "commit": commit,
        "collected": str(datetime.datetime.now(tz=datetime.UTC).date()),
        "seconds": {
            name: sorted(variant_values)[len(variant_values) // 2] for name, variant_values in sorted(seconds.items())
        },
        "values": {name: dict(sorted(variant_values.items())) for name, variant_values in sorted(values.items())},
    }


def head() -> str:
    return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

"""Checks and measurements on a GPU, in parts of a few minutes: `python benchmarks/gpu.py --part NAME --output FILE`.

It needs no test runner, no network and no installed paribus, and prints its table last. `--rehearse` runs the same code
on a CPU with tiny sizes, so that a first run on a GPU does not end with a typo; it measures nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import os
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent


def main(argv: Sequence[str] | None = None) -> int:
    make_importable()
    quiet()
    from benchmarks import machine
    from benchmarks.gpu_checks import CHECKS
    from benchmarks.gpu_setup import Bench
    from benchmarks.gpu_speed import MEASUREMENTS

    parts = {**CHECKS, **MEASUREMENTS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--part", nargs="+", choices=[*parts, "all"], default=["all"], help="default: all, in this order"
    )
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on a CPU")
    parser.add_argument("--seconds", type=float, default=520, help="no part begins later than this; default: 520")
    parser.add_argument("--output", type=Path, help="file for the results as JSON")
    options = parser.parse_args(argv)
    bench = Bench(rehearse=options.rehearse)
    document: dict[str, Any] = {"machine": bench.machine(), "commit": machine.commit(), "date": machine.today()}
    document["parts"] = {}
    if options.rehearse:
        document["rehearsal"] = True
    started = time.perf_counter()
    for name in parts if "all" in options.part else options.part:
        if time.perf_counter() - started > options.seconds:
            document["parts"][name] = {"error": "not begun: the time was over"}
        else:
            document["parts"][name] = run_part(parts[name], bench)
        if options.output is not None:  # after each part: a later one may be cut off
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(table(document))
    return int(
        any(part.get("error") or any(not row["ok"] for row in part["checks"]) for part in document["parts"].values())
    )


def make_importable() -> None:
    """Make benchmarks and paribus importable from this checkout, with the entry points of the built-in plugins."""
    folders = [str(ROOT)]
    try:
        importlib.metadata.distribution("paribus")
    except importlib.metadata.PackageNotFoundError:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        info = Path(tempfile.mkdtemp(prefix="paribus-gpu-")) / f"paribus-{project['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: paribus\nVersion: {project['version']}\n")
        points = [f"{name} = {module}" for name, module in project["entry-points"]["paribus"].items()]
        (info / "entry_points.txt").write_text("\n".join(["[paribus]", *points, ""]))
        folders += [str(info.parent), str(ROOT / "core"), str(ROOT / "plugins")]
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    path = os.environ.get("PYTHONPATH")  # of the processes that trials run in
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, path] if path else folders)


def quiet() -> None:
    """Silence advice of Lightning and others, so that the end of the output is the table."""
    warnings.filterwarnings("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)


def run_part(part: Any, bench: Any) -> dict[str, Any]:
    """Run a part; an error ends only this part."""
    bench.begin()
    error = ""
    try:
        part(bench)
    except Exception as failure:  # of any kind: the other parts have a right to their minutes
        traceback.print_exc()
        error = f"{type(failure).__name__}: {next(iter(str(failure).splitlines()), '')}"
    return {**bench.end(), "error": error}


def table(document: dict[str, Any]) -> str:
    """Return checks that failed, and all measurements."""
    from benchmarks.claims import from_json
    from benchmarks.report import GOAL_COLUMNS, OTHER_COLUMNS, columns, goal_row, other_row

    lines = [
        "",
        f"{document['machine']['device']}, torch {document['machine']['versions'].get('torch')}, "
        f"commit {document['commit'][:8]}",
        *(["REHEARSAL: no figure means anything"] if document.get("rehearsal") else []),
    ]
    claims = []
    for name, part in document["parts"].items():
        checks = part.get("checks", [])
        failed = [row for row in checks if not row["ok"]]
        lines.append(
            f"{name}: {len(checks) - len(failed)} of {len(checks)} checks held, {part.get('seconds', 0):.0f} s"
            + (f"; ERROR {part['error']}" if part.get("error") else "")
        )
        lines += [f"  FAILED {row['name']}: {row['detail']}" for row in failed[:20]]
        claims += from_json(part.get("claims", []))
    goals = [goal_row(claim) for claim in claims if claim.limit is not None]
    others = [other_row(claim) for claim in claims if claim.limit is None]
    for names, rows in ((GOAL_COLUMNS, goals), (OTHER_COLUMNS, others)):
        if rows:
            lines += ["", *columns([names, *rows])]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

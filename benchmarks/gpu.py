"""Checks and measurements on a GPU, in parts of a few minutes: `python benchmarks/gpu.py --part NAME --output FOLDER`.

It needs no test runner, no network and no installed paribus. Each part writes its own file, FOLDER/NAME.json, after
each of its results, so that a part that is killed keeps those it had. Several parts run in a process each: an error, or
memory, of one does not affect the next. `--rehearse` runs the same code on a CPU with tiny sizes, so that a first run
on a GPU does not end with a typo; it measures nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OUTPUT = Path(".benchmarks", "gpu")
GRACE_SECONDS = 10  # for a part that is asked to end
SHOWN_CHECKS = 30  # no more of those that held


def main(argv: Sequence[str] | None = None) -> int:
    make_importable()
    quiet()
    from benchmarks.gpu_checks import CHECKS
    from benchmarks.gpu_speed import MEASUREMENTS

    parts = {**CHECKS, **MEASUREMENTS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--part", nargs="+", choices=[*parts, "all"], default=["all"], help="default: all, in this order"
    )
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on a CPU")
    parser.add_argument("--seconds", type=float, default=520, help="several parts end after this time; default: 520")
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"folder for the results; default: {OUTPUT}")
    options = parser.parse_args(argv)
    names = list(parts) if "all" in options.part else options.part
    if len(names) > 1:
        return run_each(names, options.seconds, options.output, rehearse=options.rehearse)
    document = run_part(names[0], parts[names[0]], options.output, rehearse=options.rehearse)
    print(table(document))
    return int(bool(document["error"]) or not all(row["ok"] for row in document["checks"]))


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


def run_each(names: Sequence[str], seconds: float, output: Path, *, rehearse: bool) -> int:
    """Run each part in its own process, as long as there is time; return 1 if one of them failed."""
    end = time.monotonic() + seconds
    failed = False
    for name in names:
        remaining = end - time.monotonic()
        if remaining <= 0:
            print(f"{name}: not started, since the {seconds:g} s of --seconds are over", flush=True)
            failed = True
            continue
        command = [sys.executable, str(HERE / "gpu.py"), "--part", name, "--output", str(output)]
        process = subprocess.Popen([*command, "--rehearse"] if rehearse else command)
        try:
            failed |= process.wait(remaining) != 0
        except subprocess.TimeoutExpired:
            failed = True
            process.terminate()
            try:
                process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return int(failed)


def run_part(name: str, part: Callable[[Any], None], output: Path, *, rehearse: bool) -> dict[str, Any]:
    """Run a part, and return its document, which is written after each result."""
    from benchmarks import machine
    from benchmarks.gpu_setup import Bench

    file = output / f"{name}.json"
    bench = Bench(rehearse=rehearse, save=lambda: write(file, {**document, **bench.results()}))
    document: dict[str, Any] = {
        "part": name,
        "rehearsal": rehearse,
        "machine": bench.machine(),
        "commit": machine.commit(),
        "date": machine.today(),
        "error": "it was killed",  # until it ends otherwise
    }
    bench.save()
    signal.signal(signal.SIGTERM, end_part)
    try:
        part(bench)
        document["error"] = ""
    except Exception as failure:  # of any kind: it is reported with the results before it
        traceback.print_exc()
        document["error"] = f"{type(failure).__name__}: {next(iter(str(failure).splitlines()), '')}"
    finally:
        bench.save()
    return {**document, **bench.results()}


def end_part(number: int, frame: object) -> NoReturn:
    """End this process and those that it waits for."""
    raise SystemExit(128 + number)


def write(file: Path, document: dict[str, Any]) -> None:
    """Replace a file of results at once, so that it is whole whenever this process is killed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    new.replace(file)


def table(document: dict[str, Any]) -> str:
    """Return checks that failed, and all measurements."""
    from benchmarks.claims import from_json
    from benchmarks.report import GOAL_COLUMNS, OTHER_COLUMNS, columns, goal_row, other_row

    checks = document["checks"]
    failed = [row for row in checks if not row["ok"]]
    lines = [
        "",
        f"{document['machine']['device']}, torch {document['machine']['versions'].get('torch')}, "
        f"commit {document['commit']}",
        *(["REHEARSAL: no figure means anything"] if document["rehearsal"] else []),
        f"{document['part']}: {len(checks) - len(failed)} of {len(checks)} checks held, {document['seconds']:.0f} s"
        + (f"; ERROR {document['error']}" if document["error"] else ""),
        *(f"  FAILED {row['name']}: {row['detail']}" for row in failed),
    ]
    if len(checks) - len(failed) <= SHOWN_CHECKS:
        lines += [f"  {row['name']}: {row['detail']}" for row in checks if row["ok"]]
    claims = from_json(document["claims"])
    goals = [goal_row(claim) for claim in claims if claim.limit is not None]
    others = [other_row(claim) for claim in claims if claim.limit is None]
    for names, rows in ((GOAL_COLUMNS, goals), (OTHER_COLUMNS, others)):
        if rows:
            lines += ["", *columns([names, *rows])]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())

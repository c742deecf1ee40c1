"""A study at the size of GPT-2 small on a GPU: `python benchmarks/gpu_study.py --work FOLDER --results FOLDER`.

Four positions on three seeds at equal steps, in bfloat16, compiled, on the Python source code of this machine. A call
ends after `--minutes` with checkpoints, and the next one goes on from there; the last writes RESULTS.md and records.
`--rehearse` runs the same in a minute on a CPU.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a script, this file is not in a package

from benchmarks.gpu import make_importable  # the line above lets it be found

POSITIONS = ("alibi", "none", "learned")  # beside rope, the baseline
SHARD_BYTES = 20_000_000
LARGEST_FILE = 400_000  # longer ones are tables of data
GRACE_SECONDS = 40  # for checkpoints
EXIT_OK, EXIT_FAILED = 0, 1  # of `paribus run`


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--work", type=Path, required=True, help="folder of the text and of the records, kept between calls"
    )
    parser.add_argument(
        "--results", type=Path, required=True, help="folder for RESULTS.md and the records of the results"
    )
    parser.add_argument("--minutes", type=float, default=9.0, help="length of this call; default: 9")
    parser.add_argument("--steps", type=int, default=1000, help="steps of a trial; default: 1000")
    parser.add_argument("--batch", type=int, default=32, help="sequences in a step; default: 32")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time on this GPU; default: 1")
    parser.add_argument("--megabytes", type=float, default=150, help="amount of text; default: 150")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on a CPU")
    options = parser.parse_args(argv)
    end = time.monotonic() + 60 * options.minutes
    make_importable()
    if options.rehearse:
        options.steps, options.megabytes = 4, 0.4
    text = options.work / "text"
    if not text.exists():
        unfinished = options.work / "text.new"
        write_text(unfinished, int(options.megabytes * 1e6))
        unfinished.replace(text)  # all of it, so that a call that is killed leaves no part
    study = options.work / "gpt2-positions.yaml"
    document = json.dumps(study_document(text, options, rehearse=options.rehearse), indent=1)
    study.write_text(document + "\n", encoding="utf-8")
    store = ["--store", str(options.work / "runs")]
    code = run_until(end, "run", str(study), *store, "--jobs", str(options.jobs), "--no-timing")
    if code in (EXIT_OK, EXIT_FAILED):  # all trials ended; 1: a trial or a verdict failed, as the table says
        paribus("compare", str(study), *store, "--results", str(options.results))
    paribus("status", str(study), *store)
    return code


def study_document(text: Path, options: argparse.Namespace, *, rehearse: bool) -> dict[str, Any]:
    """Return the study."""
    base: dict[str, Any] = {
        "preset": "gpt2",
        "position": {"name": "rope"},
        "dropout": 0.0,
        "corpus": {"name": "text", "path": [str(text.absolute() / "*.jsonl")], "field": "text"},
        "data": {"batch": options.batch, "validation": 256, "evaluations": 4},
        "trainer": {"precision": "bf16-mixed", "compile": True, "gradient_clip_val": 1.0},
    }
    if rehearse:
        base["dims"] = {"width": 32, "layers": 2, "heads": 2, "length": 64, "vocabulary": 512}
        base["data"] = {"batch": 2, "validation": 8, "evaluations": 1}
        base["trainer"] |= {"accelerator": "cpu", "compile": {"backend": "aot_eager"}}
    return {
        "base": base,
        "vary": {"position": list(POSITIONS[:1] if rehearse else POSITIONS)},
        "seeds": 2 if rehearse else 3,
        "budget": {"steps": options.steps},
        "launcher": {"name": "local", "per_gpu": options.jobs},
        "metric": {"name": "val/clm/loss", "better": "lower", "margin": 0.02},
    }


def write_text(folder: Path, limit: int) -> None:
    """Write Python source files of this machine as JSON lines, each once, in the order of a hash of their text."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    size, shard, number = 0, [], 0
    for text in sorted(sources(), key=lambda text: hashlib.sha256(text.encode()).digest()):
        if size + len(text) > limit:
            break
        size += len(text)
        shard.append(json.dumps({"text": text}))
        if sum(map(len, shard)) > SHARD_BYTES:
            write_shard(folder, number, shard)
            shard, number = [], number + 1
    if shard:
        write_shard(folder, number, shard)
    print(f"{size / 1e6:.1f} MB of source code")


def write_shard(folder: Path, number: int, lines: Sequence[str]) -> None:
    (folder / f"{number:03d}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def sources() -> Iterator[str]:
    """Yield the distinct Python files of the standard library and of all installed packages."""
    known: set[bytes] = set()
    for root in dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")):
        for path in Path(root).rglob("*.py"):
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError):
                continue
            digest = hashlib.sha256(text.encode()).digest()
            if 500 < len(text) < LARGEST_FILE and digest not in known and "\0" not in text:
                known.add(digest)
                yield text


def run_until(end: float, *arguments: str) -> int:
    """Run paribus, and interrupt it in time for its checkpoints; return its exit code."""
    process = subprocess.Popen([sys.executable, "-m", "paribus", *arguments])
    try:
        return process.wait(max(1.0, end - GRACE_SECONDS - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        return process.wait()


def paribus(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "paribus", *arguments], check=False)


if __name__ == "__main__":
    sys.exit(main())

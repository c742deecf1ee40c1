"""Whole training runs beside other libraries: the same examples, optimizer and number of steps, from the start of a
process to its end, with an evaluation, and the weights in a file.

    python benchmarks/whole_runs.py --rounds 2 --output benchmarks/results/whole-runs.json
    python benchmarks/whole_runs.py --model encoder      # one of the models
    python benchmarks/whole_runs.py --python .venv/bin/python    # an environment without the extra, as users have it
    python benchmarks/whole_runs.py --rehearse           # tiny sizes and one round: no figure means anything

Needs the extra `peers`. With `--python`, it is needed for Hugging Face's Trainer only: where transformers and scipy are
installed, torchmetrics imports them, which costs all that import Lightning about 1.7 s and 80 MiB.

Each run is a process with one thread. The runners take turns in each round, in rotating order, and the ratios are of
runs of one round. The loop runs twice in a round, which shows the noise. Each runner also makes a run of two steps in
each round, which shows what start and evaluation cost. The validation losses are of the same tokens: they show that the
runs do the same work.

The decoder is GPT-2 on bytes. Another has GPT-2's 50,304 entries, of which the byte pairs of the text use the first.

The encoder is BERT without its second objective, with a table of 30,528 entries, of which the word pieces of the text
use the first; 15 % of the tokens are predicted. Hugging Face's and ours are the same model; that by hand has rotary
positions, and norms before the layers. Ours and that by hand score the masked positions only.

The encoder-decoder predicts corrupted spans of bytes, as T5 does, but of half of the text, so that a target is not much
shorter than its source, as in translation. Ours is the first Transformer in pre-norm with RMS norms, as that by hand;
Hugging Face's is BART, which is faster than its T5.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import machine, whole_run_peers  # noqa: E402  # a script finds the package by the line above
from benchmarks.paired import ratio  # noqa: E402  # as above
from benchmarks.whole_run_peers import BETAS, DECAY, FAMILIES, FLOOR, LR, WARMUP, Setting  # noqa: E402  # as above

VALIDATION = 256  # examples, at most
SHORT = 2  # steps of a run that only starts and evaluates
RUNNERS = ("loop", "loop again", "lightning", "transformers", "paribus")
LABELS = {
    "loop": "a loop like nanoGPT's",
    "loop again": "the same loop again",
    "lightning": "a plain Lightning module",
    "transformers": "Hugging Face's Trainer and model",
    "paribus": "`paribus train`",
}
SPECS: Mapping[str, Sequence[str]] = {
    "decoder": ("gpt2-tiny",),
    "encoder": ("bert-tiny", "objective=mlm"),
    "encoder-decoder": ("seq2seq-tiny", "objective={name: span-corruption, rate: 0.5, mean_span: 8.0}"),
}
SETTINGS = {
    "decoder": Setting("decoder", steps=60),
    "decoder-50k": Setting("decoder", "bpe", width=256, batch=4, vocabulary=50_304, steps=20),
    "encoder": Setting("encoder", "wordpiece", batch=32, vocabulary=30_528, steps=20),
    "encoder-decoder": Setting("encoder-decoder", steps=40),
}


def rehearsal(setting: Setting) -> Setting:
    """Return a run that takes seconds."""
    vocabulary = 512 if setting.vocabulary else 0
    return Setting(setting.family, setting.tokenizer, 32, 2, 2, 32, 4, vocabulary, steps=12)


def words(setting: Setting) -> list[str]:
    """Return the words of the spec that `paribus train` gets."""
    names = ["width", "layers", "heads", "length"]
    if setting.tokenizer != "bytes":  # whose vocabulary is fixed
        names.append("vocabulary")
    return [
        *SPECS[setting.family],
        f"tokenizer={setting.tokenizer}",
        *(f"dims.{name}={getattr(setting, name)}" for name in names),
        f"data.batch={setting.batch}",
        f"data.validation={VALIDATION}",
        "data.evaluations=1",
        f"trainer.max_steps={setting.steps}",
        f"optimizer={{name: adamw, lr: {LR}, beta1: {BETAS[0]}, beta2: {BETAS[1]}, weight_decay: {DECAY}}}",
        f"schedule={{name: warmup-cosine, warmup: {WARMUP}, floor: {FLOOR}}}",
    ]


def write_examples(folder: Path, setting: Setting) -> Setting:
    """Write the examples that `paribus train` makes, fill its caches, and return the setting with its vocabulary."""
    from paribus.models.assemble import build_data, load_corpus
    from paribus.registry import installed
    from paribus.specs import resolved

    registry = installed()
    spec = resolved(*words(setting), registry=registry)
    text = load_corpus(spec, registry)
    data = build_data(spec, registry, text)
    data.steps = setting.steps
    objective = FAMILIES[setting.family].objective
    for split, count, make in (
        ("train", setting.steps, data.step),
        ("val", -(-data.val_count // setting.batch), data.validation_batch),
    ):
        batches = [make(number) for number in range(count)]
        fields = [dict(batch.targets[objective]) for batch in batches]
        for batch, field in zip(batches, fields, strict=True):
            field["tokens"] = batch.streams["body"].tokens
            if "encoder" in batch.streams:
                field["source"] = batch.streams["encoder"].tokens
        for name in fields[0]:
            np.save(folder / f"{split}-{name}.npy", np.concatenate([field[name].numpy() for field in fields]))
    return setting._replace(vocabulary=spec["dims"]["vocabulary"] or text.vocabulary.size)


# -- measurement -----------------------------------------------------------------------------------------------------


MEASURE = """
import json, os, subprocess, sys, time
start = time.perf_counter()
with open(sys.argv[1], "w") as file:
    process = subprocess.Popen(sys.argv[2:], stdout=file, stderr=subprocess.STDOUT)
    _, status, usage = os.wait4(process.pid, 0)
wall, cpu = time.perf_counter() - start, usage.ru_utime + usage.ru_stime
print(json.dumps([os.waitstatus_to_exitcode(status), wall, cpu, usage.ru_maxrss * 1024]))
"""  # a small process, because the peak memory of a process includes that of the one that started it


class Run(NamedTuple):
    """Result of a process."""

    wall: float
    cpu: float
    peak_bytes: int
    loss: float  # of the validation split


def run(name: str, folder: Path, setting: Setting, python: str) -> Run:
    """Run a runner with the interpreter `python`, unless it needs the extra."""
    with tempfile.TemporaryDirectory() as store:
        if name == "paribus":
            command = [python, "-m", "paribus", "train", *words(setting), "--store", store, "--json"]
        else:
            paths = ["--examples", str(folder), "--store", store, "--setting", json.dumps(setting)]
            command = [sys.executable if name == "transformers" else python, __file__, "--child", name, *paths]
        output = Path(store) / "output"
        status, wall, cpu, peak = measured_process(command, output)
        text = output.read_text(encoding="utf-8")
    if status:
        raise SystemExit(f"{name} failed with the exit status {status}: {text[-500:]}")
    return Run(wall, cpu, peak, validation_loss(name, text, setting))


def measured_process(command: Sequence[str], output: Path) -> tuple[int, float, float, int]:
    """Run a command, and return its exit status, wall seconds, CPU seconds and peak memory in bytes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    program = [sys.executable, "-S", "-c", MEASURE, str(output), *command]
    result = subprocess.run(program, capture_output=True, text=True, check=True, env=environment)
    status, wall, cpu, peak = json.loads(result.stdout)
    return status, wall, cpu, peak


def validation_loss(name: str, output: str, setting: Setting) -> float:
    if name != "paribus":
        return float(output.rsplit(maxsplit=1)[-1])
    result = json.loads(output[output.index("{\n") :])
    return float(result["metrics"][f"val/{FAMILIES[setting.family].objective}/loss"])


class Measured(NamedTuple):
    """Runs of a runner, one in each round."""

    whole: list[Run]
    short: list[Run]  # of two steps


def measured(setting: Setting, rounds: int, folder: Path, python: str) -> dict[str, Measured]:
    """Return the runs of each runner, after a short one of each that fills its caches."""
    short = setting._replace(steps=SHORT)
    for name in RUNNERS if rounds > 1 else ():
        run(name, folder, short, python)
    runs = {name: Measured([], []) for name in RUNNERS}
    for number in range(rounds):
        offset = number % len(RUNNERS)
        for name in (*RUNNERS[offset:], *RUNNERS[:offset]):
            for results, size in zip(runs[name], (setting, short), strict=True):
                results.append(run(name, folder, size, python))
            whole, start = (results[-1].cpu for results in runs[name])
            progress = (
                f"{setting.family}, round {number + 1}: {name}: {whole:.1f} s of CPU, {start:.1f} with {SHORT} steps"
            )
            print(progress, file=sys.stderr, flush=True)
    return runs


def table(runs: Mapping[str, Measured], setting: Setting) -> list[str]:
    """Return the medians, and the ratios of CPU time to the loop of the same round, as Markdown."""
    names = ["wall s", "CPU s", f"with {SHORT} steps, CPU s", "of the loop's CPU", "tokens/s", "peak memory"]
    lines = [f"| {' | '.join(('run', *names, 'validation loss'))} |", "| --- |" + " ---: |" * 7]
    reference = [run.cpu for run in runs["loop"].whole]
    for name, (whole, short) in runs.items():
        wall, cpu, peak, loss = (float(np.median(column)) for column in zip(*whole, strict=True))
        start = float(np.median([run.cpu for run in short]))
        share = "1" if name == "loop" else ratio([run.cpu for run in whole], reference).rounded()
        tokens = setting.steps * setting.batch * setting.length / wall
        figures = (f"{wall:.1f}", f"{cpu:.1f}", f"{start:.1f}", share, f"{tokens:,.0f}", f"{peak / 2**20:,.0f} MiB")
        lines.append(f"| {' | '.join((LABELS[name], *figures, f'{loss:.3f}'))} |")
    return lines


def ratios_to_paribus(runs: Mapping[str, Measured]) -> list[str]:
    """Return the wall and CPU time of each other runner over that of `paribus train`, and the ratio of the peaks."""
    ours = runs["paribus"].whole
    lines = []
    for name in ("loop", "lightning", "transformers"):
        theirs = runs[name].whole
        wall, cpu = (
            ratio([getattr(run, clock) for run in theirs], [getattr(run, clock) for run in ours]).rounded()
            for clock in ("wall", "cpu")
        )
        peak = np.median([run.peak_bytes for run in ours]) / np.median([run.peak_bytes for run in theirs])
        lines.append(f"- {LABELS[name]}: {wall} times our wall time, {cpu} times our CPU time; our peak is {peak:.2f}")
    return lines


def run_child(name: str, folder: Path, store: Path, setting: Setting) -> None:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(whole_run_peers.RUNS[name](folder, store, setting), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="default: all")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, help="default: depends on the model")
    parser.add_argument("--python", default=sys.executable, help="interpreter of all runners but Hugging Face's")
    parser.add_argument("--output", type=Path, help="file for the results as JSON")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes and one round: no figure means anything")
    parser.add_argument("--child", choices=whole_run_peers.RUNS, help=argparse.SUPPRESS)
    parser.add_argument("--examples", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--setting", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        run_child(options.child, options.examples, options.store, Setting(*options.setting))
        return
    document: dict[str, Any] = {
        "machine": {**machine.described(), "threads": "1"},
        "commit": machine.commit(),
        "date": machine.today(),
        "rehearsal": options.rehearse,
        "models": {},
    }
    for name in options.model:
        setting = SETTINGS[name]._replace(**({"steps": options.steps} if options.steps else {}))
        if options.rehearse:
            setting = rehearsal(setting)
        with tempfile.TemporaryDirectory() as folder:
            setting = write_examples(Path(folder), setting)
            runs = measured(setting, 1 if options.rehearse else options.rounds, Path(folder), options.python)
        heading = f"### {name} ({setting.size()}, {setting.steps} steps)"
        print("\n".join(["", heading, "", *table(runs, setting), "", *ratios_to_paribus(runs)]), flush=True)
        results = {
            runner: {length: [run._asdict() for run in results] for length, results in both._asdict().items()}
            for runner, both in runs.items()
        }
        document["models"][name] = {"setting": setting._asdict(), "runs": results}
        if options.output:  # after each model: a later one may fail
            options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if options.rehearse:
        print("\nREHEARSAL: no figure means anything")


if __name__ == "__main__":
    main()

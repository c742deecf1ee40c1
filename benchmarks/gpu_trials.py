"""Whole trials on a GPU: resumed, distributed, with their synchronizations counted, in CUDA graphs, and in a study."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from benchmarks.claims import Claim
from benchmarks.gpu_setup import Bench, model_and_data, random_tokens, registry
from benchmarks.paired import estimate
from lightning import Callback, LightningModule, Trainer

from paribus.models.evaluate import to_device
from paribus.parts.batch import Batch
from paribus.specs import resolved
from paribus.train.trial import TrialContext, run_trial
from paribus.train.trial_callback import InterruptedTrialError, should_check_step

SMALL = ("dims.width=32", "dims.layers=2", "dims.heads=4", "dims.length=128", "data.batch=4", "dropout=0.1")
TINY = ("dims.width=32", "dims.layers=2", "dims.heads=4", "dims.length=64")
STEPS = 16  # of GPT-2: the first 8 are checked by the trial, the ninth and the last
SHOWN_PLACES = 12
STUDY: Mapping[str, Any] = {
    "base": {
        "preset": "gpt-tiny", "position": "rope", "dims": {"length": 32}, "optimizer": {"lr": 1.5e-3},
        "data": {"validation": 256}, "trainer": {"compile": False},
    },
    "vary": {"position": ["none"]},
    "metric": {"name": "val/clm/loss", "better": "lower", "margin": 0.03},
}  # fmt: skip


def trials(bench: Bench) -> None:
    """A trial that is interrupted and resumed has the same bits; DDP on one device has the same losses; no waiting."""
    backend = bench.pick(True, {"backend": "eager"})
    bench.attempt("an interrupted trial resumes bitwise", lambda: _resumed(bench, {}))
    bench.attempt("so does a compiled one", lambda: _resumed(bench, {"compile": backend}))
    bench.attempt("a loss and its gradients do not synchronize", lambda: _synchronizations(bench))
    bench.attempt("DDP on one device", lambda: _distributed(bench))  # last: without a loopback interface it waits


def _trial(bench: Bench, trainer: Mapping[str, Any], *overrides: str) -> dict[str, Any]:
    options = {"max_steps": 8, "accelerator": bench.pick("cuda", "cpu"), "devices": 1, "compile": False, **trainer}
    words = ("gpt-tiny", *SMALL, "corpus=copy", "tokenizer=symbols", *overrides)
    return {**resolved(*words, registry=registry()), "trainer": options}


def _record(spec: Mapping[str, Any], **context: Any) -> dict[str, Any]:
    """Run a trial in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        return _run(spec, Path(folder), **context)


def _run(spec: Mapping[str, Any], folder: Path, **context: Any) -> dict[str, Any]:
    torch.compiler.reset()
    try:
        return run_trial(spec, registry(), TrialContext("trial", folder, **context))
    finally:
        torch.use_deterministic_algorithms(False)  # which the Trainer of a deterministic trial leaves on
        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("default")


def _resumed(bench: Bench, trainer: Mapping[str, Any]) -> tuple[bool, str]:
    spec = _trial(bench, {"deterministic": True, **trainer})
    whole = _record(spec)
    with tempfile.TemporaryDirectory() as folder:
        steps = itertools.count()
        try:
            _run(spec, Path(folder), should_stop=lambda: next(steps) == 3)
        except InterruptedTrialError:
            resumed = _run(spec, Path(folder))
        else:
            return False, "it was not interrupted"
    differing = [key for key, value in whole["result"].items() if resumed["result"][key] != value]
    device = resumed["provenance"]["machine"]["device"]
    return not differing and device == bench.device.type, f"differing: {', '.join(differing) or 'nothing'}; on {device}"


def _distributed(bench: Bench) -> tuple[bool, str]:
    alone, ddp = (_trial(bench, {"deterministic": True, **options}) for options in ({}, {"strategy": "ddp"}))
    error = _largest_difference(_record(alone), _record(ddp))
    return error < 1e-5, f"{error:.1e}"


def _largest_difference(record: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return the largest relative difference of the losses of two trials."""
    losses = zip(record["result"]["losses"], other["result"]["losses"], strict=True)
    return float(max(abs(one - another) / abs(one) for one, another in losses))


def _synchronizations(bench: Bench) -> tuple[bool, str]:
    model, data = model_and_data("gpt-tiny", *SMALL)
    model = model.to(bench.device).train()
    batch = to_device(data.step(0), model)
    model.loss(batch).backward()
    bench.synchronize()
    with Synchronizations(bench) as counted:
        model.loss(batch).backward()
    return not counted.places, f"{len(counted.places)} synchronizations {' '.join(sorted(set(counted.places)))}"


@final
class Synchronizations:
    """Context in which each wait of the CPU for the GPU is counted, with its place in the code; on a CPU, none is."""

    def __init__(self, bench: Bench) -> None:
        self.is_active = not bench.rehearse
        self.places: list[str] = []
        self._warnings = warnings.catch_warnings()

    def __enter__(self) -> Synchronizations:
        self._warnings.__enter__()
        warnings.simplefilter("always")
        warnings.showwarning = self._add
        if self.is_active:
            torch.cuda.set_sync_debug_mode("warn")
        return self

    def __exit__(self, *error: object) -> None:
        if self.is_active:
            torch.cuda.set_sync_debug_mode("default")
        self._warnings.__exit__(None, None, None)

    def _add(self, message: Warning | str, *rest: Any, **options: Any) -> None:
        if "called a synchronizing" in str(message):  # not the advice that this mode is a prototype
            self.places.append(_place())


def _place() -> str:
    """Return the innermost line of the call stack that is in paribus or one of its plugins, else in Lightning."""
    frames = [frame for frame in reversed(traceback.extract_stack()) if frame.filename != __file__]
    for package in ("/paribus", "/lightning/"):
        for frame in frames:
            if package in frame.filename and "/benchmarks/" not in frame.filename:
                return f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno}"
    return "elsewhere"


@final
class StepCounts(Callback):
    """Synchronizations and seconds of each step, from the start of its batch to that of the next."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.counted = Synchronizations(bench)
        self.starts: list[tuple[int, float]] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.counted.__enter__()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        self.bench.synchronize()
        self.starts.append((len(self.counted.places), time.perf_counter()))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.counted.__exit__(None, None, None)

    def steps(self) -> list[tuple[list[str], float]]:
        """Return places of synchronizations and seconds of each step but the last."""
        return [
            (self.counted.places[count:end_count], end - start)
            for (count, start), (end_count, end) in itertools.pairwise(self.starts)
        ]


@final
class TrainerHooks:
    """Hooks of plugins that add a callback to the Trainer of a trial."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback

    def configure_trainer(self, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{"callbacks": [self.callback]}]

    def trial_started(self, **values: Any) -> None: ...

    def trial_finished(self, **values: Any) -> None: ...


def steps(bench: Bench) -> None:
    """Count the synchronizations of each step of a trial of GPT-2, compiled, in bfloat16."""
    size, batch = bench.pick((50_304, 16), (512, 2))
    with tempfile.TemporaryDirectory() as folder:
        words = ("gpt2", f"data.batch={batch}", f"data.validation={batch}", "data.evaluations=1",
                 *bench.pick((), TINY), *random_tokens(Path(folder), size, bench.pick(2_000_000, 50_000)))  # fmt: skip
        trainer = {"max_steps": STEPS, "accelerator": bench.pick("cuda", "cpu"), "devices": 1,
                   "precision": "bf16-mixed", "gradient_clip_val": 1.0,
                   "compile": bench.pick(True, {"backend": "aot_eager"})}  # fmt: skip
        counts = StepCounts(bench)
        started = time.perf_counter()
        record = _record({**resolved(*words, registry=registry()), "trainer": trainer}, hooks=TrainerHooks(counts))
        seconds = time.perf_counter() - started
    for step, (places, step_seconds) in enumerate(counts.steps()):
        detail = f"{len(places)} synchronizations, {1e3 * step_seconds:.1f} ms"
        if _is_plain(step):
            bench.check(f"step {step}", not places, f"{detail} {_most_common(places)}")
        else:
            bench.check(f"step {step}, checked by the trial", True, f"{detail} {_most_common(places)}")
    plain = [step_seconds for step, (_, step_seconds) in enumerate(counts.steps()) if _is_plain(step)]
    note = f"the trial took {seconds:.0f} s, {record['provenance']['training_seconds']:.0f} s of them training"
    bench.check("all steps have a finite loss", len(record["result"]["losses"]) == STEPS, note)
    bench.check("memory", True, f"{record['provenance'].get('peak_bytes', 0) / 2**20:,.0f} MiB at most")
    bench.claim(Claim("", "GPT-2 124M, n 1024: a step of a trial", estimate(plain).times(1e3), "ms", note=note))


def _is_plain(step: int) -> bool:
    """Return True if neither a step nor the next one, whose parameters it stores, is checked by the trial."""
    return not should_check_step(step, STEPS) and not should_check_step(step + 1, STEPS)


def _most_common(places: list[str]) -> str:
    counts = sorted({place: places.count(place) for place in places}.items(), key=lambda item: -item[1])
    return " ".join(f"{count}× {place}" for place, count in counts[:SHOWN_PLACES])  # noqa: RUF001  # multiplication sign


def reduced_trial(bench: Bench, options: Any, accumulated: int) -> tuple[bool, str]:
    """Compare the losses of a trial that is compiled with `options` with those of an eager one.

    Without dropout, whose random numbers differ in compiled code.
    """
    common = {"max_steps": 12, "accumulate_grad_batches": accumulated}
    error = _largest_difference(
        *(_record(_trial(bench, {**common, "compile": compile_}, "dropout=0")) for compile_ in (False, options))
    )
    return error < 1e-3, f"{error:.1e}"


def studies(bench: Bench) -> None:
    """Run a study whose control is worse, with two trials at a time on each device."""
    bench.attempt("a model without positions is worse", lambda: _study(bench))


def _study(bench: Bench) -> tuple[bool, str]:
    seeds, steps = bench.pick((4, 300), (2, 4))
    devices = max(1, torch.cuda.device_count())
    document = {**STUDY, "seeds": seeds, "budget": {"steps": steps}, "launcher": {"name": "local", "per_gpu": 2}}
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder, "study.yaml")
        study.write_text(json.dumps(document), encoding="utf-8")
        command = [sys.executable, "-m", "paribus", "run", str(study), "--store", folder, "--jobs", str(2 * devices)]
        ended = subprocess.run(
            [*command, "--no-timing", "--json"],
            capture_output=True,
            text=True,
            check=False,
            env=dict(os.environ),
            timeout=300,
        )
        if not ended.stdout.startswith("{"):
            return False, ended.stderr[-300:]
        rows = {row["variant"]: row for row in json.loads(ended.stdout)["rows"]}
        records = [json.loads(path.read_text())["body"]["provenance"] for path in Path(folder).rglob("record.json")]
    used = {record["visible"] for record in records}
    verdict = rows["position=none"]["verdict"]
    is_right = len(records) == 2 * seeds and len(used) == devices and (bench.rehearse or verdict == "worse")
    return is_right, f"{verdict}; {len(records)} records, on {len(used)} of {devices} devices"

"""Correctness on a GPU: attention cells, fused kernels, compiled layers, resumed trials, one process of DDP."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu_setup import Bench, loss_and_gradients, model_and_data, registry, relative_error

from paribus.errors import SpecError
from paribus.specs import resolved
from paribus.train.evaluate import to_device
from paribus.train.layers import configure_layers
from paribus.train.trial import TrialContext, run_trial
from paribus.train.trial_callback import InterruptedTrialError

SMALL = ("dims.width=64", "dims.layers=2", "dims.heads=4", "dims.length=128", "data.batch=4")
FLOAT64, FLOAT32, BFLOAT16 = 1e-9, 2e-3, 6e-2  # relative errors of gradients
FUSED: Mapping[str, tuple[str, ...]] = {
    "alibi": ("gpt-tiny", "position=alibi"),
    "t5": ("gpt-tiny", "position=t5"),
    "soft cap": ("gpt-tiny", "position=rope", "attention.scores.soft_cap=20.0"),
    "soft cap, documents apart": (
        "gpt-tiny", "position=rope", "attention.scores.soft_cap=20.0", "data.documents=apart",
    ),
    "gqa, alibi": ("gpt-tiny", "attention=gqa", "position=alibi"),
    "documents apart": ("gpt-tiny", "position=rope", "data.documents=apart"),
    "packed documents": ("encoder-tiny", "position=alibi", "data.documents=packed"),
}  # fmt: skip
COMPILED: Mapping[str, tuple[str, ...]] = {
    "decoder": ("gpt-tiny",),
    "encoder": ("encoder-tiny",),
    "encoder-decoder": ("seq2seq-tiny",),
    "flex in compiled layers": ("gpt-tiny", "position=alibi"),
    "windows and full attention": ("gpt-tiny", "attention=[{name: restricted, window: 16}, mha]"),
    "rms norms, gated": ("gpt-tiny", "position=rope", "norm=rmsnorm", "feedforward=glu", "attention=gqa"),
}


def cells(bench: Bench) -> None:
    """Compare every attention by position cell in float64 with the CPU, and in bfloat16 with float64."""
    index = registry().index
    attentions = list(index.entries["attention"].values())
    positions = list(index.entries["position"])
    for attention in bench.pick(attentions, attentions[:3]):
        required = {option.name: option.sample for option in attention.options if option.required}
        node = f"{{name: {attention.name}{''.join(f', {key}: {value}' for key, value in required.items())}}}"
        for position in bench.pick(positions, ["none", "alibi"]):
            words = ("encoder-tiny", *SMALL, "dims.layers=1", f"attention={node}", f"position={position}")
            try:
                resolved(words[0], *words[1:], registry=registry())
            except SpecError:
                continue  # the two do not fit together
            bench.attempt(f"{attention.name}, {position}", lambda words=words: _cell(bench, words))  # type: ignore[misc]  # bound


def _cell(bench: Bench, words: tuple[str, ...]) -> tuple[bool, str]:
    model, data = model_and_data(*words)
    model, batch = model.double().train(), data.step(0)
    loss, gradients = loss_and_gradients(model, batch)
    on_device = copy.deepcopy(model).to(bench.device)
    device_loss, device_gradients = loss_and_gradients(on_device, batch)
    error = relative_error({"loss": device_loss, **device_gradients}, {"loss": loss, **gradients})
    with bench.autocast():
        half_loss, _ = loss_and_gradients(on_device.float(), batch)
    half = relative_error({"loss": half_loss}, {"loss": loss})
    return error < FLOAT64 and half < BFLOAT16, f"float64 {error:.1e}, loss in bfloat16 {half:.1e}"


def fused(bench: Bench) -> None:
    """Compare FlexAttention, forward and backward, with float64 on the CPU."""
    for name, words in FUSED.items():
        bench.attempt(name, lambda words=words: _fused(bench, (*words, *SMALL)))  # type: ignore[misc]  # bound


def _fused(bench: Bench, words: tuple[str, ...]) -> tuple[bool, str]:
    model, data = model_and_data(*words)
    body: Any = model.topology.get_submodule("body")
    kernels = set(body.kernels(device="cuda", queries=128))
    batch = data.step(0)
    loss, gradients = loss_and_gradients(copy.deepcopy(model).double(), batch)
    device_loss, device_gradients = loss_and_gradients(model.to(bench.device), batch)
    error = relative_error({"loss": device_loss, **device_gradients}, {"loss": loss, **gradients})
    return error < FLOAT32, f"{error:.1e}, kernels {', '.join(sorted(kernels))}"


def compiled(bench: Bench) -> None:
    """Compare compiled layers with eager ones over three batches, and count the graphs."""
    for name, words in COMPILED.items():
        bench.attempt(name, lambda words=words: _compiled(bench, (*words, *SMALL)))  # type: ignore[misc]  # bound


def _compiled(bench: Bench, words: tuple[str, ...]) -> tuple[bool, str]:
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    model, data = model_and_data(*words)
    model = model.to(bench.device).train()
    batches = [data.step(step) for step in range(3)]
    expected = [loss_and_gradients(model, batch) for batch in batches]
    counters.clear()
    layers = configure_layers(model, {"compile": bench.pick(True, {"backend": "aot_eager"})}, bench.device)
    errors = []
    for batch, (loss, gradients) in zip(batches, expected, strict=True):
        compiled_loss, compiled_gradients = loss_and_gradients(model, batch)
        errors.append(relative_error({"loss": compiled_loss, **compiled_gradients}, {"loss": loss, **gradients}))
    graphs = int(counters["stats"]["unique_graphs"])
    detail = f"{max(errors):.1e}, {layers.compiled} layers, {graphs} graphs"
    return max(errors) < FLOAT32 and layers.compiled > 0 and graphs <= 2 * layers.compiled, detail


def trials(bench: Bench) -> None:
    """A trial that is interrupted and resumed has the same bits; DDP on one device has the same losses; no waiting."""
    bench.attempt("an interrupted trial resumes bitwise", lambda: _resumed(bench, {"deterministic": True}))
    bench.attempt(
        "so does a compiled one", lambda: _resumed(bench, {"compile": bench.pick(True, {"backend": "eager"})})
    )
    bench.attempt("DDP on one device", lambda: _distributed(bench))
    bench.attempt("a training step does not synchronize", lambda: _synchronizations(bench))


def _trial(bench: Bench, trainer: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    accelerator = "cpu" if bench.rehearse else "cuda"
    options = {"max_steps": 8, "accelerator": accelerator, "devices": 1, **trainer}
    words = ("gpt-tiny", *SMALL, "dims.width=32", "dropout=0.1", "corpus=copy", "tokenizer=symbols")
    return {**resolved(*words, registry=registry()), "trainer": options, **changes}


def _resumed(bench: Bench, trainer: Mapping[str, Any]) -> tuple[bool, str]:
    spec = _trial(bench, trainer)
    with tempfile.TemporaryDirectory() as root:
        folders = [Path(root, name) for name in ("whole", "cut")]
        for folder in folders:
            folder.mkdir()
        whole = run_trial(spec, registry(), TrialContext("trial", folders[0]))
        steps = iter(range(20))
        try:
            run_trial(spec, registry(), TrialContext("trial", folders[1], should_stop=lambda: next(steps) == 3))
        except InterruptedTrialError:
            torch.compiler.reset()
            resumed = run_trial(spec, registry(), TrialContext("trial", folders[1]))
        else:
            return False, "it was not interrupted"
    differing = [key for key, value in whole["result"].items() if resumed["result"][key] != value]
    device = resumed["provenance"]["machine"]["device"]
    return not differing and device == bench.device.type, f"differing: {', '.join(differing) or 'nothing'}; on {device}"


def _distributed(bench: Bench) -> tuple[bool, str]:
    losses = []
    for trainer in ({}, {"strategy": "ddp"}):
        with tempfile.TemporaryDirectory() as folder:
            record = run_trial(_trial(bench, trainer), registry(), TrialContext("trial", Path(folder)))
        losses.append(record["result"]["losses"])
    error = max(abs(one - other) / abs(one) for one, other in zip(*losses, strict=True))
    return error < 1e-5, f"{error:.1e}"


def _synchronizations(bench: Bench) -> tuple[bool, str]:
    model, data = model_and_data("gpt-tiny", *SMALL, "dropout=0.1")
    model = model.to(bench.device).train()
    batch = to_device(data.step(0), model)
    model.loss(batch).backward()
    if bench.rehearse:
        return True, "not applicable"
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            model.loss(batch).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    count = sum("synchroniz" in str(warning.message) for warning in caught)
    return not count, f"{count} synchronizations"


CHECKS: Mapping[str, Callable[[Bench], None]] = {
    "trials": trials,
    "fused": fused,
    "compiled": compiled,
    "cells": cells,
}

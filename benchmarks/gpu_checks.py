"""Correctness on a GPU: installation, fused kernels, compiled layers, CUDA graphs, and attention cells."""

from __future__ import annotations

import copy
import importlib
import importlib.metadata
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from benchmarks import machine
from benchmarks.gpu_setup import Bench, loss_and_gradients, model_and_data, registry, relative_error
from benchmarks.gpu_trials import reduced_trial, steps, studies, trials
from packaging.requirements import Requirement
from torch.nn import functional

from paribus.errors import SpecError
from paribus.models.layers import configure_layers
from paribus.parts.fla_kernels import KERNELS, run_kernel, serves
from paribus.parts.matrix_recurrence import Inputs, run_chunks
from paribus.specs import resolved

SMALL = ("dims.width=64", "dims.layers=2", "dims.heads=4", "dims.length=128", "data.batch=4")
FLOAT64, FLOAT32 = 1e-9, 2e-3  # relative errors of loss and gradients
BFLOAT16 = 0.4  # on a CPU the median of all cells is 0.01; thresholds, as of sparsemax, give up to 0.17
RECURRENCE = 0.03  # of kernels in bfloat16; in float16 on a CPU, interpreted, 0.001
MODULES = {"pyyaml": "yaml"}  # names of modules that are not those of their packages
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
    "alibi, heads of 64": ("gpt-tiny", "position=alibi", "dims.heads=1"),
    "alibi, heads of 128": ("gpt-tiny", "position=alibi", "dims.width=256", "dims.heads=2"),
    "alibi, heads of 256": ("gpt-tiny", "position=alibi", "dims.width=512", "dims.heads=2"),
    "t5, heads of 64": ("gpt-tiny", "position=t5", "dims.heads=1"),
}  # fmt: skip
NOT_FUSED = ("documents apart",)  # the kernel `sdpa` computes it
COMPILED: Mapping[str, tuple[str, ...]] = {
    "decoder": ("gpt-tiny",),
    "encoder": ("encoder-tiny",),
    "encoder-decoder": ("seq2seq-tiny",),
    "flex in compiled layers": ("gpt-tiny", "position=alibi"),
    "windows and full attention": ("gpt-tiny", "attention=[{name: restricted, window: 16}, mha]"),
    "rms norms, gated": ("gpt-tiny", "position=rope", "norm=rmsnorm", "feedforward=glu", "attention=gqa"),
}
WHOLE_MODELS: Mapping[str, tuple[str, ...]] = {
    "decoder": ("gpt-tiny",),
    "decoder, gated, documents apart": (
        "gpt-tiny", "position=rope", "norm=rmsnorm", "feedforward=glu", "attention=gqa", "data.documents=apart",
    ),
    "bert": ("bert-tiny",),
    "bert, sentence order, pre": ("bert-tiny", "objective=[mlm, sop]", "placement=pre"),
    "disentangled, shared projections": (
        "encoder-tiny", "position=disentangled", "position.separate_projections=false",
    ),
    "encoder-decoder": ("seq2seq-tiny",),
}  # fmt: skip


def device(bench: Bench) -> None:
    """Check the device, the versions of the dependencies, the compiler and the components."""
    described = bench.machine()
    bench.check("device", True, ", ".join(f"{key} {value}" for key, value in described.items() if key != "versions"))
    bench.check("versions", True, ", ".join(f"{name} {version}" for name, version in described["versions"].items()))
    if not bench.rehearse:
        free, total = torch.cuda.mem_get_info()
        bench.check("at least 80 % of the memory is free", free > 0.8 * total, f"{free / 2**30:.1f} GiB")
    project = tomllib.loads((machine.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for line in project["dependencies"]:
        bench.attempt(line, lambda line=line: _dependency(line))  # type: ignore[misc]  # bound
    bench.attempt("components", _components)
    bench.check("products in float32 are exact", not torch.backends.cuda.matmul.allow_tf32, "TF32 is off by default")
    bench.attempt("a loss and its gradients", lambda: _trained(bench))
    bench.attempt("torch.compile", lambda: _compiler(bench))


def _dependency(line: str) -> tuple[bool, str]:
    requirement = Requirement(line)
    version = importlib.metadata.version(requirement.name)
    module = importlib.import_module(MODULES.get(requirement.name, requirement.name.replace("-", "_")))
    return requirement.specifier.contains(version, prereleases=True), f"{version}, {module.__file__}"


def _components() -> tuple[bool, str]:
    entries = registry().index.entries
    count = sum(map(len, entries.values()))
    return count > 100, f"{count} components in {len(entries)} slots"


def _trained(bench: Bench) -> tuple[bool, str]:
    model, data = model_and_data("gpt-tiny", *SMALL)
    loss, gradients = loss_and_gradients(model.to(bench.device), data.step(0))
    return bool(loss.isfinite()) and len(gradients) > 10, f"loss {float(loss):.2f}, {len(gradients)} gradients"


def _compiler(bench: Bench) -> tuple[bool, str]:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2).sum()

    compiled: Any = torch.compile(function, backend=bench.pick("inductor", "aot_eager"))
    x = torch.randn(1000, device=bench.device)
    return torch.allclose(compiled(x), function(x), atol=1e-3), f"Triton {described_triton()}"


def described_triton() -> str:
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "is not installed"


def cells(bench: Bench) -> None:
    """Compare whole models, and every attention by position cell, in float64 with the CPU, and in bfloat16."""
    for name, words in WHOLE_MODELS.items():
        bench.attempt(name, lambda words=words: _cell(bench, (*words, *SMALL)))  # type: ignore[misc]  # bound
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
        half_loss, half_gradients = loss_and_gradients(on_device.float(), batch)
    half = relative_error({"loss": half_loss, **half_gradients}, {"loss": loss, **gradients})
    return error < FLOAT64 and half < BFLOAT16, f"float64 {error:.1e}, bfloat16 {half:.1e}"


def fused(bench: Bench) -> None:
    """Compare fused kernels, forward and backward, with float64 on the CPU: of attention, and of linear recurrences."""
    for name, words in FUSED.items():
        kernel = "sdpa" if name in NOT_FUSED else "flex"
        spec = (words[0], *SMALL, *words[1:])
        bench.attempt(name, lambda spec=spec, kernel=kernel: _fused(bench, spec, kernel))  # type: ignore[misc]  # bound

    for delta, kind in KERNELS:
        name = f"linear recurrence, {'delta rule, ' if delta else ''}decays: {kind}"
        bench.attempt(name, lambda delta=delta, kind=kind: _recurrence(bench, delta, kind))  # type: ignore[misc]  # bound


def _recurrence(bench: Bench, delta: bool, kind: str) -> tuple[bool, str]:
    """Compare a kernel of `fla-core`, forward and backward, with the operations of torch in float64."""
    torch.manual_seed(0)
    rows, width = (2, 4, 200), 64
    q, k, v = (torch.randn(*rows, width) for _ in range(3))
    k, step_size = functional.normalize(k, dim=-1), torch.rand(*rows, 1)
    log_decay = None if kind == "none" else -torch.rand(*rows, width if kind == "channel" else 1)
    results = []
    for device, dtype in (("cpu", torch.float64), (bench.device, bench.pick(torch.bfloat16, torch.float32))):
        given = (q, k, v, log_decay, step_size)
        parts = [None if part is None else part.to(device, dtype).requires_grad_() for part in given]
        tokens = Inputs(*parts)  # type: ignore[arg-type]  # only decays are missing
        is_served = serves(tokens, writes=1, has_state=False, has_documents=False)
        y = run_kernel(tokens, delta=delta) if is_served else run_chunks(tokens, delta=delta)[0]
        leaves = [part for part in parts if part is not None]
        tensors = (y, *torch.autograd.grad(y.square().mean(), leaves))
        results.append({str(index): tensor.detach().cpu().double() for index, tensor in enumerate(tensors)})
    error = relative_error(results[1], results[0])
    return error < bench.pick(RECURRENCE, FLOAT32) and is_served != bench.rehearse, f"{error:.1e}"


def _fused(bench: Bench, words: tuple[str, ...], kernel: str) -> tuple[bool, str]:
    model, data = model_and_data(*words)
    body: Any = model.topology.get_submodule("body")
    kernels = set(body.kernels(device="cuda", queries=128))
    batch = data.step(0)
    loss, gradients = loss_and_gradients(copy.deepcopy(model).double(), batch)
    device_loss, device_gradients = loss_and_gradients(model.to(bench.device), batch)
    error = relative_error({"loss": device_loss, **device_gradients}, {"loss": loss, **gradients})
    with bench.autocast():
        half_loss, half_gradients = loss_and_gradients(model, batch)
    half = relative_error({"loss": half_loss, **half_gradients}, {"loss": loss, **gradients})
    detail = f"float32 {error:.1e}, bfloat16 {half:.1e}, kernels {', '.join(sorted(kernels))}"
    return error < FLOAT32 and half < BFLOAT16 and kernels == {kernel}, detail


def compiled(bench: Bench) -> None:
    """Compare compiled layers with eager ones over three batches, and count the graphs."""
    options = bench.pick(True, {"backend": "aot_eager"})
    for name, words in COMPILED.items():
        bench.attempt(name, lambda words=words: _compiled(bench, (*words, *SMALL), options))  # type: ignore[misc]  # bound


def reduce_overhead(bench: Bench) -> None:
    """Compare layers in CUDA graphs with eager ones, with accumulated gradients and losses in chunks, and trials."""
    options = bench.pick({"mode": "reduce-overhead"}, {"backend": "aot_eager"})
    for name, words in COMPILED.items():
        bench.attempt(name, lambda words=words: _compiled(bench, (*words, *SMALL), options, count=5))  # type: ignore[misc]  # bound
    decoder = ("gpt-tiny", *SMALL)
    bench.attempt("accumulated gradients", lambda: _compiled(bench, decoder, options, count=5, accumulated=2))
    size, batch = bench.pick((32_768, 16), (4_096, 4))
    chunks = (*decoder, "dims.length=512", f"data.batch={batch}")
    bench.attempt("a loss in chunks", lambda: _compiled(bench, chunks, options, count=5, size=size))
    for count in (1, 2):
        bench.attempt(f"a trial, {count} batches a step", lambda count=count: reduced_trial(bench, options, count))  # type: ignore[misc]  # bound


def _compiled(
    bench: Bench, words: tuple[str, ...], options: Any, *, count: int = 3, accumulated: int = 1, size: int = 64
) -> tuple[bool, str]:
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    model, data = model_and_data(*words, size=size)
    model = model.to(bench.device).train()
    groups = [[data.step(step * accumulated + part) for part in range(accumulated)] for step in range(count)]
    expected = [loss_and_gradients(model, *batches) for batches in groups]
    counters.clear()
    layers = configure_layers(model, {"compile": options, "accumulate_grad_batches": accumulated}, bench.device)
    errors = []
    for batches, (loss, gradients) in zip(groups, expected, strict=True):
        compiled_loss, compiled_gradients = loss_and_gradients(model, *batches)
        errors.append(relative_error({"loss": compiled_loss, **compiled_gradients}, {"loss": loss, **gradients}))
    graphs = int(counters["stats"]["unique_graphs"])
    detail = f"{max(errors):.1e}, {layers.compiled} layers, {graphs} graphs"
    return max(errors) < FLOAT32 and layers.compiled > 0 and graphs <= 2 * layers.compiled, detail


CHECKS: Mapping[str, Callable[[Bench], None]] = {
    "device": device,
    "trials": trials,
    "fused": fused,
    "compiled": compiled,
    "steps": steps,
    "reduce-overhead": reduce_overhead,
    "studies": studies,
    "cells": cells,
}

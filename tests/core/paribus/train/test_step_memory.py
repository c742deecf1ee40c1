"""The memory of a training step is predicted as it is needed, and without memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

import paribus
from paribus import Cost, FeedForward, Load, Shape
from paribus.models.assemble import meta_model
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.train import step_memory as module
from paribus.train.step_memory import LiveBytes, StepMemory, memory_shortage, rule_of_thumb, step_memory
from paribus.train.timed_steps import TimedSteps

STEPS = [
    "gpt-tiny",
    "gpt-tiny dropout=0.1 optimizer=lamb",
    "gpt-tiny trainer.activation_checkpointing=true dims.layers=6",
    "gpt-tiny trainer.accumulate_grad_batches=4",
    "gpt-tiny dims.vocabulary=9000",
    "gpt-tiny attention=restricted attention.window=8 dims.length=64",
    "bert-tiny",
    "t5-tiny",
    "electra-tiny",
    "lstm-lm-tiny",
    "rnnsearch-tiny",
    "m2m100-tiny",
    "vit-tiny corpus.images=64 corpus.held_out=32",
]


def tracked_step(spec: dict[str, Any], registry: Registry) -> int:
    """Return the peak of the bytes that live in a real step, in its second step."""
    steps = TimedSteps(spec, registry, torch.device("cpu"))
    live = LiveBytes()
    for tensor in (*steps.model.parameters(), *steps.model.buffers()):
        live.add(tensor)
    micro_batches = (spec["trainer"] or {}).get("accumulate_grad_batches", 1)
    batches = [
        [steps.data.micro_batch(step * micro_batches + share) for share in range(micro_batches)] for step in range(2)
    ]
    with live:
        for shares in batches:
            live.reset_peak()
            for batch in shares:
                steps.model.loss(batch).backward()
            steps.optimizer.step()
            steps.optimizer.zero_grad()
    return live.peak


@pytest.mark.few(1)
@pytest.mark.parametrize("words", STEPS)
def test_a_prediction_equals_the_memory_of_a_real_step(words: str, registry: Registry) -> None:
    spec = resolved(*words.split(), registry=registry)
    predicted = step_memory(spec, registry)
    assert predicted.simulated
    assert predicted.total == pytest.approx(tracked_step(spec, registry), rel=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("preset", [name for name in installed().index.presets if name.endswith("-tiny")])
def test_every_preset_is_simulated(preset: str, registry: Registry) -> None:
    spec = resolved(preset, registry=registry)
    predicted = step_memory(spec, registry)
    assert predicted.simulated
    assert predicted.total == pytest.approx(tracked_step(spec, registry), rel=0.1)


MEASURED = [
    ["gpt2", "dims.layers=3", "dims.length=256", "data.batch=4"],
    ["gpt2", "dims.layers=4", "dims.length=256", "data.batch=8", "dropout=0", "tokenizer=bytes", "dims.vocabulary=null",
     "trainer.activation_checkpointing=true"],
    ["gpt2", "dims.layers=3", "dims.length=256", "data.batch=8", "dropout=0", "trainer.precision=bf16-mixed"],
    ["bert-base", "dims.layers=3", "dims.length=128", "data.batch=16", "tokenizer=bytes", "dims.vocabulary=null"],
    ["t5-base", "dims.layers=2", "dims.length=128", "data.batch=8"],
    ["modernbert-base", "dims.layers=3", "dims.length=512", "data.batch=2"],
    ["vit-b16", "dims.layers=3", "data.batch=4", "corpus.images=64", "corpus.held_out=32"],
    ["lstm-lm", "dims.length=64", "data.batch=16"],
]  # fmt: skip
MEASURE = """
import gc, json, sys, torch
from paribus.registry import installed
from paribus.specs import resolved
from paribus.models.assemble import load_corpus
from paribus.evidence.provenance import peak_memory, reset_peak_memory
from paribus.train.timed_steps import TimedSteps
torch.set_num_threads(1)
registry, cpu = installed(), torch.device("cpu")
spec = resolved(*json.loads(sys.argv[1]), registry=registry)
TimedSteps(resolved("gpt-tiny", registry=registry), registry, cpu).take(2)  # loads what a step needs
load_corpus(spec, registry)
gc.collect()
resting = int(open("/proc/self/statm").read().split()[1]) * 4096
steps = TimedSteps(spec, registry, cpu)
steps.take(1)
reset_peak_memory()
steps.take(2)
print(peak_memory() - resting)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("words", MEASURED, ids=" ".join)
def test_a_prediction_is_within_15_percent_of_the_measured_memory(words: list[str], registry: Registry) -> None:
    # Freed blocks return to the system, so that the process has what its tensors need.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    command = [sys.executable, "-c", MEASURE, json.dumps(words)]
    measured = int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert step_memory(resolved(*words, registry=registry), registry).total == pytest.approx(measured, rel=0.15)


def predicted(registry: Registry, *words: str) -> StepMemory:
    return step_memory(resolved("gpt-tiny", "dims.layers=4", *words, registry=registry), registry)


@pytest.mark.thorough
def test_predictions_follow_the_options_of_the_trainer(registry: Registry) -> None:
    whole = predicted(registry)
    accumulated = predicted(registry, "trainer.accumulate_grad_batches=4")
    assert accumulated.activations < 0.35 * whole.activations
    assert accumulated[:3] == pytest.approx(whole[:3], rel=0.02)
    assert predicted(registry, "trainer.activation_checkpointing=true").activations < 0.7 * whole.activations
    assert predicted(registry, "trainer.precision=bf16") == predicted(registry, "trainer.precision=bf16-mixed")
    assert predicted(registry, "trainer.precision=bf16") != whole
    half = predicted(registry, "trainer.precision=bf16-true")
    assert 2 * half.parameters == pytest.approx(whole.parameters, rel=0.01)
    assert half.activations < 0.75 * whole.activations
    processes = predicted(registry, "trainer.devices=2", "trainer.strategy=ddp", "trainer.accelerator=cpu")
    assert processes.gradients == 2 * whole.gradients  # DDP has a copy
    assert processes.activations < 0.6 * whole.activations
    sgd = predicted(registry, "optimizer=sgd")
    assert sgd.optimizer < 0.6 * whole.optimizer


class RealBytes(LiveBytes):
    """Bytes of the tensors that have data."""

    def add(self, tensor: Tensor) -> None:
        if not isinstance(tensor, FakeTensor) and tensor.device.type != "meta":
            super().add(tensor)


@pytest.mark.thorough
def test_a_prediction_takes_no_memory(registry: Registry) -> None:
    spec = resolved("gpt-tiny", "data.batch=4194304", registry=registry)
    with RealBytes() as live:
        total = step_memory(spec, registry).total
    assert total > 1 << 40
    assert live.peak < 1 << 28


@pytest.mark.thorough
@pytest.mark.parametrize("words", ["gpt-tiny dims.vocabulary=9000", "bert-tiny dropout=0.1", "t5-tiny"])
def test_the_memory_of_a_large_batch_follows_from_smaller_ones(
    words: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = resolved(*words.split(), "data.batch=600", registry=registry)
    extrapolated = step_memory(spec, registry)
    monkeypatch.setattr(module, "MAX_TOKENS", 1 << 40)
    assert extrapolated.total == pytest.approx(step_memory(spec, registry).total, rel=0.03)


@pytest.mark.thorough
@pytest.mark.few(2)
@pytest.mark.parametrize(
    "words",
    [
        "gpt-tiny dims.layers=12",
        "gpt-tiny dims.layers=20 attention=[mha,mqa]",
        "t5-tiny dims.layers=12",
        "electra-tiny dims.layers=12 optimizer=lamb",
        "gpt-tiny dims.layers=13 feedforward=glu trainer.ema_decay=0.9",
        "gpt-tiny dims.layers=12 freeze.layers=6",
        "gpt-tiny dims.layers=12 dims.groups=4",
        "gpt-tiny dims.layers=12 attention.scores.value_residual=true",
        "gpt-tiny dims.layers=12 trainer.activation_checkpointing=true",
    ],
)
def test_the_memory_of_a_deep_model_follows_from_shallow_ones(
    words: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = resolved(*words.split(), registry=registry)
    predicted = step_memory(spec, registry)
    monkeypatch.setattr(module, "SHALLOW", (99,))  # deeper than the model, which is then simulated as a whole
    assert predicted == step_memory(spec, registry)
    assert predicted.simulated


def test_a_prediction_draws_no_random_numbers(registry: Registry) -> None:
    state = torch.get_rng_state()
    predicted(registry, "dropout=0.1")
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "words", [["feedforward=moe"], ["trainer.devices=2", "trainer.strategy=fsdp", "trainer.accelerator=cpu"]]
)
def test_a_step_that_does_not_run_without_data_is_estimated_by_the_rule(words: list[str], registry: Registry) -> None:
    spec = resolved("gpt-tiny", *words, registry=registry)
    assert step_memory(spec, registry) == rule_of_thumb(spec, meta_model(spec, registry))
    assert not step_memory(spec, registry).simulated


class NeedsData(FeedForward):
    """Feed-forward whose own check of its input fails in the simulation."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        if isinstance(x, FakeTensor):
            raise ValueError("this needs data")
        return x, None

    def cost(self, load: Load) -> Cost:
        return Cost()


def test_a_step_that_a_component_refuses_is_estimated_by_the_rule(registry: Registry) -> None:
    classes = registry.with_components(feedforward={"needs-data": NeedsData})
    spec = resolved("gpt-tiny", "feedforward=needs-data", registry=classes)
    assert step_memory(spec, classes) == rule_of_thumb(spec, meta_model(spec, classes))


@pytest.mark.thorough
def test_a_teacher_counts(registry: Registry, tmp_path: Path) -> None:
    model = paribus.assemble({"preset": "gpt-tiny"}, registry=registry)
    paribus.save(model, tmp_path / "teacher")
    student = ["gpt-tiny", "objective=[clm, distill-scores]", "dims.layers=1"]
    alone = step_memory(resolved("gpt-tiny", "dims.layers=1", registry=registry), registry)
    taught = step_memory(resolved(*student, f"teacher={tmp_path / 'teacher'}", registry=registry), registry)
    assert taught.simulated
    parameters = sum(4 * parameter.numel() for parameter in model.parameters())
    assert taught.parameters >= alone.parameters + parameters
    assert taught.gradients == alone.gradients


@pytest.mark.thorough
def test_a_shortage_is_simulated_only_where_it_is_near(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = resolved("gpt-tiny", registry=registry)
    needed = step_memory(spec, registry).total
    monkeypatch.setattr(module, "free_memory", lambda device: needed - 1)
    assert memory_shortage(spec, registry) == (needed, needed - 1)
    monkeypatch.setattr(module, "free_memory", lambda device: needed)
    assert memory_shortage(spec, registry) is None
    monkeypatch.setattr(module, "free_memory", lambda device: 100 * needed)
    monkeypatch.setattr(module, "step_memory", None)  # is not called
    assert memory_shortage(spec, registry) is None


@pytest.mark.gpu
@pytest.mark.parametrize("words", MEASURED[:4], ids=" ".join)
def test_a_prediction_is_within_15_percent_of_the_memory_of_a_gpu(words: list[str], registry: Registry) -> None:
    spec = resolved(*words, "trainer.compile=false", "trainer.accelerator=gpu", registry=registry)
    steps = TimedSteps(spec, registry, torch.device("cuda"))
    steps.take(1)
    torch.cuda.reset_peak_memory_stats()
    steps.take(2)
    assert step_memory(spec, registry).total == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.15)


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize(
    "changes", [{}, {"dims": {"layers": 4}}, {"dims": {"width": 64}}, {"dims": {"vocabulary": 5000}}]
)
def test_the_memory_of_a_step_is_near_what_autograd_keeps(
    registry: Registry, changes: dict[str, Any], batch: int
) -> None:
    spec = resolved({"preset": "gpt-tiny", **changes, "data.batch": batch, "dims.length": 128}, registry=registry)
    steps = TimedSteps(spec, registry, torch.device("cpu"))
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        steps.model.loss(steps.data.step(0))
    parameters = sum(parameter.numel() for parameter in steps.model.parameters())
    actual = sum(kept.values()) + 12 * parameters  # the kept tensors include the parameters
    assert 0.5 * actual < rule_of_thumb(spec, steps.model.assembled).total < 2.5 * actual


def test_free_memory_is_positive_and_below_that_of_the_machine() -> None:
    assert 0 < module.free_memory(torch.device("cpu")) < 1 << 50


def test_free_memory_of_a_gpu_includes_what_torch_keeps_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"mem_get_info": (100, 1000), "memory_reserved": 70, "memory_allocated": 30}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert module.free_memory(torch.device("cuda")) == 100 + 70 - 30

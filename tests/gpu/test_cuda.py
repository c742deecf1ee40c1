"""CUDA: equal losses and gradients as on a CPU, and trials that resume bitwise after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from paribus.cli.main import main
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.train.assemble import build_data, build_model, load_corpus
from paribus.train.evaluate import to_device
from paribus.train.lightning_module import Model
from paribus.train.trial import TrialContext, run_trial
from paribus.train.trial_callback import InterruptedTrialError

pytestmark = pytest.mark.gpu

CELLS = [
    *(
        ["encoder-tiny", f"attention={attention}", f"position={position}"]
        for attention in ("mha", "mqa", "gqa", "{name: restricted, window: 8}")
        for position in ("none", "sinusoidal", "learned", "rope", "alibi")
    ),
    *(["encoder-tiny", f"position={position}"] for position in ("t5", "fire", "shaw", "transformer-xl")),
    *(
        ["encoder-tiny", "position=disentangled", f"position.separate_projections={separate}"]
        for separate in ("true", "false")
    ),
    ["gpt-tiny"],
    ["gpt-tiny", "position=xpos"],
    ["gpt-tiny", "position=rope", "norm=rmsnorm", "feedforward=glu", "attention=gqa", "data.documents=apart"],
    ["bert-tiny", "dims.vocabulary=512"],
    ["bert-tiny", "dims.vocabulary=512", "objective=[mlm, sop]", "placement=pre"],
    ["seq2seq-tiny"],
]


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


def model_and_batch(registry: Registry, *words: str) -> tuple[Model, Any]:
    spec = resolved(words[0], *words[1:], registry=registry)
    text = load_corpus(spec, registry)
    return build_model(spec, registry, text.vocabulary), build_data(spec, registry, text).step(0)


@pytest.mark.parametrize("words", CELLS, ids=" ".join)
def test_loss_and_gradients_on_a_gpu_equal_those_on_a_cpu(registry: Registry, words: list[str]) -> None:
    model, batch = model_and_batch(registry, *words)
    model.double()
    loss = model.loss(batch)
    loss.backward()
    expected = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    model.zero_grad()
    model.to("cuda")
    gpu_loss = model.loss(to_device(batch, model))
    gpu_loss.backward()
    assert gpu_loss.item() == pytest.approx(loss.item(), rel=1e-9)
    for name, parameter in model.named_parameters():
        if name in expected:
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad.cpu(), expected[name], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("words", "kernel"),
    [
        (["gpt-tiny", "position=alibi"], "flex"),
        (["gpt-tiny", "position=t5"], "flex"),
        (["gpt-tiny", "position=rope", "attention.scores.soft_cap=20.0"], "flex"),
        (["gpt-tiny", "position=rope", "attention.scores.soft_cap=20.0", "data.documents=apart"], "flex"),
        (["gpt-tiny", "position=rope"], "sdpa"),
    ],
    ids=str,
)
def test_score_functions_are_fused_with_equal_loss_and_gradients(
    registry: Registry, words: list[str], kernel: str
) -> None:
    model, batch = model_and_batch(registry, *words)
    assert set(model.get_submodule("body").kernels(device="cuda", queries=128)) == {kernel}  # type: ignore[operator]  # a stack
    loss = model.loss(batch)
    loss.backward()
    expected = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    model.zero_grad()
    model.to("cuda")
    gpu_loss = model.loss(to_device(batch, model))
    gpu_loss.backward()
    assert gpu_loss.item() == pytest.approx(loss.item(), rel=1e-4)
    for name, parameter in model.named_parameters():
        if name in expected:
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad.cpu(), expected[name], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("words", [["gpt-tiny"], ["encoder-tiny"]], ids=" ".join)
def test_bf16_stays_near_float32(registry: Registry, words: list[str]) -> None:
    model, batch = model_and_batch(registry, *words)
    model.to("cuda")
    plain = model.loss(to_device(batch, model)).item()
    with torch.autocast("cuda", torch.bfloat16):
        assert model.loss(to_device(batch, model)).item() == pytest.approx(plain, rel=2**-5)


def test_a_training_step_on_a_gpu_does_not_synchronise(registry: Registry) -> None:
    model, batch = model_and_batch(registry, "gpt-tiny", "dropout=0.1")
    model.to("cuda")
    gpu_batch = to_device(batch, model)
    model.loss(gpu_batch).backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss = model.loss(gpu_batch)
        loss.backward()  # a synchronisation would raise
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert loss.isfinite()


def test_an_interrupted_trial_on_a_gpu_resumes_bitwise(registry: Registry, tmp_path: Path) -> None:
    words = ["dims.width=32", "dropout=0.1", "trainer.max_steps=12", "trainer.deterministic=true"]
    spec = resolved("gpt-tiny", *words, registry=registry)
    expected = run_trial(spec, registry, TrialContext("trial", tmp_path / "whole"))
    steps = 0

    def should_stop() -> bool:
        nonlocal steps
        steps += 1
        return steps == 5

    with pytest.raises(InterruptedTrialError, match="asked to stop"):
        run_trial(spec, registry, TrialContext("trial", tmp_path / "cut", should_stop=should_stop))
    resumed = run_trial(spec, registry, TrialContext("trial", tmp_path / "cut"))
    assert resumed["result"] == expected["result"]
    assert resumed["provenance"]["machine"]["device"] == "cuda"


def test_the_quickstart_on_a_gpu_finds_its_control_worse(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run", "quickstart", "--store", str(tmp_path), "--jobs", "2", "--json"]) == 0
    rows = {row["variant"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["position=none"]["verdict"] == "worse"


def test_each_trial_is_pinned_to_one_device(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["run", "quickstart", "--store", str(tmp_path), "--jobs", str(2 * torch.cuda.device_count()), "--json"]
    assert main(words) == 0
    capsys.readouterr()
    records = [json.loads(path.read_text())["body"] for path in tmp_path.rglob("record.json")]
    devices = {record["provenance"]["visible"] for record in records}
    assert len(devices) == torch.cuda.device_count()

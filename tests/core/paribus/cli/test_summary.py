"""`paribus summary`: counts of a spec, and differences of two specs."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from paribus.cli.main import main
from paribus.cli.summary import _summary, format_value, spec_differences
from paribus.models.assemble import meta_model
from paribus.registry import Index, Registry, installed
from paribus.specs import resolved
from paribus.train import step_memory
from paribus.train.step_memory import rule_of_thumb
from paribus_attention import long_short_term_memory
from paribus_topology import cells


def summary(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["summary", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def rough_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimate the memory of large models by the rule of thumb; to simulate a step takes seconds."""
    monkeypatch.setattr(
        step_memory, "step_memory", lambda spec, classes: rule_of_thumb(spec, meta_model(spec, classes))
    )


@pytest.mark.usefixtures("rough_memory")
@pytest.mark.parametrize(("preset", "parameters"), [("bert-base", 110_106_428), ("gpt2", 124_439_808)])
def test_a_published_model_has_its_published_size(
    capsys: pytest.CaptureFixture[str], preset: str, parameters: int
) -> None:
    assert summary(capsys, preset)["parameters"] == parameters


@pytest.mark.thorough
@pytest.mark.usefixtures("rough_memory")
def test_the_published_size_is_printed_above_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "bert-large"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("bert-large: BERT large:")
    assert "340 M parameters" in text.splitlines()[0]
    assert "336,226,108" in text


def test_the_rule_of_each_tensor_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gpt-tiny", "optimizer={name: muon, lr: 0.02, weight_decay: 0.2, adamw: {lr: 0.003, weight_decay: 0.1}}"]
    groups = summary(capsys, *words, "freeze.paths=[body.position]")["optimizer"]
    assert [(group["rule"], group["lr"], group["weight_decay"]) for group in groups] == [
        ("muon", 0.02, 0.2),
        ("adamw", 0.003, 0.1),
        ("adamw", 0.003, 0.0),
    ]
    assert [group["roles"] for group in groups[1:]] == [["embedding"], ["bias", "gain"]]
    assert groups[1]["tensors"] == 1
    assert main(["summary", *words]) == 0
    assert "muon            12      98,304   0.02    0.2  query, key, value, residual, inner" in capsys.readouterr().out


def test_the_rate_factor_of_each_tensor_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["gpt-tiny", "embedding.tie=false", "initialisation={name: mup, base_width: 16, base_layers: 1}"]
    groups = summary(capsys, *words)["optimizer"]
    factors = {role: group["rate_factor"] for group in groups for role in group["roles"]}
    assert factors == {"embedding": 1, "head": 1 / 4, "gain": 1, "bias": 1 / 2, "residual": 1 / 8} | dict.fromkeys(
        ("query", "key", "value", "inner"), 1 / 4
    )
    assert main(["summary", *words]) == 0
    assert "adamw            4      40,960   0.125  0.00025    0.8  residual" in capsys.readouterr().out


@pytest.mark.thorough
def test_the_lines_add_up_to_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    document = summary(capsys, "seq2seq-tiny")
    assert sum(line["parameters"] for line in document["lines"]) == document["parameters"]
    assert sum(line["flops"] for line in document["lines"]) == pytest.approx(
        document["flops_per_token"] * document["length"]
    )


@pytest.mark.thorough
def test_sharing_keys_and_values_saves_exactly_their_part_of_the_cache(capsys: pytest.CaptureFixture[str]) -> None:
    whole = summary(capsys, "gpt-tiny")["cache_bytes_per_token"]
    assert whole == 2 * 2 * 4 * 16 * 4  # keys and values, layers, heads, head width, bytes
    assert summary(capsys, "gpt-tiny", "attention=mqa")["cache_bytes_per_token"] == whole / 4


@pytest.mark.thorough
def test_the_memory_of_a_training_step_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    document = summary(capsys, "gpt-tiny", "--versus", "trainer.accumulate_grad_batches=2")
    whole, halves = document["training_memory"], document["versus"]["training_memory"]
    assert whole["simulated"]
    assert whole["parameters"] >= 4 * document["parameters"]
    assert halves["activations"] < 0.6 * whole["activations"]
    assert main(["summary", "gpt-tiny", "trainer.accumulate_grad_batches=2"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "memory of a training step, 8 examples of a batch of 16 at a time: " in text
    assert main(["summary", "gpt-tiny", "feedforward=moe"]) == 0
    assert "by a simple rule" in " ".join(capsys.readouterr().out.split())


def _set_availability(monkeypatch: pytest.MonkeyPatch, is_available: Callable[[torch.dtype], bool]) -> None:
    for operation in (long_short_term_memory.LSTM, cells.LSTM):
        monkeypatch.setattr(operation, "_is_available", is_available)


@pytest.mark.thorough
def test_what_computes_in_float32_is_printed_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _set_availability(monkeypatch, lambda dtype: False)
    assert main(["summary", "lstm-lm-tiny", "dims.layers=2", "trainer.precision=bf16-mixed"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.count("attention=lstm computes in float32: this processor has no LSTM in bfloat16") == 1


@pytest.mark.parametrize(
    ("preset", "component"),
    [
        ("lstm-lm-tiny", "attention=lstm"),
        ("luong-tiny", "topology=recurrent-encoder-decoder"),
        ("gpt-tiny", None),
        ("rnnsearch-tiny", None),
    ],
)
def test_components_compute_in_float32_where_the_processor_lacks_their_operation(
    preset: str, component: str | None, components: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def computing_in_float32(precision: str) -> list[str]:
        return list(_summary(components, preset, (f"trainer.precision={precision}",))["float32"])

    _set_availability(monkeypatch, lambda dtype: dtype != torch.bfloat16)
    for precision in ("bf16-mixed", "16-mixed"):  # on a CPU, Lightning takes bfloat16 for both
        assert computing_in_float32(precision) == ([component] if component else [])
    for precision in ("32", "bf16-true"):
        assert not computing_in_float32(precision)
    _set_availability(monkeypatch, lambda dtype: True)
    assert not computing_in_float32("bf16-mixed")


@pytest.mark.thorough
def test_versus_prints_both_sides_and_their_differences(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "bert-tiny", "--versus", "attention=mqa"]) == 0
    text = capsys.readouterr().out
    assert "attention: mha" in text
    assert "→ mqa" in text
    assert "-5.1%" in text


@pytest.mark.thorough
def test_versus_replaces_an_override_of_the_same_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "bert-tiny", "dims.layers=1", "seed=3", "--versus", "dims.layers=2"]) == 0
    assert "dims.layers: 1 → 2" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.usefixtures("rough_memory")
def test_versus_accepts_another_spec(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", "gpt2", "--versus", "bert-base"]) == 0
    text = capsys.readouterr().out
    assert "topology: decoder → encoder" in text
    assert "124,439,808" in text
    assert "110,106,428" in text


@pytest.fixture(scope="module")
def index() -> Index:
    return installed(no_plugins=True).index


def differences(index: Index, base_words: list[str], variant_words: list[str]) -> dict[str, tuple[str, str]]:
    base_spec, variant_spec = (
        resolved(*words, registry=installed(no_plugins=True)) for words in (base_words, variant_words)
    )
    return {
        key: (base_value, variant_value)
        for key, base_value, variant_value in spec_differences(base_spec, variant_spec, index)
    }


@pytest.mark.thorough
def test_equal_specs_differ_in_nothing(index: Index) -> None:
    assert not differences(index, ["bert-tiny"], ["bert-tiny"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("override", "key", "expected"),
    [
        ("attention=mqa", "attention", ("mha", "mqa")),
        ("attention.scores.qk_norm=true", "attention.scores.qk_norm", ("false", "true")),
        (
            "attention={name: gqa, kv_heads: 1, scores: {bias: false}}",
            "attention",
            ("mha", "gqa(kv_heads=1, scores=(bias=false))"),
        ),
        ("attention=[mha, {name: restricted, window: 8}]", "attention", ("mha", "[mha, restricted(window=8)]")),
        ("objective=mlm", "objective.nsp", ("nsp", "-")),
        ("objective=[{name: mlm, rate: 0.3}, nsp]", "objective.mlm.rate", ("0.15", "0.3")),
        ("position=none", "position", ("learned", "none")),
        ("dims.layers=3", "dims.layers", ("2", "3")),
    ],
)
def test_a_change_is_printed_as_its_override(index: Index, override: str, key: str, expected: tuple[str, str]) -> None:
    changes = differences(index, ["bert-tiny"], ["bert-tiny", override])
    assert changes[key] == expected
    assert len(changes) == 1


def test_a_nested_component_is_printed_with_its_options(index: Index) -> None:
    moe = {"name": "moe", "expert": {"name": "glu", "inner": 7}}
    assert "glu(inner=7)" in format_value(moe, "feedforward", index)


def test_frozen_parameters_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    frozen = summary(capsys, "bert-tiny", "freeze={paths: '*', trained: objectives}")
    heads = sum(line["parameters"] for line in frozen["lines"] if line["path"].startswith("objectives."))
    assert frozen["parameters"] - frozen["frozen_parameters"] == heads
    assert summary(capsys, "bert-tiny", "freeze={paths: body, steps: 2}")["frozen_parameters"] == 0
    assert main(["summary", "bert-tiny", "--versus", "freeze=body"]) == 0
    text = capsys.readouterr().out
    assert f"{heads:,}" not in text
    assert "freeze: - → (paths=[body])" in text


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["gpt3", "m2m100", "modernbert-base", "vit-b16", "bart-base", "bigbird"])
def test_the_summary_of_a_published_size_takes_three_times_the_cpu_time_of_its_imports(preset: str) -> None:
    def cpu_seconds(*words: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    imports = "import torch, lightning"
    cpu_seconds("-c", imports)  # files are read into the cache
    assert cpu_seconds("-m", "paribus", "summary", preset) <= 3 * cpu_seconds("-c", imports)

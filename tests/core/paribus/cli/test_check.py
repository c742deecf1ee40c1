"""`paribus check`: the resolved spec, or all of its errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paribus.registry import index
from paribus.specs import resolved, spec_hash
from paribus.train import step_memory

Cli = Callable[..., Any]


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["encoder-tiny", "seq2seq-tiny", "bert-tiny"])
def test_the_printed_spec_resolves_to_itself(cli: Cli, name: str) -> None:
    result = cli("check", name, "seed=3")
    assert (result.code, result.err) == (0, "")
    Path("again.yaml").write_text(result.out)
    spec = resolved(name, "seed=3", registry=index())
    assert resolved("again.yaml", registry=index()) == spec
    assert result.out.startswith(f"# {spec_hash(spec)}\n")


def test_json_contains_ok_and_the_resolved_spec(cli: Cli) -> None:
    document = json.loads(cli("check", "encoder-tiny", "--json").out)
    spec = resolved("encoder-tiny", registry=index())
    assert document == {"schema": 1, "ok": True, "problems": [], "warnings": [], "hash": spec_hash(spec), "spec": spec}


@pytest.mark.thorough
def test_a_step_that_does_not_fit_is_a_warning(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_memory, "free_memory", lambda device: 1 << 20)
    result = cli("check", "gpt-tiny", "dims.layers=1")
    assert result.code == 0
    assert result.err.startswith("! a step needs about ")
    assert "and 1M are free; a smaller `data.batch`" in result.err
    assert json.loads(cli("check", "gpt-tiny", "dims.layers=1", "--json").out)["warnings"] == [result.err[2:].strip()]
    Path("study.yaml").write_text(
        "{base: {preset: gpt-tiny, dims.layers: 1}, vary: {position: [rope]}, seeds: 2,\n"
        "budget: {steps: 4}, metric: val/clm/loss}"
    )
    study = cli("check", "study.yaml")
    assert [line.split(":")[0] for line in study.err.splitlines()] == ["! baseline", "! position=rope"]
    assert len(json.loads(cli("check", "study.yaml", "--json").out)["warnings"]) == 2


@pytest.mark.parametrize(("tokenizer", "size"), [("bytes", None), ("bpe", 8192)], ids=["known", "to be trained"])
def test_a_warning_is_about_the_vocabulary_of_the_tokenizer(
    cli: Cli, tokenizer: str, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int | None] = []
    monkeypatch.setattr(step_memory, "memory_shortage", lambda spec, _: sizes.append(spec["dims"]["vocabulary"]))
    assert cli("check", "gpt-tiny", f"tokenizer={tokenizer}").code == 0
    assert sizes == [size]


@pytest.mark.parametrize(
    "words",
    [
        ("check", "gpt-tiny", "seed=1", "seed=2"),
        ("train", "gpt-tiny", "seed=1", "seed=2"),
        ("train", "seed=1", "seed=2"),
        ("summary", "gpt-tiny", "seed=1", "seed=2"),
        ("summary", "gpt-tiny", "--versus", "seed=1", "--versus", "seed=2"),
        ("adapt", "a-model", "seed=1", "seed=2"),
    ],
)
def test_a_command_sets_a_key_once(cli: Cli, words: tuple[str, ...]) -> None:
    result = cli(*words)
    assert result.code == 2
    assert result.err.startswith("error[duplicate-key] seed")
    assert "`seed=1`" in result.err
    assert "`seed=2`" in result.err


def test_json_contains_the_problems(cli: Cli) -> None:
    result = cli("check", "encoder-tiny", "attention=gqaa", "seed=x", "--json")
    document = json.loads(result.out)
    assert result.code == 2
    assert document["ok"] is False
    assert [problem["path"] for problem in document["problems"]] == ["attention", "seed"]
    assert document["problems"][0]["suggestion"] == "gqa"
    assert result.err.count("\n") == 2


def test_errors_of_component_constructors_are_reported(cli: Cli) -> None:
    result = cli("check", "encoder-tiny", "dims.head_width=7")
    assert result.code == 2
    assert "error[odd-rotated-width] position" in result.err


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("word", "code"),
    [("evaluate=[mlm,sop]", "untrained-head"), ("trainer.accumulate_grad_batches=64", "empty-micro-batch")],
)
def test_what_a_training_would_refuse_is_refused(cli: Cli, word: str, code: str) -> None:
    result = cli("check", "bert-tiny", word)
    assert result.code == 2
    assert f"error[{code}]" in result.err


def test_a_size_that_no_machine_has_is_checked_without_being_allocated(cli: Cli) -> None:
    assert cli("check", "encoder-tiny", "dims.width=1000000", "dims.vocabulary=1000000", "dims.layers=1").code == 0


@pytest.mark.thorough
def test_checking_writes_no_file(cli: Cli) -> None:
    cli("check", "encoder-tiny")
    cli("check", "encoder-tiny", "attention=gqaa")
    assert list(Path().rglob("*")) == []


STUDY = "base: gpt-tiny\nvary: {attention: [mqa, mha], position: [rope]}\nmetric: {name: val/clm/loss}\n"


@pytest.mark.thorough
def test_all_variants_of_a_study_are_checked_and_listed(cli: Cli) -> None:
    Path("mine.yaml").write_text(STUDY)
    result = cli("check", "mine.yaml")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[:2] == ["# study mine: 3 variants, 15 trials", "baseline"]
    assert "excluded: attention=mha: the same spec as baseline" in result.out
    document = json.loads(cli("check", "mine.yaml", "--json").out)
    assert document["variants"] == ["baseline", "attention=mqa", "position=rope"]
    assert cli("check", "quickstart").out.startswith("# study quickstart: 5 variants, 50 trials\n")


def test_an_attention_that_supports_a_part_of_a_position_is_refused_beside_others(cli: Cli) -> None:
    words = ("attention=[mha, additive]", "position=rope", "--json")
    (problem,) = json.loads(cli("check", "gpt-tiny", *words).out)["problems"]
    assert (problem["code"], problem["path"]) == ("does-not-fit", "position")


def test_a_variant_that_reads_its_position_in_other_layers_is_a_warning(cli: Cli) -> None:
    study = STUDY.replace("gpt-tiny", "{preset: gpt-tiny, position: rope}").replace("position: [rope]", "seed: [1]")
    Path("mine.yaml").write_text(study.replace("mqa", "[gated-delta, mha]").replace(", seed: [1]", ""))
    warnings = json.loads(cli("check", "mine.yaml", "--json").out)["warnings"]
    assert [warning.endswith("than baseline: rope in layer 2 of 2 of the decoder") for warning in warnings] == [True]


def test_problems_of_a_study_are_reported_as_of_a_study(cli: Cli) -> None:
    Path("mine.yaml").write_text(STUDY.replace("mqa", "mqaa"))
    result = cli("check", "mine.yaml")
    assert result.code == 2
    assert "error[unknown-component] attention" in result.err
    assert '"mqa"' in result.err
    assert "dims" not in result.err
    Path("mine.yaml").write_text(STUDY)
    assert "error[overrides-not-allowed] norm=rmsnorm" in cli("check", "mine.yaml", "norm=rmsnorm").err


@pytest.mark.parametrize("verb", ["check", "run", "status"])
def test_every_command_for_studies_reports_all_problems_at_once(cli: Cli, verb: str) -> None:
    Path("mine.yaml").write_text(STUDY.replace("mqa", "mqaa").replace("metric:", "seeds: 0\nlogers: [csv]\nmetric:"))
    result = cli(verb, "mine.yaml")
    assert result.code == 2
    assert [line.partition(" ")[0] for line in result.err.splitlines()] == [
        "error[unknown-component]",
        "error[wrong-type]",
        "error[unknown-key]",
    ]
    assert not Path("runs").exists()


def test_a_study_without_a_base_is_checked_as_a_study(cli: Cli) -> None:
    Path("mine.yaml").write_text("\n".join(line for line in STUDY.splitlines() if not line.startswith("base")))
    assert "error[missing] base (mine.yaml:1)" in cli("check", "mine.yaml").err

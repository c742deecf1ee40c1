"""Variants that cannot be compared are refused before any trial runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

import paribus
from paribus.assembly.metric_names import metric_names
from paribus.cli.main import main
from paribus.errors import EXIT_SPEC, SpecError
from paribus.models.assemble import build_model, expected_vocabulary
from paribus.planning.comparability import kernel_versions
from paribus.registry import Registry
from paribus.specs.resolve import resolved

PRESETS = sorted(paribus.installed(no_plugins=True).index.presets)
TINY = [name for name in PRESETS if name.endswith("tiny")]
STUDY: dict[str, Any] = {
    "base": {"preset": "encoder-tiny", "dims.layers": 1, "objective": {"name": "mlm"}},
    "vary": {"attention": ["mqa"]},
    "seeds": 2,
    "budget": {"steps": 2},
    "metric": "val/mlm/loss",
}

# What is changed in the study, the code of the problem, a value in it.
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a metric that nothing has": (
        {"metric": "val/mlm/perplexity"},
        "unknown-metric",
        "val/mlm/loss, val/mlm/accuracy",
    ),
    "another objective's metric": (
        {"metric": "val/clm/loss"},
        "unknown-metric",
        "val/clm/loss",
    ),
    "a metric that one variant lacks": (
        {"vary": {"objective": [["mlm", "sop"]]}, "metric": "val/sop/loss", "base": "bert-tiny"},
        "unknown-metric",
        "val/sop/loss",
    ),
    "a loss beside an upper bound": (
        {"vary": {"objective": ["masked-diffusion"]}},
        "unknown-metric",
        "`val/masked-diffusion/bound` is an upper bound of a negative log-likelihood, which is not compared with",
    ),
    "other lengths": ({"vary": {"dims.length": [32]}}, "other-length", "dims.length=32"),
    "other tokenizers": ({"vary": {"tokenizer": ["wordpiece"]}}, "other-tokenizer", "tokenizer=wordpiece"),
    "other corpora": (
        {
            "vary": {
                "corpus": [
                    {"name": "text", "path": [str(Path(paribus.__file__).parents[2] / "docs" / "decisions" / "*.md")]}
                ]
            }
        },
        "other-corpus",
        "baseline",
    ),
    "other measures": (
        {"vary": {"objective": [["mlm", "sop"]]}, "base": "bert-tiny"},
        "other-objective",
        "objective=[mlm,sop]",
    ),
    "examples that are corrupted otherwise": (
        {"vary": {"objective.rate": [0.3]}},
        "other-validation",
        "objective.rate=0.3",
    ),
    "fewer evaluations than the metric averages": (
        {"metric": {"name": "val/mlm/loss", "last": 3}},
        "too-few-evaluations",
        "1 to 2",
    ),
    "a mean of a measure that runs at the end": (
        {"metric": {"name": "val/span/mean", "last": 2}, "measure": ["span"]},
        "too-few-evaluations",
        "val/span/mean",
    ),
    "fewer examples": ({"vary": {"data.validation": [8]}}, "other-validation", "data.validation=8"),
}


@pytest.mark.parametrize("name", TINY)
def test_the_metrics_of_a_spec_are_those_of_its_model(name: str, registry: Registry) -> None:
    spec = resolved(name, "dims.vocabulary=300", registry=registry)
    model = build_model(spec, registry, expected_vocabulary(spec, registry))
    likely = [f"val/{name}/" for name in model.evaluated if model.objective(name).traits.get("likelihood")]
    text = [f"{of}{name}" for of in likely for name in ("perplexity", "bits-per-byte")]
    assert metric_names(spec, registry, registry.index) == [*model.metrics(), *text]


@pytest.mark.parametrize(("changes", "code", "value"), REFUSED.values(), ids=list(REFUSED))
def test_variants_that_are_not_comparable_are_refused(changes: dict[str, Any], code: str, value: str) -> None:
    with raises_problem(SpecError, code, value):
        paribus.study({**STUDY, **changes})


@pytest.mark.parametrize(
    ("metric", "code"),
    [(None, "missing"), ("loss", "bad-name"), ({"margin": 1}, "missing")],
    ids=["none", "no name of a metric", "a margin only"],
)
def test_a_study_without_a_metric_gets_one_error_with_the_names(metric: Any, code: str) -> None:
    with raises_problem(SpecError, code, "metric.name") as caught:
        paribus.study({**STUDY, "metric": metric})
    (problem,) = caught.value.problems
    assert problem.valid.startswith("val/mlm/loss, val/mlm/accuracy")


@pytest.mark.thorough
def test_metrics_per_byte_are_comparable_across_tokenizers() -> None:
    study = {**STUDY, "base": "gpt-tiny", "vary": {"tokenizer": ["bpe"]}}
    assert paribus.study({**study, "metric": "val/clm/bits-per-byte"}).plan.trials
    lossy = {**study, "vary": {"tokenizer": ["wordpiece"]}, "metric": "val/clm/bits-per-byte"}
    with raises_problem(SpecError, "lossy-tokenizer", "wordpiece", "bytes"):
        paribus.study(lossy)
    with raises_problem(SpecError, "other-tokenizer", "val/clm/bits-per-byte"):
        paribus.study({**study, "metric": "val/clm/perplexity"})


@pytest.mark.parametrize("metric", ["val/mlm/loss", "val/mlm/accuracy"])
def test_every_measured_metric_may_be_the_metric(metric: str) -> None:
    assert paribus.study({**STUDY, "metric": {"name": metric, "better": "higher"}}).plan.trials


def test_variants_with_the_same_evaluation_may_train_differently() -> None:
    changed = {"base": "bert-tiny", "vary": {"objective": [["mlm", "sop"]]}, "evaluate": ["mlm"]}
    assert paribus.study({**STUDY, **changed}).plan.trials


@pytest.mark.parametrize(
    "changed",
    [
        {"vary": {"objective.transform": [False]}},  # another head, and the same examples
        {"vary": {"objective.rate": [0.3]}, "evaluate": ["mlm"]},
    ],
)
def test_the_options_of_an_objective_may_differ_where_its_validation_examples_do_not(changed: dict[str, Any]) -> None:
    assert paribus.study({**STUDY, **changed}).plan.trials


@pytest.mark.parametrize("flags", [[], ["--plan"]], ids=["run", "plan"])
def test_an_invalid_study_trains_nothing_and_names_the_location(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(
        "base: encoder-tiny\nvary:\n  attention: [mqa]\n  dims.length: [32]\nmetric: {name: val/mlm/perplexity}\n"
    )
    assert main(["run", "mine.yaml", *flags]) == EXIT_SPEC
    options = capsys.readouterr().err
    assert "error[unknown-metric] metric.name (mine.yaml:5" in options
    assert "error[other-length] dims.length=32 (mine.yaml:4" in options
    assert not Path("runs").exists()


@pytest.mark.thorough
def test_the_terms_of_a_loss_are_listed_without_torch() -> None:
    code = f"import paribus, sys\nassert paribus.study({STUDY!r}).plan.trials\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.thorough
def test_pretrainings_on_other_corpora_are_compared_where_all_read_the_same_tokens(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("\n\n".join(f"The {number}th molecule binds receptors." for number in range(60)))
    mine = {"name": "text", "path": [str(tmp_path / "mine.txt")], "documents": "paragraph"}
    base = {"preset": "encoder-tiny", "dims.layers": 1, "dims.vocabulary": 340, "data.validation": 16}
    stages: dict[str, Any] = {"pretrain": {}, "finetune": {"objective": "mlm"}}
    study = {**STUDY, "base": base, "vary": {"pretrain.corpus": [mine]}, "stages": stages}
    assert len(paribus.study(study).plan.trials) == 8
    study["base"] = {**base, "tokenizer": "bpe"}
    with raises_problem(SpecError, "other-validation", "baseline"):
        paribus.study(study)
    stages["finetune"]["from"] = {"name": "pretrain", "vocabulary": "new"}
    assert len(paribus.study(study).plan.trials) == 8


def test_trials_of_an_accelerator_with_other_kernels_of_recurrences_are_not_paired() -> None:
    def compared(device: str, fla: str | None) -> str:
        versions = {"torch": "2.13.0+cu130", **({"fla-core": fla} if fla else {})}
        return kernel_versions({"versions": versions, "machine": {"device": device}})

    assert len({compared("cuda", fla) for fla in (None, "0.6.0", "0.7.0")}) == 3
    assert {compared("cpu", fla) for fla in (None, "0.6.0", "0.7.0")} == {"2.13.0"}

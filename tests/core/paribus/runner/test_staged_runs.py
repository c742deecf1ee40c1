"""A study with stages, run: what a fine-tuning begins from, what is shared, and what is said of it all."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

import paribus
from paribus.planning.api import PlannedStudy
from paribus.registry import Registry
from paribus.runner.in_process import InProcessLauncher
from paribus.runner.jobs import RunOptions
from paribus.runner.progress import Event
from paribus.runner.scheduler import run_trials
from paribus.runner.signals import StopRequest
from paribus.runner.worker import WorkerRequest, run_request
from paribus.storage.atomic import canonical_json, read_json, write_json
from paribus.storage.saved_model import RECORD, WEIGHTS, read_model
from paribus.storage.store import Store, Trial

TEXT = "\n\n".join(f"The {number}th paragraph says {number * number} words of its own." for number in range(200))


@pytest.fixture(scope="module")
def registry() -> Registry:
    return paribus.installed()


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    corpus = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    corpus.write_text(TEXT)
    own = tmp_path_factory.mktemp("domain") / "domain.txt"
    own.write_text(TEXT.replace("paragraph", "molecule").replace("words", "receptors"))
    text = {"name": "text", "path": [str(corpus)], "documents": "paragraph"}
    return {
        "base": {
            "preset": "gpt-tiny",
            "dims": {"width": 16, "layers": 1, "heads": 2, "length": 16, "vocabulary": 330},
            "tokenizer": "bpe",
            "corpus": text,
            "data": {"batch": 4, "validation": 8},
        },
        "vary": {"attention": ["mqa"], "domain.optimizer.lr": [1e-4], "domain.from": [None]},
        "stages": {
            "pretrain": {"budget": {"steps": 3}},
            "domain": {"corpus": {**text, "path": [str(own)]}, "budget": {"steps": 2}},
        },
        "seeds": 2,
        "metric": "val/clm/loss",
    }


@pytest.fixture(scope="module")
def planned(document: dict[str, Any], registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> PlannedStudy:
    return paribus.study(document, registry=registry, store=tmp_path_factory.mktemp("runs"))


def run(planned: PlannedStudy, registry: Registry, store: Store | None = None) -> list[Event]:
    events: list[Event] = []
    launcher = InProcessLauncher(registry, StopRequest())
    options = RunOptions(rehearse=False)
    run_trials(planned.plan.trials, store or planned.store, launcher=launcher, options=options, on_event=events.append)
    return events


@pytest.fixture(scope="module")
def ran(planned: PlannedStudy, registry: Registry) -> PlannedStudy:
    run(planned, registry)
    return planned


def record(planned: PlannedStudy, trial: Trial) -> dict[str, Any]:
    result = planned.store.record(trial.identity)
    assert result is not None
    return result


def test_fine_tuning_starts_from_weights_and_vocabulary_of_its_pretraining(ran: PlannedStudy) -> None:
    for trial in ran.plan.trials_of("attention=mqa"):
        previous, after = ran.store.folder(trial.parent_id), record(ran, trial)["result"]
        assert after["from"]["sha256"] == read_model(previous).sha256
        assert len(after["from"]["kept"]) > 0
        assert (after["from"]["new"], after["from"]["dropped"]) == ({}, [])
        pretrained = read_json(previous / RECORD)["result"]
        assert after["data"]["tokenizer"] == pretrained["data"]["tokenizer"]
        assert after["data"]["corpus"] != pretrained["data"]["corpus"]
        assert after["total_flops"] == pretrained["training_flops"] + after["training_flops"]
        assert paribus.load(ran.store.folder(trial.identity)).tokenizer == after["data"]["tokenizer"]


def test_the_pretraining_ran_once_and_nothing_runs_again(ran: PlannedStudy, registry: Registry) -> None:
    assert len(ran.plan.trials) == 2 * (2 + 4)
    assert len(list(ran.store.records())) == 12
    assert run(ran, registry) == []


def test_the_table_compares_the_fine_tuned_models(ran: PlannedStudy) -> None:
    table = paribus.compare(ran)
    assert (table.stage, table.metric, len(table.rows)) == ("domain", "val/clm/loss", 3)
    assert all(certificate.ok for certificate in table.certificates.values())
    variants = ("attention=mqa", "domain.optimizer.lr=0.0001", "domain.from=null")
    assert {row.variant: row.n for row in table.rows} == dict.fromkeys(variants, 2)
    shared = table.certificates["domain.optimizer.lr=0.0001"]
    assert shared.equal_tensors == shared.total_tensors  # of one pretraining
    assert "k, v reshaped (in pretrain)" in table.certificates["attention=mqa"].side_effects
    rows = paribus.records(ran)
    assert {row["stage"] for row in rows} == {"pretrain", "domain"}


def test_a_variant_without_pretraining_has_its_tokenizer_and_initial_weights(ran: PlannedStudy) -> None:
    """GPT's "w/o pre-training": the batches are those of the others, and the costs are its own."""
    for trial in ran.plan.trials_of("domain.from=null"):
        assert trial.parent_id == ""
        result = record(ran, trial)["result"]
        (baseline,) = (other for other in ran.plan.trials_of("baseline") if other.seed == trial.seed)
        pretrained = record(ran, baseline)["result"]
        assert "from" not in result
        assert result["data"] == pretrained["data"]
        assert result["certificate"]["batches"] == pretrained["certificate"]["batches"]
        assert result["total_flops"] == result["training_flops"] < pretrained["total_flops"]
        tensors = result["certificate"]["tensors"]
        fresh = record(ran, next(it for it in ran.plan.trials_of("baseline", "pretrain") if it.seed == trial.seed))
        assert tensors == fresh["result"]["certificate"]["tensors"]
    table = paribus.compare(ran)
    assert any("loaded differently" in text for text in table.certificates["domain.from=null"].side_effects)
    assert any("but those of domain.from=null" in line for line in table.caption)


def test_a_planted_leak_in_the_pretraining_withholds_the_verdict(ran: PlannedStudy) -> None:
    pretrained = ran.plan.trials_of("attention=mqa", "pretrain")[0]
    path = ran.store.folder(pretrained.identity) / RECORD
    whole = read_json(path)
    tensors = whole["result"]["certificate"]["tensors"]
    leaked = {**tensors["embedding.tokens.weight"], "draws": "another"}
    certificate = {**whole["result"]["certificate"], "tensors": {**tensors, "embedding.tokens.weight": leaked}}
    write_json(path, {**whole, "result": {**whole["result"], "certificate": certificate}})
    try:
        row = next(row for row in paribus.compare(ran).rows if row.variant == "attention=mqa")
        assert (row.kind, row.verdict) == ("withheld", "withheld (leaked seed (in pretrain))")
    finally:
        write_json(path, whole)


@pytest.mark.thorough
def test_an_interruption_in_and_between_stages_changes_nothing(
    ran: PlannedStudy, document: dict[str, Any], registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = paribus.study(document, registry=registry, store=tmp_path)
    remaining = 4

    def interrupt_at_second_step(
        request: WorkerRequest, registry: Registry, *, stop: StopRequest, watch: Callable[[], None], **options: Any
    ) -> int:
        step = 0

        def count_steps() -> None:
            nonlocal step, remaining
            step += 1
            if step == 2 and remaining:
                remaining -= 1
                stop.request(signal.SIGTERM)
            watch()

        return run_request(request, registry, stop=stop, watch=count_steps, **options)

    monkeypatch.setattr("paribus.runner.in_process.run_request", interrupt_at_second_step)
    for _ in range(5):
        run(cut, registry)
    assert remaining == 0
    for trial in ran.plan.trials:
        assert canonical_json(record(cut, trial)["result"]) == canonical_json(record(ran, trial)["result"])


def test_a_stage_starts_from_the_trial_of_its_variant_and_seed(
    ran: PlannedStudy, registry: Registry, tmp_path: Path
) -> None:
    from paribus.train.trial import TrialContext, run_trial

    trial, other = ran.plan.trials_of("attention=mqa")
    spec = {**trial.spec, "from": {**trial.spec["from"], "name": str(ran.store.folder(other.parent_id))}}
    with raises_problem(paribus.StoreError, "other-trial", trial.parent_id):
        run_trial(spec, registry, TrialContext("x", tmp_path))
    assert (ran.store.folder(trial.parent_id) / WEIGHTS).is_file()

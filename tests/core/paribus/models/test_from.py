"""Trials that start from a saved model: reused tensors, the record, and the identity."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

import paribus
from paribus.analysis.certificates import certify
from paribus.analysis.trials import TrialEntry
from paribus.errors import StoreError
from paribus.evidence.digests import DIGEST_LENGTH, tensor_digest
from paribus.planning.identity import identity_of
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.storage.atomic import canonical_json
from paribus.train.trial import TrialContext, run_trial
from paribus.train.trial_callback import InterruptedTrialError
from paribus.train.trial_options import TrialOptions

TEXT = "\n\n".join(f"The {number}th paragraph says {number * number} words of its own." for number in range(200))

Run = Callable[..., TrialEntry]


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("trials")
    (place / "corpus.txt").write_text(TEXT)
    return place


@pytest.fixture(scope="module")
def base(folder: Path) -> dict[str, Any]:
    return {
        "preset": "gpt-tiny",
        "dims": {"width": 16, "layers": 1, "heads": 4, "length": 16},
        "corpus": {"name": "text", "path": [str(folder / "corpus.txt")], "documents": "paragraph"},
        "data": {"batch": 4, "validation": 8},
        "trainer": {"max_steps": 4},
    }


@pytest.fixture(scope="module")
def run(base: dict[str, Any], registry: Registry, folder: Path) -> Run:
    numbers = itertools.count()

    def run(varied: Mapping[str, Any], source: Path | None = None, variant: str = "variant") -> TrialEntry:
        place = folder / f"trial-{next(numbers)}"
        place.mkdir()
        trial_spec = {**base, **varied, **({} if source is None else {"from": str(source)})}
        spec = resolved(trial_spec, registry=registry)
        record = run_trial(spec, registry, TrialContext(identity=place.name, folder=place))
        trial = {"identity": place.name, "spec": spec, "changes": dict(varied), "code": "", "corpus": ""}
        return TrialEntry(variant=variant, seed=0, trial=trial, record=record, state="done")

    return run


@pytest.fixture(scope="module")
def saved(run: Run, folder: Path) -> Path:
    """Return the folder of a trial, which can be the start of another model."""
    return folder / str(run({}).trial["identity"])


def test_matching_tensors_are_reused_and_reported(run: Run, saved: Path) -> None:
    entry = run({"attention": {"name": "gqa", "kv_heads": 2}}, saved)
    transfer = entry.result["from"]
    assert len(transfer["converted"]) == 4
    assert transfer["new"] == {}
    saved_state = paribus.load(saved).state_dict()
    for path in transfer["kept"]:
        assert entry.certificate["tensors"][path]["value"] == tensor_digest(saved_state[path])[:DIGEST_LENGTH]
    loss = transfer["loss_changes"]["val/clm/loss"]
    assert loss["before"] == paribus.adapt(saved).report.loss_changes[0].before
    assert loss["before"] != loss["after"] != loss["fresh"]


@pytest.mark.thorough
def test_the_certificate_of_two_variants_lists_tensors_of_the_saved_model(run: Run, saved: Path) -> None:
    certificate = certify(run({}, saved, "baseline"), run({"attention": {"name": "gqa", "kv_heads": 2}}, saved))
    assert certificate.failures == ()
    assert certificate.equal_tensors == certificate.total_tensors - 4
    conversion = "k, v converted (4 heads averaged in groups of 2)"
    assert certificate.side_effects == ("k, v reshaped", conversion)
    assert certificate.confirmed == (
        f"{certificate.equal_tensors} tensors loaded from the saved model",
        "same batches",
        "outputs differ",
    )


@pytest.mark.thorough
def test_a_tensor_reused_by_one_variant_only_is_not_a_leak(run: Run, saved: Path) -> None:
    distances = {"position": {"name": "disentangled", "distance": 8}}  # a table of the same name and shape
    certificate = certify(run({}, saved, "baseline"), run(distances, saved))
    assert certificate.failures == ()
    assert certificate.tensors["loaded"] == ("body.position.0.table.weight",)
    assert any("table" in line and line.endswith("not in the saved model") for line in certificate.side_effects)
    entry = run({}, variant="baseline")
    warm_entry = run({"from": str(saved)})
    certificate = certify(entry, warm_entry)
    assert certificate.failures == ()
    assert certificate.tensors["loaded"]
    assert certificate.tensors["leaked"] == ()


@pytest.mark.thorough
def test_a_tensor_of_another_saved_model_is_a_leak(run: Run, saved: Path) -> None:
    other_folder = saved.parent / str(run({"seed": 1}).trial["identity"])
    variant = run({"attention": {"name": "gqa", "kv_heads": 2}}, other_folder)
    certificate = certify(run({}, saved, "baseline"), variant)
    assert "another difference" in certificate.reason


@pytest.mark.thorough
def test_an_interrupted_trial_has_the_same_result(
    base: dict[str, Any], saved: Path, registry: Registry, tmp_path: Path
) -> None:
    spec = resolved({**base, "attention": "mqa", "from": str(saved)}, registry=registry)
    results = []
    for name, stop_answers in (
        ("whole", itertools.repeat(False)),
        ("cut", itertools.cycle([False, True, False, False])),
    ):
        place = tmp_path / name
        place.mkdir()
        terms = TrialContext("trial", place, TrialOptions(checkpoint_steps=1), should_stop=stop_answers.__next__)
        try:
            record = run_trial(spec, registry, terms)
        except InterruptedTrialError:
            record = run_trial(spec, registry, TrialContext("trial", place))
        results.append(canonical_json(record["result"]))
    assert results[0] == results[1]


def test_the_identity_depends_on_the_saved_model_and_not_on_its_path(
    base: dict[str, Any], run: Run, saved: Path, registry: Registry, tmp_path: Path
) -> None:
    shutil.copytree(saved, tmp_path / "copy")
    other_folder = saved.parent / str(run({"seed": 2}).trial["identity"])

    def identity(source: Path) -> str:
        return identity_of(resolved({**base, "from": str(source)}, registry=registry), "code", "corpus")

    assert identity(saved) == identity(tmp_path / "copy")
    assert identity(saved) != identity(other_folder)
    assert identity(saved) != identity_of(resolved(base, registry=registry), "code", "corpus")


def test_a_warm_started_model_loads_without_its_source(run: Run, saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "copy")
    entry = run({"attention": "mqa"}, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy")
    model = paribus.load(saved.parent / str(entry.trial["identity"]))
    assert "from" not in model.spec
    assert model.spec["attention"]["name"] == "mqa"


def test_a_model_that_changed_after_resolution_is_rejected(
    base: dict[str, Any], run: Run, saved: Path, registry: Registry, tmp_path: Path
) -> None:
    shutil.copytree(saved, tmp_path / "copy")
    spec = resolved({**base, "from": str(tmp_path / "copy")}, registry=registry)
    shutil.rmtree(tmp_path / "copy")
    other_folder = saved.parent / str(run({"seed": 3}).trial["identity"])
    shutil.copytree(other_folder, tmp_path / "copy")
    with raises_problem(StoreError, "model-changed", "from"):
        run_trial(spec, registry, TrialContext("trial", tmp_path))


@pytest.mark.thorough
def test_a_record_has_the_flops_of_training_and_of_all_training(
    run: Run, saved: Path, registry: Registry, tmp_path: Path
) -> None:
    source_result, warm_result = run({}).result, run({"attention": "mqa"}, saved).result
    for result in (source_result, warm_result):
        examples = 4 * 4  # steps and batch
        assert result["training_flops"] == 3 * result["flops_per_token"] * 16 * examples
    assert source_result["total_flops"] == source_result["training_flops"]
    assert warm_result["total_flops"] == warm_result["training_flops"] + source_result["training_flops"]
    model = paribus.load(saved)
    assert model.flops == source_result["total_flops"]
    paribus.save(paribus.adapt(model, "attention=mqa").model, tmp_path / "adapted")
    assert paribus.load(tmp_path / "adapted").flops == source_result["total_flops"]
    model.on_fit_start()  # trained elsewhere
    paribus.save(model, tmp_path / "theirs")
    assert paribus.load(tmp_path / "theirs").flops is None
    assert "total_flops" not in run({}, tmp_path / "theirs").result

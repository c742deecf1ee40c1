"""Teachers: frozen, never saved with the model, moved with it, and run once per pass."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem

import paribus
from paribus.datamodule.data import Data
from paribus.errors import SpecError, StoreError
from paribus.models.lightning_module import Model
from paribus.planning.identity import identity_of
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.train.trial import TrialContext, run_trial

Assemble = Callable[..., Model]
Feed = Callable[..., Data]
Shake = Callable[[Model], Model]

ALL = "[{0}, {{name: distill-scores, weight: 2.5}}, {{name: distill-hidden, weight: 0.5}}]"
HASHED = "teacher={sha256: known}"


@pytest.fixture
def pair(assemble: Assemble, shake: Shake) -> tuple[Model, Model]:
    """Return a model and a deeper teacher."""
    teacher = shake(assemble("bert-tiny", "dims.layers=3", "objective=mlm"))
    model = assemble("bert-tiny", "objective=" + ALL.format("mlm"), HASHED).double()
    model.set_teacher(teacher)
    return model, teacher


def test_teacher_tensors_are_not_in_the_model(pair: tuple[Model, Model]) -> None:
    model, teacher = pair
    teacher_ids = {id(parameter) for parameter in teacher.parameters()}
    assert model.teacher is teacher
    assert not [name for name in model.state_dict() if "teacher" in name]
    assert not teacher_ids & {id(parameter) for parameter in model.parameters()}
    model.train()
    assert not teacher.training
    assert not any(parameter.requires_grad for parameter in teacher.parameters())


def test_a_teacher_moves_with_the_model(pair: tuple[Model, Model]) -> None:
    model, teacher = pair
    model.to(torch.float32)
    assert {parameter.dtype for parameter in teacher.parameters()} == {torch.float32}


def test_the_model_gets_gradients_and_the_teacher_none(pair: tuple[Model, Model], feed: Feed) -> None:
    model, teacher = pair
    original = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    batch = feed("bert-tiny", "objective=" + ALL.format("mlm"), HASHED).step(0)
    model.loss(batch).backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(torch.equal(tensor, original[name]) for name, tensor in teacher.state_dict().items())


def test_two_objectives_share_one_teacher_pass(pair: tuple[Model, Model], feed: Feed) -> None:
    model, teacher = pair
    calls: list[int] = []
    teacher.topology.get_submodule("body").register_forward_hook(lambda *_: calls.append(1))
    batch = feed("bert-tiny", "objective=" + ALL.format("mlm"), HASHED).step(0)
    with torch.no_grad():
        model.loss(batch)
    assert len(calls) == 1


def test_terms_are_weighted_and_added_to_the_others(pair: tuple[Model, Model], feed: Feed) -> None:
    model, _ = pair
    batch = feed("bert-tiny", "objective=" + ALL.format("mlm"), HASHED).step(0)
    with torch.no_grad():
        terms = model.terms(model.run(batch), model.trained)
        means = {name: float(term.total / term.count) for name, term in terms.items()}
        expected = means["mlm/loss"] + 2.5 * means["distill-scores/loss"] + 0.5 * means["distill-hidden/loss"]
        assert float(model.loss(batch)) == pytest.approx(expected, rel=1e-12)


def test_student_and_teacher_read_masked_tokens_for_any_order_of_objectives(
    pair: tuple[Model, Model], feed: Feed, assemble: Assemble
) -> None:
    batches = [
        feed("bert-tiny", f"objective={objectives}", HASHED).step(0)
        for objectives in ("[mlm, distill-hidden]", "[distill-hidden, mlm]")
    ]
    assert torch.equal(batches[0].streams["body"].tokens, batches[1].streams["body"].tokens)
    for objectives in ("clm, distill-hidden", "distill-hidden, clm"):
        batch = feed("gpt-tiny", f"objective=[{objectives}]", HASHED).step(0)
        assert batch.targets["distill-hidden"]["counted"].shape == batch.streams["body"].tokens.shape


def test_the_loss_of_a_model_with_itself_as_teacher_is_zero(assemble: Assemble, feed: Feed) -> None:
    words = ("objective=" + ALL.format("clm"), HASHED)
    model = assemble("gpt-tiny", *words).double().eval()
    model.set_teacher(assemble("gpt-tiny", "objective=clm").double())
    with torch.no_grad():
        terms = model.terms(model.run(feed("gpt-tiny", *words).step(0)), model.trained)
    assert all(abs(float(terms[f"{name}/loss"].total)) < 1e-9 for name in ("distill-scores", "distill-hidden"))


def test_layer_losses_of_a_model_with_itself_as_teacher_are_zero(assemble: Assemble, feed: Feed) -> None:
    hidden = "{name: distill-hidden, layers: [0, 1, -1], teacher_layers: [0, 1, -1]}"
    words = (f"objective=[clm, distill-relations, {hidden}]", HASHED)
    model = assemble("gpt-tiny", *words).double().eval()
    model.set_teacher(assemble("gpt-tiny", "objective=clm").double())
    with torch.no_grad():
        terms = model.terms(model.run(feed("gpt-tiny", *words).step(0)), model.trained)
    assert all(abs(float(terms[f"{name}/loss"].total)) < 1e-9 for name in ("distill-relations", "distill-hidden"))


def test_only_the_distilled_tensors_of_a_teacher_are_captured(
    pair: tuple[Model, Model], feed: Feed, assemble: Assemble
) -> None:
    words = ("objective=[mlm, {name: distill-relations, layer: 1, teacher_layer: 3}]", HASHED)
    model = assemble("bert-tiny", *words).double()
    model.set_teacher(pair[1])
    run = model.run(feed("bert-tiny", *words).step(0))
    with torch.no_grad():
        model.terms(run, model.trained)
    assert run.teacher is not None
    assert [set(layer) for layer in run.teacher.output("body").captured] == [set(), set(), {"q", "k", "v"}]
    model = assemble("bert-tiny", words[0].replace("teacher_layer: 3", "teacher_layer: 4"), HASHED).double()
    model.set_teacher(pair[1])
    with raises_problem(SpecError, "unknown-layer", "objective"):
        model.loss(feed("bert-tiny", *words).step(0))


def test_a_teacher_with_another_vocabulary_of_equal_size_is_rejected(
    base: dict[str, Any], registry: Registry, tmp_path: Path
) -> None:
    learned = {**base, "tokenizer": "bpe", "dims": {**base["dims"], "vocabulary": 310}}
    (tmp_path / "other.txt").write_text("\n\n".join(f"Quite unlike the others: {n} zebras." for n in range(200)))
    other_spec = {**learned, "corpus": {**base["corpus"], "path": [str(tmp_path / "other.txt")]}}
    other_teacher = paribus.assemble(other_spec, registry=registry)
    assert other_teacher.spec["dims"]["vocabulary"] == 310
    paribus.save(other_teacher, tmp_path / "teacher")
    taught = {**learned, "objective": ["clm", "distill-scores"], "teacher": str(tmp_path / "teacher")}
    with raises_problem(SpecError, "other-tokenizer", "tokenizer"):
        paribus.assemble(taught, registry=registry)


def test_a_missing_head_of_student_or_teacher_is_reported(
    pair: tuple[Model, Model], feed: Feed, assemble: Assemble
) -> None:
    words = ("objective=[mlm, {name: distill-scores, objective: sop}]", HASHED)
    model = assemble("bert-tiny", *words).double()
    model.set_teacher(pair[1])
    with raises_problem(SpecError, "unknown-head", "sop"):
        model.loss(feed("bert-tiny", *words).step(0))


def test_a_teacher_without_a_folder_is_rejected(assemble: Assemble, feed: Feed) -> None:
    words = ("objective=[clm, distill-hidden]", HASHED)
    with raises_problem(SpecError, "missing-teacher", "teacher"):
        assemble("gpt-tiny", *words).loss(feed("gpt-tiny", *words).step(0))


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


@pytest.fixture
def base(tmp_path: Path) -> dict[str, Any]:
    text = "\n\n".join(f"The {number}th paragraph says {number * number} words of its own." for number in range(200))
    (tmp_path / "corpus.txt").write_text(text)
    return {
        "preset": "gpt-tiny",
        "dims": {"width": 16, "layers": 1, "heads": 4, "length": 16},
        "corpus": {"name": "text", "path": [str(tmp_path / "corpus.txt")], "documents": "paragraph"},
        "data": {"batch": 4, "validation": 8},
        "trainer": {"max_steps": 3},
    }


@pytest.fixture
def taught(base: dict[str, Any], tmp_path: Path, registry: Registry) -> dict[str, Any]:
    paribus.save(paribus.assemble({**base, "dims.layers": 2}, registry=registry), tmp_path / "teacher")
    return {**base, "objective": ["clm", "distill-scores", "distill-hidden"], "teacher": str(tmp_path / "teacher")}


@pytest.mark.thorough
def test_a_distilled_trial_loads_without_its_teacher(
    taught: dict[str, Any], registry: Registry, tmp_path: Path
) -> None:
    spec = resolved(taught, registry=registry)
    (tmp_path / "trial").mkdir()
    record = run_trial(spec, registry, TrialContext("trial", tmp_path / "trial"))
    assert {"val/clm/loss", "val/distill-scores/loss", "val/distill-hidden/loss"} <= record["result"]["metrics"].keys()
    assert "val/distill-scores/loss" not in record["result"]["unigram_baseline"]
    alone = paribus.assemble({**taught, "teacher": None, "objective": "clm"}, registry=registry)
    assert record["result"]["parameters"] == sum(item.numel() for item in alone.parameters())
    shutil.rmtree(tmp_path / "teacher")
    model = paribus.load(tmp_path / "trial")
    assert model.teacher is None
    assert model.spec["teacher"] == {"sha256": spec["teacher"]["sha256"]}
    adapted = paribus.adapt(model, "attention=mqa")
    assert [item.name for item in adapted.report.loss_changes][:2] == ["val/clm/loss", "val/clm/accuracy"]
    with raises_problem(StoreError, "missing-record", "teacher"):
        paribus.assemble(model.spec, registry=registry)


def test_the_identity_depends_on_the_teachers_weights_and_not_its_folder(
    taught: dict[str, Any], base: dict[str, Any], registry: Registry, tmp_path: Path
) -> None:
    shutil.copytree(tmp_path / "teacher", tmp_path / "copy")
    paribus.save(paribus.assemble({**base, "seed": 1}, registry=registry), tmp_path / "other")

    def identity(folder: str) -> str:
        return identity_of(resolved({**taught, "teacher": str(tmp_path / folder)}, registry=registry), "", "")

    assert identity("teacher") == identity("copy") != identity("other")


def test_the_rules_between_a_spec_and_its_teacher(
    taught: dict[str, Any], base: dict[str, Any], registry: Registry
) -> None:
    with raises_problem(SpecError, "does-not-fit", "distill-scores"):
        resolved({**taught, "teacher": None}, registry=registry)
    with raises_problem(SpecError, "unused-option", "teacher"):
        resolved({**taught, "objective": "clm"}, registry=registry)
    with raises_problem(SpecError, "other-tokenizer", "tokenizer", "bytes", "bpe"):
        resolved({**taught, "tokenizer": "bpe", "dims.vocabulary": 400}, registry=registry)


def test_a_teacher_with_stacks_without_input_is_rejected(
    taught: dict[str, Any], base: dict[str, Any], registry: Registry, tmp_path: Path
) -> None:
    both = {**base, "preset": "seq2seq-tiny", "tokenizer": "bytes"}
    paribus.save(paribus.assemble(both, registry=registry), tmp_path / "both")
    with raises_problem(SpecError, "does-not-fit", "teacher", "encoder-decoder"):
        resolved({**taught, "teacher": str(tmp_path / "both")}, registry=registry)

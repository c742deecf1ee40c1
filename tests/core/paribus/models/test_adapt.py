"""`paribus.adapt`: convert a saved model to another architecture and measure the loss change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.fixtures.problems import raises_problem

import paribus
from paribus.errors import ParibusError, SpecError, StoreError
from paribus.models.checkpoint import save_weights
from paribus.models.lightning_module import Model
from paribus.models.tensor_file import read_tensors, write_tensors
from paribus.storage.saved_model import MODEL, WEIGHTS

TINY = ("dims={width: 12, heads: 4, head_width: 4, layers: 2, length: 16}", "data.validation=16")


def tiny(preset: str, *overrides: str) -> Model:
    """Return a model whose weights differ from the initial weights of its seed."""
    model = paribus.assemble(paribus.spec(preset, *TINY, *overrides))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.sin(torch.arange(parameter.numel()) * 0.7).view_as(parameter), alpha=0.05)
    return model


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "gpt"
    paribus.save(tiny("gpt-tiny"), folder)
    return folder


@pytest.mark.thorough
def test_an_equivalent_conversion_does_not_change_the_loss(gpt: Path) -> None:
    model, report = paribus.adapt(gpt, "attention={name: gqa, kv_heads: 4}")
    assert model.spec["attention"]["name"] == "gqa"
    loss = report.loss_changes[0]
    assert loss.name == "val/clm/loss"
    assert loss.before == loss.after != loss.fresh
    assert len(report.tensors.of("kept")) == len(dict(model.named_parameters()))


@pytest.mark.thorough
def test_a_converted_model_is_compared_with_the_original_and_an_untrained_model(gpt: Path) -> None:
    model, report = paribus.adapt(gpt, "attention=gqa", "attention.kv_heads=2")
    fresh = paribus.assemble(model.spec)
    same = paribus.adapt(fresh)
    loss = report.loss_changes[0]
    assert loss.before is not None
    assert loss.before != loss.after
    assert loss.fresh == same.report.loss_changes[0].after
    change = loss.after - loss.before
    expected = f"{loss.before:.3f} -> {loss.after:.3f} ({change:+.3f}); from scratch {loss.fresh:.3f}"
    assert str(loss) == f"val/clm/loss {expected}"
    assert report.to_json()["converted"].keys() == {fate.path for fate in report.tensors.of("converted")}


@pytest.mark.thorough
def test_adapting_does_not_change_the_source(gpt: Path) -> None:
    source = paribus.load(gpt)
    original = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    adapted, _ = paribus.adapt(source, "attention=mqa")
    with torch.no_grad():
        for parameter in adapted.parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, original[name]) for name, tensor in source.state_dict().items())


@pytest.mark.thorough
def test_an_adapted_model_can_be_saved_and_adapted_again(gpt: Path, tmp_path: Path) -> None:
    model, _ = paribus.adapt(gpt, "attention=mqa")
    paribus.save(model, tmp_path / "mqa")
    adapted, report = paribus.adapt(tmp_path / "mqa")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), adapted.parameters(), strict=True))
    assert report.notes == ()


@pytest.mark.thorough
def test_models_are_compared_on_lengths_that_both_support(gpt: Path) -> None:
    _, report = paribus.adapt(tiny("gpt-tiny", "position=learned"), "dims.length=24")
    assert report.loss_changes[0].before == report.loss_changes[0].after
    assert [fate.how for fate in report.tensors.of("converted")] == ["the first 16 of 16 rows kept, 8 new"]


def test_a_new_objective_has_no_metrics_of_the_saved_model(gpt: Path) -> None:
    _, report = paribus.adapt(gpt, "topology=encoder", "objective=mlm")
    assert {change.name: change.before for change in report.loss_changes}["val/mlm/loss"] is None
    assert str(report.loss_changes[0]).startswith("val/mlm/loss ")
    assert "->" not in str(report.loss_changes[0])


def test_another_tokenizer_is_rejected(gpt: Path) -> None:
    with raises_problem(SpecError, "other-tokenizer", "tokenizer", "bytes"):
        paribus.adapt(gpt, "tokenizer={name: bpe}", "dims.vocabulary=400")


@pytest.mark.thorough
def test_an_invalid_override_is_reported_as_in_any_spec(gpt: Path) -> None:
    with raises_problem(SpecError, "out-of-range", "kv_heads"):
        paribus.adapt(gpt, "attention=gqa", "attention.kv_heads=3")


Break = Callable[[dict[str, torch.Tensor]], object]


@pytest.mark.parametrize(
    ("damage", "code", "values"),
    [
        (lambda t: t.pop("body.norm.weight"), "does-not-fit", ("body.norm.weight",)),
        (lambda t: t.update(stray=torch.zeros(1)), "does-not-fit", ("stray",)),
        (
            lambda t: t.update({"body.norm.weight": torch.ones(13)}),
            "does-not-fit",
            ("body.norm.weight", "[13]"),
        ),
        (lambda t: t["body.norm.weight"].fill_(float("nan")), "not-finite", ("body.norm.weight",)),
    ],
)
def test_unexpected_tensors_are_reported(
    gpt: Path, tmp_path: Path, damage: Break, code: str, values: tuple[str, ...]
) -> None:
    tensors, document = read_tensors(gpt / WEIGHTS)
    damage(tensors)
    (tmp_path / MODEL).write_bytes((gpt / MODEL).read_bytes())
    write_tensors(tmp_path / WEIGHTS, tensors, document)
    with raises_problem(StoreError, code, *values):
        paribus.adapt(tmp_path, "attention=mqa")


def test_different_ties_are_reported(gpt: Path, tmp_path: Path) -> None:
    (tmp_path / MODEL).write_bytes((gpt / MODEL).read_bytes())
    save_weights(tmp_path / WEIGHTS, tiny("gpt-tiny", "dims.groups=1"), {})
    with raises_problem(StoreError, "does-not-fit", "body.layers.1.attention.heads.k.bias", "not tied"):
        paribus.adapt(tmp_path)


def test_a_flipped_bit_is_detected(gpt: Path, tmp_path: Path) -> None:
    (tmp_path / MODEL).write_bytes((gpt / MODEL).read_bytes())
    data = bytearray((gpt / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (tmp_path / WEIGHTS).write_bytes(data)
    with raises_problem(ParibusError, "damaged", "weights.safetensors", "hash"):
        paribus.adapt(tmp_path)

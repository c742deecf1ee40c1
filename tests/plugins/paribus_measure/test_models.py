"""Measures of whole models with known values."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem

import paribus
from paribus import Draw, Registry, SpecError
from paribus.models.assemble import longer_examples
from paribus_measure.induction_score import InductionScore
from paribus_measure.length_extrapolation import LengthExtrapolation
from paribus_measure.position_sensitivity import PositionSensitivity
from paribus_probe.associative_recall import AssociativeRecall
from paribus_probe.copy import Copy

TINY = (
    "dims.width=16", "dims.layers=1", "dims.heads=2", "dims.length=36", "data.batch=8", "data.validation=20",
    "tokenizer=symbols", "objective={name: completion, separator: false}", "corpus.examples=64", "corpus.held_out=20",
)  # fmt: skip
DRAW = Draw(0, 0, torch.arange(4))
Values = dict[str, Any]
MeasureModel = Callable[..., Values]


@pytest.fixture(scope="module")
def registry() -> Registry:
    offers: Any = {
        "corpus": {"probed": Copy, "recalled": AssociativeRecall},
        "measure": {"longer": LengthExtrapolation, "placed": PositionSensitivity, "induced": InductionScore},
    }
    return paribus.installed().with_components(**offers)


@pytest.fixture(scope="module")
def measure_model(registry: Registry) -> MeasureModel:
    """Measure an untrained model with perturbed parameters."""

    def measure_model(measure: str, *overrides: str, uniform: bool = False) -> Values:
        spec = paribus.spec("gpt-tiny", "corpus=probed", *TINY, f"measure=[{measure}]", *overrides, registry=registry)
        model = paribus.assemble(spec, registry=registry)
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                generator = torch.Generator().manual_seed(len(path))
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
                if uniform and "heads.q" in path:
                    parameter.zero_()
        values = paribus.measure(model, paribus.data(spec, registry=registry), registry=registry)
        return {**values.metrics, **values.unmeasured}

    return measure_model


def test_without_positions_neither_shift_nor_shuffle_changes_an_output(measure_model: MeasureModel) -> None:
    values = measure_model("placed", "position=none")
    assert values == pytest.approx({"val/placed/shifted": 0.0, "val/placed/shuffled": 0.0}, abs=1e-6)


@pytest.mark.parametrize("position", ["rope", "alibi"])
def test_relative_positions_ignore_shifts_but_not_shuffles(position: str, measure_model: MeasureModel) -> None:
    values = measure_model("placed", f"position={position}")
    assert values["val/placed/shifted"] < 1e-4
    assert 0.001 < values["val/placed/shuffled"] <= 1


def test_a_position_table_changes_under_shift_and_shuffle(measure_model: MeasureModel) -> None:
    values = measure_model("placed", "position=learned")
    assert all(0.01 < value <= 1 for value in values.values())


def test_equal_weights_have_the_induction_score_of_an_average(measure_model: MeasureModel) -> None:
    values = measure_model("{name: induced, tokens: 6}", uniform=True)
    average = sum(1 / rows for rows in range(7, 12)) / 5
    assert values["val/induced/score"] == pytest.approx(average, rel=1e-5)
    assert values["val/induced/mean"] == pytest.approx(average, rel=1e-5)


def test_longer_questions_equal_those_of_the_corpus(measure_model: MeasureModel, registry: Registry) -> None:
    values = measure_model("{name: longer, times: [2, 3]}", "position=rope")
    names = {f"val/longer/completion.{name}.x{times}" for name in ("loss", "accuracy", "exact") for times in (2, 3)}
    assert values.keys() == names
    assert all(math.isfinite(value) for value in values.values())
    spec = paribus.spec("gpt-tiny", "corpus=probed", *TINY, "measure=longer", registry=registry)
    data = paribus.data(spec, registry=registry)
    tokens = longer_examples(spec, registry, data, 3).batch(DRAW).streams["body"].tokens
    decoded = [data.encoded.tokenizer.decode(row.tolist()) for row in tokens]
    questions = [
        document.text for document, _ in zip(Copy(examples=64, held_out=20).longer_documents(3), range(4), strict=False)
    ]
    assert [text.split(" > ")[0] + " >" for text in decoded] == questions


def test_the_end_of_a_position_table_is_in_the_record(measure_model: MeasureModel, registry: Registry) -> None:
    values = measure_model("{name: longer, times: [2]}", "position=learned")
    assert set(values.values()) == {"the model has 36 positions, fewer than 72"}
    values = measure_model("{name: longer, times: [2]}", "position={name: learned, length: 72}")
    assert all(isinstance(value, float) for value in values.values())


def test_lengths_beyond_a_position_table_are_refused_before_the_run(registry: Registry, tmp_path: Any) -> None:
    sizes = {
        key: int(value) for key, value in (override.split("=") for override in TINY if override.startswith("dims"))
    }
    base = {"preset": "gpt-tiny", "position": "rope", **sizes}
    study = {"base": base, "vary": {"position": ["learned", "alibi"]}, "seeds": 2, "measure": ["longer"]}
    study |= {"metric": "val/longer/clm.loss.x2", "budget": {"steps": 2}}
    with raises_problem(SpecError, "unknown-metric", "position=learned", "val/longer/clm.loss.x2"):
        paribus.study(study, registry=registry, store=tmp_path)


def test_more_pairs_than_keys_give_a_reason_for_no_number(measure_model: MeasureModel) -> None:
    recalled = ("corpus=recalled", "corpus.keys=8", "corpus.examples=64", "corpus.held_out=20", "objective.marks=true")
    values = measure_model("{name: longer, times: [2]}", *recalled, "position=rope")
    assert set(values.values()) == {"16 pairs need 16 different keys, got 8"}

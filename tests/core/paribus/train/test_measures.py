"""Measures in a trial: their inputs, their results in the record, and their validation."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, final

import pytest
import torch
from tests.fixtures.problems import raises_problem

import paribus
from paribus import EvaluatedModel, Example, GeneratedPair, Measure, MeasureTraits, Problem, Range, SpecError, TrialInfo
from paribus.assembly.metric_names import metric_names
from paribus.models.evaluate import evaluate
from paribus.models.lightning_module import Model
from paribus.registry import Registry
from paribus.specs import resolved
from paribus.specs.components import components_of
from paribus.train import measures as module
from paribus.train.measures import MeasuredModel, MeasureRunner, measured_model
from paribus.train.trial import TrialContext, run_trial

Assemble = Callable[..., Model]
Feed = Callable[..., Any]
TINY = (
    "dims.width=16", "dims.layers=1", "dims.heads=2", "dims.length=16", "data.batch=4", "data.validation=12",
    "trainer.max_steps=8", "trainer.accelerator=cpu",
)  # fmt: skip


@final
class Nine(Measure):
    """Measure that returns nine, and the last step."""

    traits: ClassVar[MeasureTraits] = {"every_evaluation": True}

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return ("is", "step")

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        return {"is": 9.0, "step": model.learning_curve[-1]["step"]}


@final
class Late(Measure):
    """Measure at the end that returns the result of another measure."""

    def __init__(self, *, minimum: Annotated[int, "of it", Range(0), Example(1)]) -> None:
        self.minimum = minimum

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return ("again", "never", "nan")

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        metric = model.learning_curve[-1]["val/nine/is"]
        return {"again": max(metric, self.minimum), "never": "nobody knows", "nan": float("nan")}


@final
class Weighing(Measure):
    """Measure of the largest weight."""

    traits: ClassVar[MeasureTraits] = {"needs": ["weights", "normalized"]}

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return ("largest",)

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        return {
            "largest": max(float(layer.max()) for batch in model.batches(4) for layer in model.attention_weights(batch))
        }


@final
class Inventing(Measure):
    """Measure of the logits of random tokens."""

    traits: ClassVar[MeasureTraits] = {"own_tokens": True, "visibility": "past"}

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return ("widest",)

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        tokens = model.draw(3).below("tokens", model.vocabulary.size, 5)
        return {"widest": float(model.logits(model.token_batch(tokens)).shape[-1])}


@final
class Pairing(Measure):
    """Measure of the number of generated pairs, whose names need an optional library."""

    traits: ClassVar[MeasureTraits] = {"needs": ["pairs"]}

    def __init__(self, *, library: Annotated[bool, "whether it is there"] = True) -> None:
        self.library = library

    def names(self, trial: TrialInfo) -> Sequence[str]:
        if not self.library:
            raise SpecError(Problem(code="not-installed", message="there is no library", valid="another"))
        return ("pairs",)

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        try:
            return {"pairs": float(len(model.generate(3, beam=2)))}
        except SpecError as error:
            return {"pairs": error.problems[0].message}


def ask(model: Model, data: Any, registry: Registry) -> MeasuredModel:
    return measured_model(model.spec, registry, model, data)


@final
class Showing(Measure):
    """Measure that reads tokens of its own and returns a constant."""

    traits: ClassVar[MeasureTraits] = {"own_tokens": True}

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return ("tokens",)

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        return {"tokens": 5.0}


@final
class Exhausting(Measure):
    """Measure that needs more memory than there is."""

    def names(self, trial: TrialInfo) -> Sequence[str]:
        return ("first", "second")

    def measure(self, model: EvaluatedModel) -> Mapping[str, float | str]:
        raise torch.OutOfMemoryError("CUDA out of memory.")


@pytest.fixture(scope="module")
def registry(components: Registry) -> Registry:
    return components.with_components(
        measure={
            "nine": Nine,
            "late": Late,
            "weighing": Weighing,
            "inventing": Inventing,
            "showing": Showing,
            "pairing": Pairing,
            "exhausting": Exhausting,
        }
    )


@pytest.fixture(scope="module")
def record(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    spec = resolved("gpt-tiny", *TINY, "measure=[nine, {name: late, minimum: 3}]", registry=registry)
    return run_trial(spec, registry, TrialContext("a", tmp_path_factory.mktemp("trial")))


def test_results_of_measures_are_stored_with_the_metrics_of_objectives(record: dict[str, Any]) -> None:
    metrics = record["result"]["metrics"]
    assert (metrics["val/nine/is"], metrics["val/nine/step"], metrics["val/late/again"]) == (9.0, 8.0, 9.0)
    assert "val/clm/loss" in metrics


def test_measures_of_every_evaluation_have_a_curve_and_others_a_final_value(record: dict[str, Any]) -> None:
    curve = record["result"]["curve"]
    assert [point["val/nine/step"] for point in curve] == [2, 4, 6, 8]
    assert ["val/late/again" in point for point in curve] == [False, False, False, True]


@pytest.mark.thorough
def test_a_curve_has_the_configured_number_of_points(registry: Registry, tmp_path: Path) -> None:
    spec = resolved("gpt-tiny", *TINY, "data.evaluations=3", "measure=nine", registry=registry)
    result = run_trial(spec, registry, TrialContext("b", tmp_path))["result"]
    assert [point["step"] for point in result["curve"]] == [3, 6, 8]
    frequent = resolved("gpt-tiny", *TINY, "data.evaluations=100", "trainer.max_steps=2", registry=registry)
    (tmp_path / "more").mkdir()
    curve = run_trial(frequent, registry, TrialContext("c", tmp_path / "more"))["result"]["curve"]
    assert [point["step"] for point in curve] == [1, 2]


def test_a_missing_result_has_a_reason(record: dict[str, Any]) -> None:
    assert record["result"]["unmeasured"] == {"val/late/never": "nobody knows", "val/late/nan": "it is nan"}
    assert not {"val/late/never", "val/late/nan"} & set(record["result"]["metrics"])


def test_a_measure_without_memory_loses_its_results_and_not_the_trial(registry: Registry, tmp_path: Path) -> None:
    spec = resolved("gpt-tiny", *TINY, "measure=[exhausting, nine]", registry=registry)
    result = run_trial(spec, registry, TrialContext("a", tmp_path))["result"]
    reasons = {key: "memory" in reason for key, reason in result["unmeasured"].items()}
    assert reasons == {"val/exhausting/first": True, "val/exhausting/second": True}
    assert result["metrics"]["val/nine/is"] == 9.0


def test_attention_weights_of_a_batch_bound_its_rows(
    assemble: Assemble, feed: Feed, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*TINY, "dims.layers=3")
    measured = ask(assemble("gpt-tiny", *words), feed("gpt-tiny", *words), registry)
    assert [len(batch.index) for batch in measured.batches(10)] == [4, 4, 2]
    row = 3 * 2 * 16 * 16 * 4  # bytes: layers, heads, queries, keys, float32
    monkeypatch.setattr(module, "MAX_WEIGHTS", 3 * row + 1)
    batches = list(measured.batches(10))
    assert [len(batch.index) for batch in batches] == [3, 3, 3, 1]
    assert sum(weights.nbytes for weights in measured.attention_weights(batches[0])) == 3 * row
    monkeypatch.setattr(module, "MAX_WEIGHTS", 1)
    assert [len(batch.index) for batch in measured.batches(2)] == [1, 1]


PAIRS = (*TINY, "dims.length=32", "trainer.max_steps=1", "corpus={name: dates, pairs: 40, held_out: 8}")


@pytest.mark.thorough
def test_text_generation_needs_a_decoder(registry: Registry, tmp_path: Path) -> None:
    measured_model: dict[str, Any] = {}

    def writer(model: Model, text: Any, examples: int, **manner: Any) -> list[GeneratedPair]:
        measured_model.update(manner, examples=examples, training=model.training)
        return [GeneratedPair("one", "eins", "zwei")] * examples

    spec = resolved("transformer-tiny", *PAIRS, "measure=pairing", registry=registry)
    (tmp_path / "b").mkdir()
    result = run_trial(spec, registry, TrialContext("a", tmp_path, writer=writer))["result"]
    assert result["metrics"]["val/pairing/pairs"] == 3
    assert measured_model == {"beam": 2, "length_penalty": 0.0, "tokens": None, "examples": 3, "training": False}
    result = run_trial(spec, registry, TrialContext("b", tmp_path / "b"))["result"]
    assert result["unmeasured"] == {"val/pairing/pairs": "text generation is not available here"}


def test_unmet_needs_of_a_measure_are_reported_before_the_first_step(registry: Registry, tmp_path: Path) -> None:
    spec = resolved("transformer-tiny", *PAIRS, "measure={name: pairing, library: false}", registry=registry)
    steps: list[int] = []
    with raises_problem(SpecError, "not-installed", "library"):
        run_trial(spec, registry, TrialContext("a", tmp_path, on_step=lambda step, loss: steps.append(step)))
    assert not steps


def test_metric_names_of_a_spec_are_known_before_training(registry: Registry) -> None:
    spec = paribus.spec("gpt-tiny", *TINY, "measure=[nine, weighing]", registry=registry)
    names = metric_names(spec, registry, registry.index)
    objective_metrics = ["val/clm/loss", "val/clm/accuracy", "val/clm/perplexity", "val/clm/bits-per-byte"]
    assert names == [*objective_metrics, "val/nine/is", "val/nine/step", "val/weighing/largest"]


def test_a_study_can_use_a_measure_as_its_metric(registry: Registry, tmp_path: Path) -> None:
    sizes = (option.split("=") for option in TINY if not option.startswith("trainer"))
    base = {"preset": "gpt-tiny", **{key: int(value) for key, value in sizes}}
    study: dict[str, Any] = {"base": base, "vary": {"attention": ["mqa"]}, "seeds": 2, "budget": {"steps": 2}}
    study |= {"measure": ["nine"], "metric": {"name": "val/nine/is", "better": "higher"}}
    planned = paribus.study(study, registry=registry, store=tmp_path)
    assert all(trial.spec["measure"] == [{"name": "nine"}] for trial in planned.plan.trials)
    with raises_problem(SpecError, "unknown-metric", "val/clm/loss", "val/nine/if", "val/nine/is"):
        paribus.study({**study, "metric": "val/nine/if"}, registry=registry, store=tmp_path)
    study |= {"vary": {"measure": [["nine", {"name": "late", "minimum": 2}]]}}
    with raises_problem(SpecError, "other-objective", "`evaluate:"):
        paribus.study(study, registry=registry, store=tmp_path)


def test_a_measure_is_part_of_the_identity_of_a_trial(registry: Registry) -> None:
    spec = resolved("gpt-tiny", "measure=nine", registry=registry)
    assert ("measure", "nine") in set(components_of(spec, registry.index))
    assert "measure" not in paribus.spec("gpt-tiny", registry=registry)


@pytest.mark.parametrize(
    ("preset", "overrides", "code", "values"),
    [
        ("gpt-tiny", ["measure=[nine, nine]"], "duplicate-item", ("measure", "nine")),
        ("gpt-tiny", ["measure=late"], "missing", ("measure.0.minimum", "minimum")),
        (
            "encoder-tiny",
            ["attention=fourier", "position=none", "measure=weighing"],
            "does-not-fit",
            ("weighing", "attention", "fourier", "mha"),
        ),
        (
            "gpt-tiny",
            ["measure=pairing"],
            "does-not-fit",
            ("pairing", "pairs", "corpus", "python-docs"),
        ),
        (
            "gpt-tiny",
            ["attention=[talking-heads, mha]", "measure=weighing"],
            "does-not-fit",
            ("1", "talking-heads"),
        ),
        (
            "encoder-tiny",
            ["measure=inventing"],
            "does-not-fit",
            ("inventing", "encoder", "topology"),
        ),
        (
            "vit-tiny",
            ["measure=showing"],
            "does-not-fit",
            ("showing", "patches"),
        ),
        (
            "seq2seq-tiny",
            ["measure=inventing"],
            "does-not-fit",
            ("inventing",),
        ),
    ],
)
def test_measures_that_a_model_cannot_support_are_rejected(
    preset: str, overrides: list[str], code: str, values: tuple[str, ...], registry: Registry
) -> None:
    with raises_problem(SpecError, code, *values):
        paribus.spec(preset, *overrides, registry=registry)


def test_layers_without_attention_weights_can_be_mixed_with_others(
    registry: Registry, assemble: Assemble, feed: Feed
) -> None:
    overrides = ("attention=[mha, lstm]", "position=none", "measure=weighing")
    model = assemble("gpt-tiny", *overrides, registry=registry)
    subject = ask(model, feed("gpt-tiny"), registry)
    (batch,) = subject.batches(8)
    assert [tuple(layer.shape) for layer in subject.attention_weights(batch)] == [(8, 4, 16, 16)]


def test_longer_examples_have_more_of_the_same_text(assemble: Assemble, feed: Feed, components: Registry) -> None:
    data = feed("gpt-tiny")
    model = ask(assemble("gpt-tiny", "position=rope"), data, components)
    (short,), (long,) = (list(model.batches(4, times=times)) for times in (1, 2))
    assert long.streams["body"].tokens.shape == (4, 32)
    assert torch.equal(long.streams["body"].tokens[0, :16], short.streams["body"].tokens[0])
    assert torch.equal(short.streams["body"].tokens, data.validation_batch(0).streams["body"].tokens[:4])


def test_metrics_of_all_examples_equal_the_evaluation(assemble: Assemble, feed: Feed, components: Registry) -> None:
    model, data = assemble("gpt-tiny"), feed("gpt-tiny")
    subject = ask(model.eval(), data, components)
    metrics = subject.metrics(subject.batches(data.val_count))
    metric_names = evaluate(model, data)
    assert {f"val/{name}": value for name, value in metrics.items()} == pytest.approx(
        {f"val/{name}": metric_names[f"val/{name}"] for name in metrics}
    )
    assert {"clm/loss", "clm/accuracy"} <= metrics.keys()
    assert subject.metrics([]) == {}


def test_measures_run_in_evaluation_mode_and_restore_the_mode(
    assemble: Assemble, feed: Feed, components: Registry
) -> None:
    model = assemble("gpt-tiny", "dropout=0.5").train()
    first_results, second_results = (
        MeasureRunner({"w": Weighing()}, ask(model, feed("gpt-tiny"), components))() for _ in range(2)
    )
    assert first_results == second_results
    assert first_results.metrics.keys() == {"val/w/largest"}
    assert model.training
    assert torch.is_grad_enabled()

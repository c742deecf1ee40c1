"""Properties of a trial's own model: each mistake of a user's attention is found, and no other."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.core.paribus.evidence.mistaken_attention import CLASSES, HandMade

import paribus
from paribus.datamodule.data import Data
from paribus.datamodule.token_store import EncodedCorpus
from paribus.evidence.dropout_properties import DROPOUT
from paribus.evidence.leaks import DOCUMENTS, EXAMPLES, FUTURE, PADDED, STATE
from paribus.evidence.model_properties import GRADIENTS, PRECISION, TRAINING, broken_properties
from paribus.evidence.objective_properties import DRAWS, example_faults
from paribus.evidence.optimizer_properties import RATE, optimizer_faults
from paribus.evidence.property_names import DECODING
from paribus.evidence.repeated_step import NOT_REPEATABLE
from paribus.evidence.step_checks import StepChecks
from paribus.models.assemble import build_data, build_model
from paribus.parts.batch import Batch
from paribus.parts.random_draws import Draw
from paribus.registry import Registry
from paribus.slots.optimizer import Optimizer, TrainedTensor
from paribus.slots.tokenizer import Vocabulary
from paribus.specs import resolved
from paribus.train.trial import TrialContext, run_trial

Precision = Callable[[], AbstractContextManager[Any]]
PRECISIONS: dict[str, Precision] = {
    "float32": nullcontext,
    "bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
}
LATE = 20  # calls with gradients, after those of the checks before the first step
PACKED = ("gpt-tiny", "data.documents=apart", "dims.length=64")
MISTAKES: tuple[tuple[str, tuple[str, ...], set[str]], ...] = (
    ("hand-made", ("gpt-tiny",), set()),
    ("hand-made", ("bert-tiny",), set()),
    ("hand-made", PACKED, set()),
    ("dropped-by-hand", ("gpt-tiny",), set()),
    ("declared-noise", ("gpt-tiny",), set()),
    ("claims-to-decode", ("gpt-tiny",), {DECODING}),
    ("without-mask", ("gpt-tiny",), {FUTURE}),
    ("without-mask", ("bert-tiny",), set()),
    ("shifted-mask", ("gpt-tiny",), {FUTURE}),
    ("reads-padding", ("bert-tiny",), {PADDED}),
    ("reads-padding", PACKED, {DOCUMENTS}),
    ("batch-statistics", ("gpt-tiny",), {EXAMPLES}),
    ("kept-state", ("gpt-tiny",), {STATE}),
    ("detached-half", ("gpt-tiny",), {GRADIENTS}),
    ("detached-half", ("bert-tiny",), {GRADIENTS}),
    ("scaled-in-training", ("gpt-tiny",), {TRAINING, DROPOUT}),
    ("own-rate", ("gpt-tiny",), {TRAINING, DROPOUT}),
    ("half-rate", ("gpt-tiny",), {DROPOUT}),
    ("unscaled-dropout", ("gpt-tiny",), {DROPOUT}),
)


@pytest.fixture(scope="module")
def mistaken(components: Registry) -> Registry:
    return components.with_components(attention=CLASSES)


@pytest.fixture(scope="module")
def check(mistaken: Registry, vocabulary: Vocabulary, text: EncodedCorpus) -> Callable[..., set[str]]:
    """Return the properties that a model lacks on its first batch."""

    def properties(*words: str, precision: Precision = nullcontext) -> set[str]:
        sizes = ("dims.width=16", "dims.layers=2", "dims.heads=4", "dims.length=16", "data.batch=4")
        spec = resolved(words[0], *sizes, *words[1:], registry=mistaken)
        model, data = build_model(spec, mistaken, vocabulary), build_data(spec, mistaken, text)
        return {*broken_properties(model, mistaken, vocabulary, data.step(0), precision)}

    return properties


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("name", "words", "expected"), MISTAKES)
def test_the_mistake_of_an_attention_is_found(
    name: str, words: tuple[str, ...], expected: set[str], precision: str, check: Callable[..., set[str]]
) -> None:
    found = check(*words, f"attention={name}", "dropout=0.1", precision=PRECISIONS[precision])
    assert found - {TRAINING} == expected - {TRAINING}
    assert found >= expected or precision == "bfloat16"  # where rounding may hide a small factor in training


def test_a_branch_that_is_detached_in_one_dtype_is_found(check: Callable[..., set[str]]) -> None:
    words = "gpt-tiny", "attention=detached-in-float32"
    assert check(*words) == {PRECISION}
    assert check(*words, precision=PRECISIONS["bfloat16"]) == set()


def test_a_leak_behind_an_output_projection_of_zeros_is_found(
    mistaken: Registry, vocabulary: Vocabulary, text: EncodedCorpus
) -> None:
    spec = resolved("gpt-tiny", "attention=without-mask", "dims.length=16", "data.batch=4", registry=mistaken)
    model, data = build_model(spec, mistaken, vocabulary), build_data(spec, mistaken, text)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("attention.heads.o.weight"):
                parameter.zero_()
    assert {*broken_properties(model, mistaken, vocabulary, data.step(0), nullcontext)} == {FUTURE}


def test_the_checks_leave_the_process_and_the_model_alone(
    mistaken: Registry, vocabulary: Vocabulary, text: EncodedCorpus
) -> None:
    spec = resolved("gpt-tiny", "attention=hand-made", "dropout=0.1", "dims.length=16", registry=mistaken)
    model, data = build_model(spec, mistaken, vocabulary), build_data(spec, mistaken, text)
    state, tensors = torch.get_rng_state(), {name: value.clone() for name, value in model.state_dict().items()}
    assert not broken_properties(model, mistaken, vocabulary, data.step(0), nullcontext)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, tensors[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training


@pytest.mark.thorough
def test_mistakes_withhold_the_verdicts_of_their_variants(mistaken: Registry, tmp_path: Path) -> None:
    """Six mistakes in a study without `conform`; the table of the others stands."""
    base = {"preset": "gpt-tiny", "dims": {"width": 16, "layers": 1, "heads": 4, "length": 16}, "dropout": 0.1}
    small = {**base, "data": {"batch": 4, "validation": 4}}
    expected = {
        "without-mask": FUTURE,
        "kept-state": STATE,
        "batch-statistics": EXAMPLES,
        "detached-half": GRADIENTS,
        "half-rate": DROPOUT,
        "unscaled-dropout": DROPOUT,
    }
    tree = {
        "base": small,
        "vary": {"attention": ["hand-made", "claims-to-decode", *expected]},
        "seeds": 1,
        "budget": {"steps": 2},
    }
    tree["metric"] = {"name": "val/clm/loss", "better": "lower"}
    planned = paribus.run(paribus.study(tree, registry=mistaken, store=tmp_path))
    certificates = paribus.compare(planned).settings[0].certificates
    reasons = {name.rpartition("=")[2]: certificate.reason for name, certificate in certificates.items()}
    assert reasons == {"hand-made": "", "claims-to-decode": "", **expected}
    assert any("decodes" in effect for effect in certificates["attention=claims-to-decode"].side_effects)


@pytest.mark.parametrize(("period", "message"), [(1 << 20, None), (64, "64th"), (3, "3rd")])
def test_masks_that_repeat_are_found(
    period: int, message: str | None, components: Registry, text: EncodedCorpus
) -> None:
    class Repeating(components.get("objective", "mlm")):  # type: ignore[misc]  # a class of the registry
        """Masked language modelling whose masks repeat."""

        def corrupt(self, streams: Any, targets: Any, draw: Draw) -> Any:
            return super().corrupt(streams, targets, Draw(draw.seed, draw.epoch, draw.index % period))

    registry = components.with_components(objective={"repeating": Repeating})
    spec = resolved("encoder-tiny", "objective=repeating", "dims.length=16", "data.batch=4", registry=registry)
    found = dict(example_faults(build_data(spec, registry, text)))
    assert [*found] == ([DRAWS] if message else [])
    assert message is None or message in found[DRAWS]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_optimizer_that_keeps_its_first_rate_is_found(
    momentum: float, components: Registry, vocabulary: Vocabulary
) -> None:
    class Sticky(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                group["lr"] = group.setdefault("first", group["lr"])
            return super().step(closure)

    class FirstRate(Optimizer):
        """Gradient descent at its first rate."""

        def build(self, tensors: Sequence[TrainedTensor]) -> torch.optim.Optimizer:
            return Sticky([tensor.parameter for tensor in tensors], lr=0.1, momentum=momentum)

    registry = components.with_components(optimizer={"first-rate": FirstRate})
    for name, expected in (("first-rate", [RATE]), ("sgd", []), ("adamw", [])):
        spec = resolved("gpt-tiny", f"optimizer={name}", registry=registry)
        assert [*dict(optimizer_faults(build_model(spec, registry, vocabulary)))] == expected


def test_what_cannot_be_checked_is_recorded_beside_what_can(components: Registry, vocabulary: Vocabulary) -> None:
    model = build_model(resolved("gpt-tiny", registry=components), components, vocabulary)
    checks = StepChecks(model)
    checks.check_properties(components, cast("Data", None), cast("Batch", None), nullcontext)
    assert checks.properties is not None
    assert [*checks.properties] == ["unchecked"]
    resumed = StepChecks(model)
    resumed.resume(checks.state())
    assert resumed.to_json()["properties"] == checks.properties
    assert "properties" not in StepChecks(model).to_json()


@pytest.fixture
def train_late(mistaken: Registry, tmp_path: Path) -> Callable[[], tuple[dict[str, Any], list[str]]]:
    """Return a function that trains the attention made by hand; it returns the certificate and the messages."""

    def train() -> tuple[dict[str, Any], list[str]]:
        small = ("dims.width=16", "dims.layers=1", "dims.heads=4", "dims.length=16", "data.batch=4")
        words = ("corpus=copy", "data.validation=8", "trainer.max_steps=20", "trainer.accelerator=cpu")
        spec = resolved("gpt-tiny", "attention=hand-made", *small, *words, registry=mistaken)
        messages: list[str] = []
        record = run_trial(spec, mistaken, TrialContext("late", tmp_path, on_message=messages.append, variant="late"))
        return record["result"]["certificate"], messages

    return train


def change_late(monkeypatch: pytest.MonkeyPatch, member: str, change: Callable[..., Any]) -> None:
    """Let `change` take the place of a method after some calls with gradients, which are made in training only."""
    method, calls = getattr(HandMade, member), 0

    def late(self: HandMade, *arguments: Any) -> Any:
        nonlocal calls
        calls += torch.is_grad_enabled()
        return method(self, *arguments) if calls < LATE else change(self, *arguments)

    monkeypatch.setattr(HandMade, member, late)


TrainLate = Callable[[], tuple[dict[str, Any], list[str]]]


def test_a_leak_that_begins_in_training_is_found(train_late: TrainLate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask is dropped at a late call, so no check before the first step can see it."""
    change_late(monkeypatch, "mask", lambda self, ctx: None)
    certificate, messages = train_late()
    assert [*certificate["properties"]] == [FUTURE]
    assert certificate["properties"][FUTURE].startswith("after training, the output at position 0 changes")
    assert messages[-1].startswith(f"warning: late {FUTURE}: after training")


def test_a_clock_that_is_read_late_in_training_is_found(train_late: TrainLate, monkeypatch: pytest.MonkeyPatch) -> None:
    change_late(monkeypatch, "values", lambda self, v: v * (1 + time.time() % 7))
    properties = train_late()[0]["properties"]
    assert "loss" in properties[NOT_REPEATABLE]


@pytest.mark.parametrize(
    ("variable", "found"), [("PARIBUS_STEPS", ["the environment"]), ("TORCHINDUCTOR_STEPS", [])], ids=["own", "torch"]
)
def test_a_setting_of_the_process_that_a_step_changes_is_found(
    variable: str, found: list[str], train_late: TrainLate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def values(self: HandMade, v: torch.Tensor) -> torch.Tensor:
        os.environ[variable] += "1"
        return v

    monkeypatch.setenv(variable, "")
    monkeypatch.setattr(HandMade, "values", values)
    assert train_late()[0]["settings"] == found

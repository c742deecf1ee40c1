"""`freeze`: the parameters that its paths and layers name, and the FLOPs of a training without their gradients."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.core.paribus.assembly.test_cost import on_meta
from tests.fixtures.problems import raises_problem
from torch.utils.flop_counter import FlopCounterMode

from paribus.assembly.cost import training_flops
from paribus.assembly.freezing import frozen_parameters
from paribus.datamodule.data import Data
from paribus.errors import SpecError
from paribus.models.assemble import meta_model
from paribus.models.lightning_module import Model
from paribus.registry import Registry
from paribus.specs import resolved

Assemble = Callable[..., Model]
Feed = Callable[..., Data]

NAMED = {
    "a module": ("bert-tiny", "freeze=body", r"body\..*"),
    "two modules": ("bert-tiny", "freeze=[embedding, body.embedding]", r"(embedding|body\.embedding)\..*"),
    "one parameter": ("gpt-tiny", "freeze=embedding.tokens.weight", r"embedding\.tokens\.weight"),
    "a pattern": ("gpt-tiny", "freeze=body.layers.*.attention", r"body\.layers\.\d\.attention\..*"),
    "all but the heads": ("bert-tiny", "freeze={paths: '*', trained: objectives}", r"(embedding|body)\..*"),
    "all but the biases": ("bert-tiny", "freeze={paths: '*', trained: '**.bias'}", r".*(?<!\.bias)"),
    "the first layer": ("gpt-tiny", "freeze={layers: 1}", r"body\.layers\.0\..*"),
    "of each stack": ("transformer-tiny", "freeze={layers: 1}", r"(body|encoder)\.layers\.0\..*"),
    "of a recurrence": ("rnnsearch-tiny", "freeze={layers: 1}", r"(body|encoder)\.layers\.0\..*"),
    "with a path": ("gpt-tiny", "freeze={layers: 1, paths: embedding}", r"(body\.layers\.0|embedding)\..*"),
    "not the first word of a name": ("gpt-tiny", "freeze=body.layers.1", r"body\.layers\.1\..*"),
    "nothing": ("gpt-tiny", "freeze={layers: 0}", "(?!)"),
}


@pytest.mark.parametrize(("preset", "freeze", "pattern"), NAMED.values(), ids=NAMED)
def test_paths_and_layers_name_parameters(preset: str, freeze: str, pattern: str, assemble: Assemble) -> None:
    model = assemble(preset, freeze)
    named = {path for path, _ in model.named_parameters()}
    assert model.frozen == {path for path in named if re.fullmatch(pattern, path)}
    assert {path for path, each in model.named_parameters() if not each.requires_grad} == model.frozen


REFUSED = {
    "unknown": ("gpt-tiny", "freeze=bodi", "unknown-path", ("bodi", "body")),
    "words between dots": ("gpt-tiny", "freeze='*.bias'", "unknown-path", ("*.bias", "**.bias")),
    "one of two": ("gpt-tiny", "freeze=[body, heads]", "unknown-path", ("heads",)),
    "part of a word": ("gpt-tiny", "freeze=embed", "unknown-path", ("embed", "embedding")),
    "not frozen": ("gpt-tiny", "freeze={paths: body, trained: embedding}", "unknown-path", ("freeze.trained",)),
    "everything": ("gpt-tiny", "freeze='*'", "nothing-to-train", ("freeze",)),
    "too many layers": ("gpt-tiny", "freeze={layers: 3}", "out-of-range", ("freeze.layers", "3", "2")),
    "one layer of a group": ("albert-tiny", "freeze={layers: 1}", "shared-parameter", ("body.layers.1",)),
}


@pytest.mark.parametrize(("preset", "freeze", "code", "values"), REFUSED.values(), ids=REFUSED)
def test_paths_that_name_nothing_are_refused(
    preset: str, freeze: str, code: str, values: tuple[Any, ...], registry: Registry
) -> None:
    spec = resolved(preset, freeze, registry=registry)
    with raises_problem(SpecError, code, *values):
        frozen_parameters(meta_model(spec, registry), spec["freeze"])


INVALID = {
    "an unknown option": ("freeze={path: body}", "unknown-key", "paths"),
    "a number": ("freeze=3", "wrong-type", "freeze"),
    "steps of nothing": ("freeze={steps: 3}", "unused-option", "freeze.steps"),
    "an exception from nothing": ("freeze={trained: objectives}", "unused-option", "freeze.trained"),
    "no steps": ("freeze={paths: body, steps: 0}", "out-of-range", "freeze.steps"),
    "all steps": ("freeze={paths: body, steps: 9}", "out-of-range", "9"),
    "two devices": ("freeze={paths: body, steps: 2}", "does-not-fit", "freeze.steps"),
}


@pytest.mark.parametrize(("freeze", "code", "value"), INVALID.values(), ids=INVALID)
def test_invalid_options_are_refused(freeze: str, code: str, value: str, registry: Registry) -> None:
    trainer = ("trainer.max_steps=9", *(["trainer.devices=2"] if code == "does-not-fit" else []))
    with raises_problem(SpecError, code, value):
        resolved("gpt-tiny", freeze, *trainer, registry=registry)


def test_a_spec_without_frozen_parameters_has_no_such_key(registry: Registry) -> None:
    """So the identities of trials from before this key stay as they are."""
    assert resolved("gpt-tiny", "freeze=null", registry=registry) == resolved("gpt-tiny", registry=registry)
    assert "freeze" not in resolved("gpt-tiny", registry=registry)


MEASURED = {
    "nothing": ("gpt-tiny", None),
    "the first of two layers": ("gpt-tiny", "{layers: 1, paths: [embedding, body.position]}"),
    "all but the head": ("bert-tiny", "{paths: '*', trained: objectives}"),
    "the last layer": ("gpt-tiny", "body.layers.1"),
    "the embedding": ("gpt-tiny", "embedding"),
    "the encoder": ("transformer-tiny", "[encoder, embedding]"),
    "the decoder": ("transformer-tiny", "body"),
    "all but the biases": ("gpt-tiny", "{paths: '*', trained: '**.bias'}"),
}


@pytest.mark.parametrize(("preset", "freeze"), MEASURED.values(), ids=MEASURED)
def test_declared_training_flops_are_those_of_torch(
    preset: str, freeze: str | None, assemble: Assemble, feed: Feed
) -> None:
    """At most a tenth too many: the first trained component needs no gradient of its input."""
    options = ["attention.scores.soft_cap=3"] if preset == "gpt-tiny" else []  # so torch sees the products of attention
    model = assemble(preset, *options, *([f"freeze={freeze}"] if freeze else []))
    batch = on_meta(feed(preset, *options).step(0))
    with FlopCounterMode(display=False) as counter:
        model.to("meta").loss(batch).backward()
    counted = counter.get_total_flops() / len(batch.index)
    declared = training_flops(model.assembled, int(model.spec["dims"]["length"]), frozen=model.frozen)
    assert counted <= declared <= 1.1 * counted

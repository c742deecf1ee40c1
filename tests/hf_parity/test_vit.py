"""Parity of ViT, which reads images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from tests.hf_parity.cases import CASES, Case
from torch import Tensor, nn

import paribus
from paribus import SpecError, StoreError
from paribus.conversion.api import families
from paribus.conversion.tensor_mapping import export_tensors
from paribus.models.lightning_module import Model
from paribus.registry import Registry

transformers = pytest.importorskip("transformers")

ALL = [
    pytest.param(family, case, id=f"{family}, {case.label}")
    for family, cases in CASES.items()
    for case in cases
    if case.reads == "images"
]
every_case = pytest.mark.parametrize(("family", "case"), ALL)

Compare = Callable[[str, str, Tensor, Tensor], None]
Randomise = Callable[[nn.Module], nn.Module]


@pytest.fixture
def models(case: Case, randomise: Randomise, components: Registry) -> tuple[Model, Any]:
    hf_model = randomise(case.hf_model)
    return paribus.convert(hf_model, registry=components).eval(), hf_model


def images(hf_model: Any, count: int = 3) -> tuple[Tensor, Tensor]:
    """Pixel values of 0 to 255, channels last, and as transformers reads them, channels first, from -1 to 1."""
    side, channels = hf_model.config.image_size, hf_model.config.num_channels
    values = torch.randint(256, (count, side, side, channels), generator=torch.Generator().manual_seed(side))
    pixels = (values.permute(0, 3, 1, 2).double() / 255 - 0.5) / 0.5  # their processor's mean and deviation
    return values.flatten(1).to(torch.uint8), pixels


@every_case
def test_scores_and_hidden_states_match_the_twin(
    family: str, case: Case, models: tuple[Model, Any], compare: Compare
) -> None:
    model, hf_model = models
    values, pixels = images(hf_model)
    with torch.no_grad():
        compare(family, "scores", model(values)[0][:, 0], hf_model(pixel_values=pixels).logits)
        compare(family, "hidden states", model.hidden(values), hf_model.vit(pixels)[0])


@every_case
def test_gradients_match_the_twin(
    family: str, case: Case, models: tuple[Model, Any], compare: Compare, components: Registry
) -> None:
    model, hf_model = models
    values, pixels = images(hf_model)
    labels = torch.tensor([4, 0, 1])
    nn.functional.cross_entropy(model(values)[0][:, 0], labels).backward()
    hf_model(pixel_values=pixels, labels=labels).loss.backward()
    named = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert named.keys() == dict(model.named_parameters()).keys()
    gradients = export_tensors(families(components)[family].moves(model.spec), named)
    hf_parameters = dict(hf_model.named_parameters())
    assert gradients.keys() == hf_parameters.keys()
    for name, grad in gradients.items():
        compare(family, "gradients", grad, hf_parameters[name].grad)


@every_case
def test_converting_back_restores_the_model(
    family: str, case: Case, models: tuple[Model, Any], tmp_path: Path, compare: Compare
) -> None:
    model, hf_model = models
    back = paribus.export(model, family)
    state = hf_model.state_dict()
    assert back.tensors.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(back.tensors[name], tensor), name
    back.save(tmp_path)
    reloaded = type(hf_model).from_pretrained(tmp_path, dtype=torch.float64).eval()
    _, pixels = images(hf_model)
    with torch.no_grad():
        compare(family, "export", reloaded(pixels).logits, hf_model(pixels).logits)


@every_case
def test_converting_a_folder_matches_converting_the_model(
    family: str, case: Case, models: tuple[Model, Any], tmp_path: Path
) -> None:
    """Saved tensors have older names."""
    model, hf_model = models
    hf_model.save_pretrained(tmp_path)
    read = paribus.convert(tmp_path)
    assert read.spec == model.spec
    for name, parameter in read.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name


@pytest.mark.parametrize(
    ("changes", "code", "values"),
    [
        ({"image_size": [6, 8]}, "unsupported-option", ("image_size", "[6, 8]")),
        ({"patch_size": (2, 1)}, "unsupported-option", ("patch_size", "(2, 1)")),
        ({"patch_size": 4}, "unsupported-option", ("image_size", "6", "4")),
        ({"qkv_bias": False}, "unsupported-option", ("qkv_bias",)),
        ({"hidden_act": "mish"}, "unsupported-option", ("hidden_act", "mish")),
        ({"rotary": True}, "unknown-option", ("rotary",)),
    ],
)
def test_unsupported_options_are_rejected(changes: dict[str, Any], code: str, values: tuple[str, ...]) -> None:
    with raises_problem(SpecError, code, *values):
        paribus.convert(CASES["vit"][0].hf_model, **changes)


def test_a_tensor_of_another_shape_is_rejected() -> None:
    hf_model = CASES["vit"][0].hf_model
    with raises_problem(StoreError, "wrong-shape", "position_embeddings", "(5, 18)", "(1, 10, 18)"):
        paribus.convert(hf_model, patch_size=3)

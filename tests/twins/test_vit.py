"""Vision transformers of the `transformers` library, which read images, and not tokens: converted, and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.twins.cases import CASES, Case
from torch import Tensor, nn

import paribus
from paribus import SpecError, StoreError
from paribus.conversion.api import families
from paribus.conversion.tensor_mapping import into_theirs
from paribus.registry import Registry
from paribus.train.model import Model

transformers = pytest.importorskip("transformers")

ALL = [
    pytest.param(family, case, id=f"{family}, {case.said}")
    for family, cases in CASES.items()
    for case in cases
    if case.reads == "images"
]
every_case = pytest.mark.parametrize(("family", "case"), ALL)

Note = Callable[[str, str, Tensor, Tensor], None]
Shake = Callable[[nn.Module], nn.Module]


@pytest.fixture
def twins(case: Case, shake: Shake, components: Registry) -> tuple[Model, Any]:
    theirs = shake(case.made)
    return paribus.convert(theirs, registry=components).eval(), theirs


def images(theirs: Any, count: int = 3) -> tuple[Tensor, Tensor]:
    """Values as we read them, channels last, and as they do, channels first and from -1 to 1."""
    side, channels = theirs.config.image_size, theirs.config.num_channels
    values = torch.randint(256, (count, side, side, channels), generator=torch.Generator().manual_seed(side))
    pixels = (values.permute(0, 3, 1, 2).double() / 255 - 0.5) / 0.5  # their processor's mean and deviation
    return values.flatten(1).to(torch.uint8), pixels


@every_case
def test_scores_and_hidden_states_match_the_twin(family: str, case: Case, twins: tuple[Model, Any], note: Note) -> None:
    ours, theirs = twins
    values, pixels = images(theirs)
    with torch.no_grad():
        note(family, "scores", ours(values)[0][:, 0], theirs(pixel_values=pixels).logits)
        note(family, "rows", ours.hidden(values), theirs.vit(pixels)[0])


@every_case
def test_gradients_match_the_twin(
    family: str, case: Case, twins: tuple[Model, Any], note: Note, components: Registry
) -> None:
    ours, theirs = twins
    values, pixels = images(theirs)
    labels = torch.tensor([4, 0, 1])
    nn.functional.cross_entropy(ours(values)[0][:, 0], labels).backward()
    theirs(pixel_values=pixels, labels=labels).loss.backward()
    named = {name: parameter.grad for name, parameter in ours.named_parameters() if parameter.grad is not None}
    assert named.keys() == dict(ours.named_parameters()).keys()
    mine = into_theirs(families(components)[family].moves(ours.spec), named)
    learned = dict(theirs.named_parameters())
    assert mine.keys() == learned.keys()
    for name, grad in mine.items():
        note(family, "gradients", grad, learned[name].grad)


@every_case
def test_converting_back_restores_the_model(
    family: str, case: Case, twins: tuple[Model, Any], tmp_path: Path, note: Note
) -> None:
    ours, theirs = twins
    back = paribus.export(ours, family)
    state = theirs.state_dict()
    assert back.tensors.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(back.tensors[name], tensor), name
    back.save(tmp_path)
    again = type(theirs).from_pretrained(tmp_path, dtype=torch.float64).eval()
    _, pixels = images(theirs)
    with torch.no_grad():
        note(family, "there and back", again(pixels).logits, theirs(pixels).logits)


@every_case
def test_converting_a_folder_matches_converting_the_model(
    family: str, case: Case, twins: tuple[Model, Any], tmp_path: Path
) -> None:
    """Its tensors have older names there."""
    ours, theirs = twins
    theirs.save_pretrained(tmp_path)
    read = paribus.convert(tmp_path)
    assert read.spec == ours.spec
    for name, parameter in read.named_parameters():
        assert torch.equal(parameter, ours.get_parameter(name)), name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image_size": [6, 8]}, r"got `image_size` \[6, 8\]"),
        ({"patch_size": (2, 1)}, r"got `patch_size` \(2, 1\)"),
        ({"patch_size": 4}, r"must divide `image_size` \(6\), got 4"),
        ({"qkv_bias": False}, "`qkv_bias` is False, which no component here does"),
        ({"hidden_act": "mish"}, "`hidden_act` is 'mish', which no component here does"),
        ({"rotary": True}, r"`rotary` \(True\) is an option that is not known here"),
    ],
)
def test_unsupported_options_are_rejected(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        paribus.convert(CASES["vit"][0].made, **changes)


def test_a_misshapen_tensor_is_told_of() -> None:
    theirs = CASES["vit"][0].made
    with pytest.raises(StoreError, match=r"position_embeddings: this tensor is \(1, 10, 18\); .* is \(5, 18\)"):
        paribus.convert(theirs, patch_size=3)

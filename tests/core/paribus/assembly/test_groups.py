"""Groups of layers that share parameters: their assignment, equality with separate layers, and isolation."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

import paribus
from paribus import SpecError
from paribus.assembly.build import shared_layers
from paribus.models.checkpoint import save_weights
from paribus.models.lightning_module import Model

TINY = ("dims.width=16", "dims.heads=2", "dims.layers=4", "dims.length=16", "tokenizer=bytes")


def model(*overrides: str, preset: str = "gpt-tiny") -> Model:
    return paribus.assemble(paribus.spec(preset, *TINY, *overrides)).eval()


def layers_of(model: Model) -> list[Any]:
    body: Any = model.topology.get_submodule("body")
    return list(body.layers)


def tokens() -> Tensor:
    return torch.randint(0, 200, (2, 7), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("groups", "attentions", "expected"),
    [
        (None, 1, [0, 1, 2, 3]),
        (4, 1, [0, 1, 2, 3]),
        (2, 1, [0, 0, 2, 2]),
        (1, 1, [0, 0, 0, 0]),
        (1, 2, [0, 1, 0, 1]),
        (2, 2, [0, 1, 2, 3]),
    ],
)
def test_each_group_has_one_layer_of_every_kind(groups: int | None, attentions: int, expected: list[int]) -> None:
    spec = {"dims": {"groups": groups, "loops": None}, "attention": [{"name": "mha"}, {"name": "mqa"}][:attentions]}
    assert shared_layers(spec, 4) == expected


def test_layers_of_a_group_share_their_parameters() -> None:
    layers = layers_of(model("dims.groups=2"))
    assert [one is two for one, two in itertools.pairwise(layers)] == [True, False, True]


@pytest.mark.thorough
def test_shared_layers_equal_separate_layers_with_equal_weights() -> None:
    shared, apart = model("dims.groups=1"), model()
    with torch.no_grad():
        for layer in layers_of(apart):
            layer.load_state_dict(layers_of(shared)[0].state_dict())
        apart.topology.embedding.load_state_dict(shared.topology.embedding.state_dict())
    assert torch.equal(shared.hidden(tokens()), apart.hidden(tokens()))
    for item in (shared, apart):
        item.hidden(tokens()).square().sum().backward()
    summed = torch.stack([layer.attention.heads.q.weight.grad for layer in layers_of(apart)]).sum(0)
    assert torch.allclose(layers_of(shared)[0].attention.heads.q.weight.grad, summed, atol=1e-5)


def test_each_use_of_a_shared_layer_has_its_own_decoding_state() -> None:
    shared = model("dims.groups=1")
    states = shared.start(2, 7)
    steps = [shared.hidden(token, states) for token in tokens().split(1, dim=1)]
    assert torch.allclose(torch.cat(steps, dim=1), shared.hidden(tokens()), atol=1e-5)


@pytest.mark.thorough
def test_shared_layers_have_the_initial_weights_of_the_first_layer() -> None:
    shared, apart = model("dims.groups=2"), model()
    for path, tensor in apart.named_parameters():
        if not path.startswith(("body.layers.1", "body.layers.3")):
            assert torch.equal(shared.get_parameter(path), tensor), path


def test_shared_weights_are_saved_once(tmp_path: Path) -> None:
    shared = model("dims.groups=1")
    save_weights(tmp_path / "weights.safetensors", shared, {})
    assert (tmp_path / "weights.safetensors").stat().st_size < 1.2 * 4 * sum(
        p.numel() for p in shared.parameters()
    ) + 9000


@pytest.mark.thorough
def test_a_position_owned_by_a_layer_is_shared_with_it() -> None:
    costs = {groups: len(list(model(f"dims.groups={groups}", "position=alibi").parameters())) for groups in (1, 4)}
    assert costs[1] < costs[4]


@pytest.mark.parametrize(
    ("overrides", "code", "values"),
    [
        (["dims.groups=3"], "not-divisible", ("dims.groups", "3", "dims.layers", "1, 2, 4")),
        (["dims.groups=2", "attention=[mha,mqa,gqa]"], "does-not-fit", ("2", "3")),
        (["dims.groups=0"], "out-of-range", ("≥ 1",)),
    ],
)
def test_an_uneven_sharing_is_rejected(overrides: list[str], code: str, values: tuple[str, ...]) -> None:
    with raises_problem(SpecError, code, *values):
        paribus.spec("gpt-tiny", *TINY, *overrides)

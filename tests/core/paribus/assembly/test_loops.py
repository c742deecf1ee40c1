"""Loops over layers: which layers share parameters, what a pass adds, and the sizes that are refused."""

from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

import paribus
from paribus.assembly.build import shared_layers
from paribus.assembly.cost import model_cost
from paribus.models.lightning_module import Model

TINY = ("dims.width=16", "dims.heads=2", "dims.layers=6", "dims.length=16", "tokenizer=bytes", "corpus=null")
LOOP = ("dims.loops=2", "dims.before_loop=1", "dims.after_loop=1")


def model(*overrides: str) -> Model:
    return paribus.assemble(paribus.spec("gpt-tiny", *TINY, *overrides)).eval()


def layers_of(model: Model) -> list[Any]:
    body: Any = model.topology.get_submodule("body")
    return list(body.layers)


def tokens() -> Tensor:
    return torch.randint(0, 200, (2, 7), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("loops", "before", "after", "expected"),
    [
        (2, 0, 0, [0, 1, 2, 0, 1, 2]),
        (6, 0, 0, [0, 0, 0, 0, 0, 0]),
        (2, 1, 1, [0, 1, 2, 1, 2, 5]),
        (5, 1, 0, [0, 1, 1, 1, 1, 1]),
        (1, 1, 1, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_each_pass_has_the_layers_of_the_first(loops: int, before: int, after: int, expected: list[int]) -> None:
    assert shared_layers({"dims": {"loops": loops, "before_loop": before, "after_loop": after}}, 6) == expected


def test_a_loop_equals_separate_layers_with_equal_weights() -> None:
    looped, separate = model(*LOOP), model()
    with torch.no_grad():
        for one, other in zip(layers_of(separate), layers_of(looped), strict=True):
            one.load_state_dict(other.state_dict())
    assert torch.equal(looped.hidden(tokens()), separate.hidden(tokens()))


def test_a_loop_has_the_operations_and_the_cache_of_its_passes_and_the_parameters_of_one() -> None:
    looped, separate = (model_cost(model(*options).assembled, 16) for options in (LOOP, ()))
    assert (looped.flops, looped.state) == (separate.flops, separate.state)
    layer = sum(parameter.numel() for parameter in layers_of(model())[0].parameters())
    assert separate.parameters - looped.parameters == 2 * layer


def test_a_vector_is_added_before_each_pass() -> None:
    plain, embedded = model(*LOOP), model(*LOOP, "dims.loop_embedding=true")
    body: Any = embedded.topology.get_submodule("body")
    assert body.loop_embedding.weight.shape == (2, 16)
    inputs: list[Tensor] = []
    first = layers_of(embedded)[1]
    handle = first.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0][0]))
    outputs: list[Tensor] = []
    handles = [
        layers_of(embedded)[index].register_forward_hook(lambda module, arguments, y: outputs.append(y[0][0]))
        for index in (0, 2)
    ]
    hidden = embedded.hidden(tokens())
    for registered in (handle, *handles):
        registered.remove()
    for read, before, vector in zip(inputs, outputs, body.loop_embedding.weight, strict=False):
        assert torch.equal(read, before + vector)
    torch.nn.init.zeros_(body.loop_embedding.weight)
    assert torch.equal(embedded.hidden(tokens()), plain.hidden(tokens()))
    assert not torch.equal(hidden, plain.hidden(tokens()))


def test_each_pass_has_its_own_decoding_state() -> None:
    looped = model(*LOOP, "dims.loop_embedding=true")
    states = looped.start(2, 7)
    steps = [looped.hidden(token, states) for token in tokens().split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), looped.hidden(tokens()), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("overrides", "code"),
    [
        (("dims.loops=4",), "not-divisible"),
        (("dims.loops=2", "dims.before_loop=6"), "not-divisible"),
        (("dims.after_loop=1",), "does-not-fit"),
        (("dims.loops=2", "dims.groups=2"), "does-not-fit"),
        (("dims.loops=2", "attention=[mha,mqa]"), "does-not-fit"),
        (("dims.loops=2", "placement=u-net"), "does-not-fit"),
    ],
)
def test_loops_that_do_not_fit_are_refused(overrides: tuple[str, ...], code: str) -> None:
    with raises_problem(paribus.SpecError, code):
        paribus.spec("gpt-tiny", *TINY, *overrides)

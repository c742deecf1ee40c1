"""Conversion of tensors between Hugging Face and Paribus models, and its errors."""

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor

from paribus import Move, StoreError
from paribus.conversion.tensor_mapping import convert_tensors, export_tensors

MOVES = (
    Move("table", "wte", tied_names=("head",)),
    *(Move(name, "fused", transposed=True, part=part, parts=3) for part, name in enumerate("qkv")),
)
SHAPES = {"table": torch.Size([5, 2]), **{name: torch.Size([4, 2]) for name in "qkv"}}


def hf_checkpoint() -> dict[str, Tensor]:
    table = torch.randn(5, 2)
    return {"wte": table, "head": table, "fused": torch.randn(2, 12)}


def test_tensors_round_trip() -> None:
    hf_tensors = hf_checkpoint()
    tensors = convert_tensors(MOVES, hf_tensors, SHAPES)
    assert torch.equal(tensors["k"], hf_tensors["fused"][:, 4:8].T)
    exported = export_tensors(MOVES, tensors)
    assert exported.keys() == hf_tensors.keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in hf_tensors.items())


def test_a_tied_tensor_may_be_saved_once() -> None:
    hf_tensors = hf_checkpoint()
    del hf_tensors["head"]
    assert torch.equal(convert_tensors(MOVES, hf_tensors, SHAPES)["table"], hf_tensors["wte"])


@pytest.mark.parametrize(
    ("name", "tensor", "code", "values"),
    [
        ("wte", None, "missing-tensor", ("wte",)),
        (
            "more",
            torch.zeros(1),
            "extra-tensor",
            ("more",),
        ),
        ("wte", torch.zeros(6, 2), "wrong-shape", ("wte", "(5, 2)", "table", "(6, 2)")),
        ("fused", torch.zeros(2, 11), "wrong-shape", ("fused", "(4, 2)", "q", "(2, 11)")),
        ("fused", torch.full((2, 12), torch.nan), "not-finite", ("fused",)),
        (
            "head",
            torch.zeros(5, 2),
            "tied-weights-differ",
            ("head", "wte"),
        ),
    ],
)
def test_an_invalid_tensor_is_refused(name: str, tensor: Tensor | None, code: str, values: tuple[str, ...]) -> None:
    hf_tensors = hf_checkpoint()
    if tensor is None:
        del hf_tensors[name]
    else:
        hf_tensors[name] = tensor
    with raises_problem(StoreError, code, *values):
        convert_tensors(MOVES, hf_tensors, SHAPES)


def test_constants_are_exported_and_may_be_missing() -> None:
    hf_tensors, constants = hf_checkpoint(), {"alike": torch.zeros(1, 5)}
    tensors = convert_tensors(MOVES, hf_tensors, SHAPES, constants)
    assert tensors.keys() == SHAPES.keys()
    assert (
        convert_tensors(MOVES, {**hf_tensors, "alike": torch.zeros(1, 5)}, SHAPES, constants).keys() == tensors.keys()
    )
    doubled = export_tensors(MOVES, {name: tensor.double() for name, tensor in tensors.items()}, constants)
    assert torch.equal(doubled["alike"], torch.zeros(1, 5, dtype=torch.float64))


@pytest.mark.parametrize("tensor", [torch.ones(1, 5), torch.zeros(5)])
def test_a_constant_must_have_its_value_and_shape(tensor: Tensor) -> None:
    with raises_problem(StoreError, "not-constant", "alike", "0", "(1, 5)"):
        convert_tensors(MOVES, {**hf_checkpoint(), "alike": tensor}, SHAPES, {"alike": torch.zeros(1, 5)})


def test_all_problems_are_reported_at_once() -> None:
    hf_tensors = {"wte": torch.full((5, 2), torch.inf), "more": torch.zeros(1)}
    with raises_problem(StoreError, "missing-tensor", "fused") as wrong:
        convert_tensors(MOVES, hf_tensors, SHAPES)
    assert {problem.code for problem in wrong.value.problems} == {"not-finite", "extra-tensor", "missing-tensor"}


def test_a_tensor_of_more_dimensions_is_reshaped() -> None:
    moves, hf_tensors = [Move("matrix", "filter", hf_shape=(2, 1, 3, 3))], {"filter": torch.randn(2, 1, 3, 3)}
    tensors = convert_tensors(moves, hf_tensors, {"matrix": torch.Size([2, 9])})
    assert torch.equal(tensors["matrix"], hf_tensors["filter"].flatten(1))
    assert torch.equal(export_tensors(moves, tensors)["filter"], hf_tensors["filter"])
    with raises_problem(StoreError, "wrong-shape", "filter", "(2, 8)", "matrix", "(2, 9)"):
        convert_tensors(moves, {"filter": torch.zeros(2, 9)}, {"matrix": torch.Size([2, 8])})


def test_parts_may_be_interleaved() -> None:
    moves = [Move(name, "fused", part=part, parts=3, interleaved=2) for part, name in enumerate("qkv")]
    fused = torch.arange(24.0).view(12, 2)  # two heads of two rows, of queries, keys and values each
    tensors = convert_tensors(moves, {"fused": fused}, {name: SHAPES[name] for name in "qkv"})
    assert tensors["k"].tolist() == fused[[2, 3, 8, 9]].tolist()
    assert torch.equal(export_tensors(moves, tensors)["fused"], fused)


@pytest.mark.parametrize("turned", [False, True])
def test_a_matrix_may_have_an_axis_for_heads_on_either_side(turned: bool) -> None:
    move = Move("q", "heads", turned, hf_shape=(2, 2, 2) if turned else (4, 2, 1))
    hf_tensor = torch.randn(move.hf_shape)
    matrix = convert_tensors([move], {"heads": hf_tensor}, {"q": torch.Size([4, 2])})["q"]
    assert torch.equal(matrix, hf_tensor.view(2, 4).T if turned else hf_tensor.view(4, 2))
    assert torch.equal(export_tensors([move], {"q": matrix})["heads"], hf_tensor)
    with raises_problem(StoreError, "wrong-shape", "heads"):
        convert_tensors([move], {"heads": torch.randn(2, 4)}, {"q": torch.Size([4, 2])})


def test_a_tensor_may_have_an_alternative_name_and_is_exported_by_the_first() -> None:
    move = Move("table", "wte", hf_alternative="newer.wte")
    shapes = {"table": torch.Size([5, 2])}
    for name in ("wte", "newer.wte"):
        hf_tensors = {name: torch.randn(5, 2)}
        tensors = convert_tensors([move], hf_tensors, shapes)
        assert torch.equal(tensors["table"], hf_tensors[name])
        assert export_tensors([move], tensors).keys() == {"wte"}
    with raises_problem(StoreError, "missing-tensor", "wte"):
        convert_tensors([move], {}, shapes)

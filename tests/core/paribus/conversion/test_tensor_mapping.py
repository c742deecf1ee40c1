"""Tensors from one model to the other and back, and every way in which they may not fit."""

import pytest
import torch
from torch import Tensor

from paribus import Move, StoreError
from paribus.conversion.tensor_mapping import convert_tensors, export_tensors

MOVES = (
    Move("table", "wte", also=("head",)),
    *(Move(name, "fused", turned=True, part=part, parts=3) for part, name in enumerate("qkv")),
)
SHAPES = {"table": torch.Size([5, 2]), **{name: torch.Size([4, 2]) for name in "qkv"}}


def theirs() -> dict[str, Tensor]:
    table = torch.randn(5, 2)
    return {"wte": table, "head": table, "fused": torch.randn(2, 12)}


def test_there_and_back_is_the_same() -> None:
    given = theirs()
    ours = convert_tensors(MOVES, given, SHAPES)
    assert torch.equal(ours["k"], given["fused"][:, 4:8].T)
    back = export_tensors(MOVES, ours)
    assert back.keys() == given.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in given.items())


def test_a_tied_tensor_may_be_there_once() -> None:
    given = theirs()
    del given["head"]
    assert torch.equal(convert_tensors(MOVES, given, SHAPES)["table"], given["wte"])


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("wte", None, r"error\[missing-tensor\] wte"),
        (
            "more",
            torch.zeros(1),
            r"error\[extra-tensor\] more: unexpected tensor, which the configuration does not explain",
        ),
        ("wte", torch.zeros(6, 2), r"error\[misshapen\] wte: expected the shape \(5, 2\) of `table`, got \(6, 2\)"),
        ("fused", torch.zeros(2, 11), r"error\[misshapen\] fused: expected the shape \(4, 2\) of `q`, got \(2, 11\)"),
        ("fused", torch.full((2, 12), torch.nan), r"error\[not-finite\] fused"),
        (
            "head",
            torch.zeros(5, 2),
            r"error\[wrongly-tied\] head: expected a tensor equal to `wte`, as the configuration",
        ),
    ],
)
def test_what_does_not_fit_is_told_of(name: str, tensor: Tensor | None, message: str) -> None:
    given = theirs()
    if tensor is None:
        del given[name]
    else:
        given[name] = tensor
    with pytest.raises(StoreError, match=message):
        convert_tensors(MOVES, given, SHAPES)


def test_what_every_model_has_alike_is_given_back_and_may_be_left_out() -> None:
    given, constants = theirs(), {"alike": torch.zeros(1, 5)}
    ours = convert_tensors(MOVES, given, SHAPES, constants)
    assert ours.keys() == SHAPES.keys()
    assert convert_tensors(MOVES, {**given, "alike": torch.zeros(1, 5)}, SHAPES, constants).keys() == ours.keys()
    doubled = export_tensors(MOVES, {name: tensor.double() for name, tensor in ours.items()}, constants)
    assert torch.equal(doubled["alike"], torch.zeros(1, 5, dtype=torch.float64))


@pytest.mark.parametrize("tensor", [torch.ones(1, 5), torch.zeros(5)])
def test_what_every_model_has_alike_may_not_differ(tensor: Tensor) -> None:
    message = r"error\[not-constant\] alike: expected 0 everywhere, in the shape \(1, 5\), got"
    with pytest.raises(StoreError, match=message):
        convert_tensors(MOVES, {**theirs(), "alike": tensor}, SHAPES, {"alike": torch.zeros(1, 5)})


def test_all_of_it_is_told_at_once() -> None:
    given = {"wte": torch.full((5, 2), torch.inf), "more": torch.zeros(1)}
    with pytest.raises(StoreError, match="missing-tensor") as wrong:
        convert_tensors(MOVES, given, SHAPES)
    assert {problem.code for problem in wrong.value.problems} == {"not-finite", "extra-tensor", "missing-tensor"}


def test_a_tensor_of_more_dimensions_is_spread_and_gathered() -> None:
    moves, given = [Move("matrix", "filter", spread=(2, 1, 3, 3))], {"filter": torch.randn(2, 1, 3, 3)}
    ours = convert_tensors(moves, given, {"matrix": torch.Size([2, 9])})
    assert torch.equal(ours["matrix"], given["filter"].flatten(1))
    assert torch.equal(export_tensors(moves, ours)["filter"], given["filter"])
    with pytest.raises(StoreError, match=r"filter: expected the shape \(2, 8\) of `matrix`, got \(2, 9\)"):
        convert_tensors(moves, {"filter": torch.zeros(2, 9)}, {"matrix": torch.Size([2, 8])})


def test_parts_may_take_turns() -> None:
    moves = [Move(name, "fused", part=part, parts=3, turns=2) for part, name in enumerate("qkv")]
    fused = torch.arange(24.0).view(12, 2)  # two heads of two rows, of queries, keys and values each
    ours = convert_tensors(moves, {"fused": fused}, {name: SHAPES[name] for name in "qkv"})
    assert ours["k"].tolist() == fused[[2, 3, 8, 9]].tolist()
    assert torch.equal(export_tensors(moves, ours)["fused"], fused)


@pytest.mark.parametrize("turned", [False, True])
def test_a_matrix_may_have_an_axis_for_heads_whichever_way_around_it_is(turned: bool) -> None:
    move = Move("q", "heads", turned, spread=(2, 2, 2) if turned else (4, 2, 1))
    theirs = torch.randn(move.spread)
    ours = convert_tensors([move], {"heads": theirs}, {"q": torch.Size([4, 2])})["q"]
    assert torch.equal(ours, theirs.view(2, 4).T if turned else theirs.view(4, 2))
    assert torch.equal(export_tensors([move], {"q": ours})["heads"], theirs)
    with pytest.raises(StoreError, match=r"error\[misshapen\] heads"):
        convert_tensors([move], {"heads": torch.randn(2, 4)}, {"q": torch.Size([4, 2])})


def test_a_tensor_may_go_by_another_name_and_is_written_by_the_first() -> None:
    move = Move("table", "wte", otherwise="newer.wte")
    shapes = {"table": torch.Size([5, 2])}
    for name in ("wte", "newer.wte"):
        theirs = {name: torch.randn(5, 2)}
        ours = convert_tensors([move], theirs, shapes)
        assert torch.equal(ours["table"], theirs[name])
        assert export_tensors([move], ours).keys() == {"wte"}
    with pytest.raises(StoreError, match=r"missing tensor `wte`"):
        convert_tensors([move], {}, shapes)

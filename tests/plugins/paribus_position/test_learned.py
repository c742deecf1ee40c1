"""Learned positions: used vectors, offset and the end of the table."""

import pytest
import torch
from tests.fixtures.problems import raises_problem

from paribus import DataError, Shape
from paribus_position.learned import Learned


def test_tokens_get_the_vector_of_their_position(shape: Shape) -> None:
    position, x = Learned(shape), torch.randn(2, 3, 8)
    positions = torch.tensor([[0, 1, 2], [5, 0, 15]])
    actual = position.embed(x, positions)
    for b in range(2):
        for t in range(3):
            assert torch.equal(actual[b, t], x[b, t] + position.table.weight[positions[b, t]])


def test_only_used_positions_have_a_gradient(shape: Shape) -> None:
    position = Learned(shape)
    position.embed(torch.zeros(1, 3, 8), torch.tensor([[2, 3, 3]])).sum().backward()
    grad = position.table.weight.grad
    assert grad is not None
    assert grad.sum(-1).tolist() == [0, 0, 8, 16] + [0] * 12


def test_left_padding_reads_the_first_vector(shape: Shape) -> None:
    position = Learned(shape)
    actual = position.embed(torch.zeros(1, 3, 8), torch.tensor([[-2, -1, 0]]))
    assert torch.equal(actual, position.table.weight[0].expand(1, 3, 8))


@pytest.mark.parametrize(("length", "reach"), [(None, 16), (40, 40)])
def test_the_table_has_the_length_of_dims_or_of_the_option(length: int | None, reach: int, shape: Shape) -> None:
    position = Learned(shape, length=length)
    assert position.position_limit() == position.table.num_embeddings == reach
    position.embed(torch.zeros(1, 1, 8), torch.tensor([[reach - 1]]))


def test_a_position_past_the_table_is_an_error(shape: Shape) -> None:
    with raises_problem(DataError, "position-out-of-range", "16", "positions", "15"):
        Learned(shape).embed(torch.zeros(1, 2, 8), torch.tensor([[3, 16]]))


def test_vectors_before_the_offset_are_unused(shape: Shape) -> None:
    position = Learned(shape, offset=2)
    assert position.table.num_embeddings == 18
    assert position.position_limit() == 16
    positions = torch.tensor([[-3, 0, 1, 15]])
    actual = position.embed(torch.zeros(1, 4, 8), positions)
    assert torch.equal(actual[0], position.table.weight[[2, 2, 3, 17]])
    actual.sum().backward()
    assert position.table.weight.grad is not None
    assert position.table.weight.grad.sum(-1).tolist() == [0, 0, 16, 8] + [0] * 13 + [8]
    with raises_problem(DataError, "position-out-of-range", "16"):
        position.embed(torch.zeros(1, 1, 8), torch.tensor([[16]]))


def test_matches_roberta(shape: Shape) -> None:
    modeling = pytest.importorskip("transformers.models.roberta.modeling_roberta")
    tokens = torch.tensor([[7, 5, 9, 1, 1], [4, 4, 4, 4, 4]])  # 1 is padding
    reference = modeling.RobertaEmbeddings.create_position_ids_from_input_ids(tokens, 1)
    position = Learned(shape, offset=2)
    actual = position.embed(torch.zeros(2, 5, 8), torch.arange(5).unsqueeze(0))
    expected = position.table(reference)
    assert torch.equal(actual[tokens != 1], expected[tokens != 1])


@pytest.mark.thorough
def test_it_compiles_to_one_graph_without_a_clamp(shape: Shape) -> None:
    position = Learned(shape)
    compiled = torch.compile(position.embed, fullgraph=True, backend="aot_eager")
    x, near, far = torch.zeros(1, 2, 8), torch.tensor([[3, 15]]), torch.tensor([[3, 16]])
    assert torch.equal(compiled(x, near), position.embed(x, near))
    with pytest.raises(IndexError, match="out of range"):
        compiled(x, far)

"""Factorised embedding: sums at the table width, projections for each stack."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from paribus import Load, Shape, Stream
from paribus.assembly.build import ModelParts, build
from paribus.assembly.cost import count_parameters, model_cost
from paribus.kernels import KERNELS
from paribus.registry import Registry, installed
from paribus.slots.tokenizer import Vocabulary
from paribus.specs import resolved
from paribus_embedding.factorised_table import FactorisedTable
from paribus_embedding.token_table import TokenTable
from paribus_norm.layer_norm import LayerNorm

TOKENS = torch.tensor([[3, 1, 4], [1, 5, 0]])
SEGMENTS = torch.tensor([[0, 1, 1], [0, 0, 1]])
WIDE = Shape(width=6, heads=2, head_width=3, length=8, vocabulary=11, layers=2)
E, D, V = 4, 6, 11


def norm(width: int | None = None) -> LayerNorm:
    return LayerNorm(width or D).double()


def table(width: int = E, **options: Any) -> FactorisedTable:
    return FactorisedTable(WIDE, norm, width=width, **options).double()


def without_positions(x: Tensor, positions: Tensor) -> Tensor:
    return x


def test_embeddings_are_projected_last() -> None:
    embedding = table(segments=2, normed=True)
    part = embedding.stack_part(WIDE, norm)
    assert part is not None
    part.double()

    def place(x: Tensor, positions: Tensor) -> Tensor:
        return x * 2 + positions.unsqueeze(-1) * torch.arange(E)

    x = embedding.tokens.weight[TOKENS] + embedding.segments.weight[SEGMENTS]  # type: ignore[union-attr]  # it was asked for
    normalised = norm(E)(place(x, torch.arange(3).unsqueeze(0)))
    expected = normalised @ part["project"].weight.T + part["project"].bias
    actual = embedding(Stream(TOKENS, segments=SEGMENTS), 0, place, part)[0]
    torch.testing.assert_close(actual, expected)
    assert actual.shape == (2, 3, D)


def test_each_stack_has_a_projection_unless_it_has_the_table_width() -> None:
    embedding = table()
    wider = embedding.stack_part(Shape(width=10, heads=2, head_width=5, length=8, vocabulary=V, layers=1), norm)
    assert wider is not None
    assert wider["project"].weight.shape == (10, E)
    same = table(D)
    assert same.stack_part(WIDE, norm) is None
    assert same(Stream(TOKENS), 0, without_positions, None)[0].shape == (2, 3, D)


def test_with_the_model_width_the_table_equals_a_token_table() -> None:
    embedding, plain = table(D, segments=2), TokenTable(WIDE, norm, segments=2).double()
    plain.load_state_dict(embedding.state_dict())
    stream, h = Stream(TOKENS, segments=SEGMENTS), torch.randn(2, D, dtype=torch.float64)
    assert torch.equal(embedding(stream, 0, without_positions, None)[0], plain(stream, 0, without_positions, None)[0])
    assert torch.equal(embedding.unembed(h), plain.unembed(h))


@pytest.mark.parametrize("tie", [True, False])
def test_scores_are_computed_at_the_table_width(tie: bool) -> None:
    embedding = table(tie=tie)
    h, bias = torch.randn(5, E, dtype=torch.float64), torch.randn(V, dtype=torch.float64)
    weight = embedding.tokens.weight if embedding.head is None else embedding.head.weight
    torch.testing.assert_close(embedding.unembed(h, bias), h @ weight.T + bias)
    assert (embedding.head is None) == tie


def test_dropout_comes_before_the_projection() -> None:
    shape = Shape(width=D, heads=2, head_width=3, length=8, vocabulary=V, layers=2, dropout=0.5)
    embedding = FactorisedTable(shape, norm, width=E).double()
    still = embedding.eval()(Stream(TOKENS), 0, without_positions, None)[0]
    dropped = embedding.train()(Stream(TOKENS), 0, without_positions, None)[0]
    not_dropped = dropped != 0
    assert 0 < int(not_dropped.sum()) < not_dropped.numel()
    torch.testing.assert_close(dropped[not_dropped], still[not_dropped] * 2)


def test_cost_matches_the_torch_flop_counter() -> None:
    embedding = table().to("meta")
    part = embedding.stack_part(WIDE, norm)
    assert part is not None
    part.double().to("meta")
    with FlopCounterMode(display=False) as counter:
        embedding(Stream(TOKENS.to("meta")), 0, without_positions, part)
        embedding.unembed(torch.empty(5, E, device="meta", dtype=torch.float64))
    load = Load(queries=6, keys=6, head_positions=5)
    assert embedding.cost(load).flops + embedding.stack_part_cost(WIDE, load).flops == counter.get_total_flops()
    assert embedding.stack_part_cost(Shape(E, 2, 2, 8, V, 1), load).flops == 0


def test_every_matrix_has_a_role() -> None:
    every = table(segments=2, languages=3, tie=False)
    matrices = {name for name, parameter in every.named_parameters() if parameter.ndim == 2}
    assert matrices == FactorisedTable.roles.keys()


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed(no_plugins=True)


@pytest.mark.parametrize(
    ("preset", "objective"), [("encoder-tiny", "mlm"), ("gpt-tiny", "clm"), ("seq2seq-tiny", "span-corruption")]
)
def test_a_model_has_a_narrow_table_and_a_projection_for_each_stack(
    preset: str, objective: str, registry: Registry
) -> None:
    common = ["position=learned", "dims.vocabulary=300", "dims.length=64"]
    plain = build_parts(registry, preset, *common)
    model = build_parts(registry, preset, *common, "embedding={name: factorised, width: 8}")
    assert model.topology.embedding.width == 8
    stacks = [part.path for part in model.topology.parts]
    padding_length = (64 - 8) * (300 + 64 * len(stacks))  # smaller token table and position tables
    gained = len(stacks) * (8 * 64 + 64)
    head = {"mlm": 56 * 64 + 56 + 2 * 56, "clm": -8 * 64, "span-corruption": -8 * 64}[objective]
    assert count_parameters(plain.children()) - count_parameters(model.children()) == padding_length - gained + head


def test_the_declared_cost_of_a_model_is_correct(registry: Registry) -> None:
    model = build_parts(registry, "gpt-tiny", "embedding={name: factorised, width: 8}", "dims.vocabulary=300")
    line = next(line for line in model_cost(model, 16).lines if line.path == "embedding")
    assert line.flops == 2 * 16 * 8 * (300 + 64)
    assert line.parameters == 300 * 8 + 8 * 64 + 64


def build_parts(registry: Registry, preset: str, *overrides: str) -> ModelParts:
    spec = resolved(preset, *overrides, registry=registry)
    specials = {name: place for place, name in enumerate(("pad", "cls", "sep", "mask", "bos", "eos"))}
    return build(spec, registry, Vocabulary(300, specials, tuple(range(268, 300))), KERNELS)


@torch.no_grad()
def test_a_soft_cap_limits_scores_before_the_bias() -> None:
    embedding, h, bias = table(soft_cap=3.0), 4 * torch.randn(2, E).double(), torch.randn(V).double()
    expected = 3 * torch.tanh(h @ embedding.tokens.weight.T / 3) + bias
    torch.testing.assert_close(embedding.unembed(h, bias), expected, rtol=0, atol=1e-12)

"""The small models of the kit, and how their outputs are held against each other."""

import math

import pytest
import torch

from paribus.registry import Registry
from paribus.specs import resolved
from paribus.testing.host_models import Case, HostModel, base_specs, host_models
from paribus.testing.small_model import (
    SIZE,
    VOCABULARY,
    SmallModel,
    max_difference,
    noise,
    relative_change,
    replace_tokens,
    tokens,
)


def cell_of(components: Registry, preset: str) -> HostModel:
    case = Case(components, components.index.find("attention", "mha"), base_specs(None, components))
    return next(cell for cell in host_models(case) if cell.label == preset)


def test_a_shaken_model_is_off_its_first_values_and_always_the_same(components: Registry) -> None:
    spec = cell_of(components, "gpt-tiny").spec
    shaken, again, still = (SmallModel(spec, components, perturbed=value) for value in (True, True, False))
    for path, parameter in shaken.topology.named_parameters():
        assert parameter.dtype == torch.float64
        assert torch.equal(parameter, again.topology.get_parameter(path))
        assert not torch.equal(parameter, still.topology.get_parameter(path))
    assert not shaken.topology.training


@pytest.mark.parametrize("preset", ["gpt-tiny", "seq2seq-tiny"])
def test_one_chunk_is_one_pass(preset: str, components: Registry) -> None:
    made = SmallModel(cell_of(components, preset).spec, components)
    rows = tokens(2, 7)
    assert max_difference(made.decode_chunks(rows, [7]), made.hidden(rows, source=tokens(2, 6, "source"))) < 1e-12


def test_only_a_body_that_crosses_reads_a_source(components: Registry) -> None:
    rows = tokens(1, 4)
    for preset, reads in (("gpt-tiny", False), ("seq2seq-tiny", True)):
        made = SmallModel(cell_of(components, preset).spec, components)
        with torch.no_grad():
            by = max_difference(made.hidden(rows), made.hidden(rows, source=tokens(1, 6, "another")))
        assert (by > 0) == reads


def test_rows_are_scored_whatever_the_width_of_the_table(components: Registry) -> None:
    spec = cell_of(components, "gpt-tiny").spec
    for embedding in ({"name": "tokens"}, {"name": "factorised", "width": 7}):
        made = SmallModel(resolved({**spec, "embedding": embedding}, registry=components), components)
        assert made.scores(made.hidden(tokens(2, 5))).shape == (2, 5, SIZE)


def test_tokens_are_those_of_text_and_begin_alike_at_any_length() -> None:
    short, long = tokens(3, 5), tokens(4, 9)
    assert torch.equal(long[:3, :5], short)
    assert set(long.flatten().tolist()).isdisjoint(VOCABULARY.reserved)
    assert int(long.max()) < SIZE
    changed = replace_tokens(long)
    assert not (changed == long).any()
    assert set(changed.flatten().tolist()).isdisjoint(VOCABULARY.reserved)


def test_noise_goes_by_its_name() -> None:
    assert torch.equal(noise("a", 3, 2), noise("a", 3, 2))
    assert not torch.equal(noise("a", 3), noise("b", 3))


def test_a_difference_is_told_row_by_row_and_as_a_share_of_what_is_large() -> None:
    one, two = torch.zeros(2, 3), torch.zeros(2, 3)
    two[1, 2] = 0.5
    assert relative_change(one, two).tolist() == [0.0, 0.5]
    assert max_difference(one * 1000 + 1000, one * 1000 + 999) == pytest.approx(0.001)
    assert max_difference(one, one) == 0
    assert math.isinf(max_difference(one, two * math.nan))
    assert max_difference(torch.zeros(0, 3), torch.zeros(0, 3)) == 0


def test_an_image_is_read_whole_and_its_rows_are_scored_against_nothing(components: Registry) -> None:
    case = Case(components, components.index.find("embedding", "patches"), base_specs(None, components))
    made = case.small_model(next(host_models(case)))
    rows = made.tokens(2, 5)
    assert made.has_fixed_length
    assert rows.shape == (2, 16 * 16)
    hidden = made.hidden(rows)
    assert hidden.shape == (2, 17, 16)
    assert made.scores(hidden) is hidden
    text = SmallModel(cell_of(components, "gpt-tiny").spec, components)
    assert not text.has_fixed_length
    assert torch.equal(text.tokens(2, 5), tokens(2, 5))
    assert text.scores(text.hidden(tokens(2, 5))).shape == (2, 5, SIZE)

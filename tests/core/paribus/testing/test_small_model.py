"""Small models of the conformance checks, and comparison of their outputs."""

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


def host_of(components: Registry, preset: str) -> HostModel:
    case = Case(components, components.index.find("attention", "mha"), base_specs(None, components))
    return next(host for host in host_models(case) if host.label == preset)


def test_perturbed_model_is_reproducible_and_differs_from_its_initial_weights(components: Registry) -> None:
    spec = host_of(components, "gpt-tiny").spec
    perturbed, second, unperturbed = (SmallModel(spec, components, perturbed=value) for value in (True, True, False))
    for path, parameter in perturbed.topology.named_parameters():
        assert parameter.dtype == torch.float64
        assert torch.equal(parameter, second.topology.get_parameter(path))
        assert not torch.equal(parameter, unperturbed.topology.get_parameter(path))
    assert not perturbed.topology.training


@pytest.mark.parametrize("preset", ["gpt-tiny", "seq2seq-tiny"])
def test_decoding_in_one_chunk_equals_one_pass(preset: str, components: Registry) -> None:
    model = SmallModel(host_of(components, preset).spec, components)
    token_ids = tokens(2, 7)
    assert (
        max_difference(model.decode_chunks(token_ids, [7]), model.hidden(token_ids, source=tokens(2, 6, "source")))
        < 1e-12
    )


def test_only_a_body_with_cross_attention_reads_a_source(components: Registry) -> None:
    token_ids = tokens(1, 4)
    for preset, reads_source in (("gpt-tiny", False), ("seq2seq-tiny", True)):
        model = SmallModel(host_of(components, preset).spec, components)
        with torch.no_grad():
            difference = max_difference(
                model.hidden(token_ids), model.hidden(token_ids, source=tokens(1, 6, "another"))
            )
        assert (difference > 0) == reads_source


def test_scores_work_for_any_embedding_width(components: Registry) -> None:
    spec = host_of(components, "gpt-tiny").spec
    for embedding in ({"name": "tokens"}, {"name": "factorised", "width": 7}):
        model = SmallModel(resolved({**spec, "embedding": embedding}, registry=components), components)
        assert model.scores(model.hidden(tokens(2, 5))).shape == (2, 5, SIZE)


def test_tokens_are_text_and_a_shorter_sequence_is_a_prefix() -> None:
    short, long = tokens(3, 5), tokens(4, 9)
    assert torch.equal(long[:3, :5], short)
    assert set(long.flatten().tolist()).isdisjoint(VOCABULARY.reserved)
    assert int(long.max()) < SIZE
    changed = replace_tokens(long)
    assert not (changed == long).any()
    assert set(changed.flatten().tolist()).isdisjoint(VOCABULARY.reserved)


def test_noise_depends_on_its_name() -> None:
    assert torch.equal(noise("a", 3, 2), noise("a", 3, 2))
    assert not torch.equal(noise("a", 3), noise("b", 3))


def test_difference_is_relative_and_per_token() -> None:
    a, b = torch.zeros(2, 3), torch.zeros(2, 3)
    b[1, 2] = 0.5
    assert relative_change(a, b).tolist() == [0.0, 0.5]
    assert max_difference(a * 1000 + 1000, a * 1000 + 999) == pytest.approx(0.001)
    assert max_difference(a, a) == 0
    assert math.isinf(max_difference(a, b * math.nan))
    assert max_difference(torch.zeros(0, 3), torch.zeros(0, 3)) == 0


def test_image_model_has_a_fixed_length_and_no_vocabulary(components: Registry) -> None:
    case = Case(components, components.index.find("embedding", "patches"), base_specs(None, components))
    model = case.small_model(next(host_models(case)))
    token_ids = model.tokens(2, 5)
    assert model.has_fixed_length
    assert token_ids.shape == (2, 16 * 16)
    hidden = model.hidden(token_ids)
    assert hidden.shape == (2, 17, 16)
    assert model.scores(hidden) is hidden
    text = SmallModel(host_of(components, "gpt-tiny").spec, components)
    assert not text.has_fixed_length
    assert torch.equal(text.tokens(2, 5), tokens(2, 5))
    assert text.scores(text.hidden(tokens(2, 5))).shape == (2, 5, SIZE)

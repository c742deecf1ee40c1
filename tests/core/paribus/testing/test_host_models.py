"""Which models a component is put into."""

from collections.abc import Callable
from typing import Any

import pytest

from paribus import SOFTMAX_TRAITS
from paribus.registry import Registry
from paribus.testing.host_models import PRESETS, Case, HostModel, base_specs, host_models


def tried(components: Registry, slot: str, name: str) -> dict[str, HostModel]:
    case = Case(components, components.index.find(slot, name), base_specs(None, components))
    return {cell.label: cell for cell in host_models(case)}


def test_an_attention_meets_one_position_of_each_kind_where_there_is_one_stack(components: Registry) -> None:
    found = tried(components, "attention", "mha")
    assert [cell.label for cell in found.values() if cell.is_preset] == list(PRESETS)
    beside = [said.partition(", ")[2] for said in found if said.startswith("gpt-tiny, ")]
    assert {"position=none", "position=alibi", "position=rope"} <= set(beside)
    assert "position=learned" not in beside  # it is the preset's own
    assert not any(said.startswith("seq2seq-tiny, ") for said in found)


def test_every_model_has_the_component_and_is_small(components: Registry) -> None:
    for cell in tried(components, "norm", "rmsnorm").values():
        assert cell.spec["norm"]["name"] == "rmsnorm"
        assert cell.spec["dims"]["width"] == 16
        assert cell.spec["dims"]["vocabulary"] is None


def test_an_attention_without_a_memory_leaves_the_cross_attention_as_it_was(components: Registry) -> None:
    spec: Any = tried(components, "attention", "restricted")["seq2seq-tiny"].spec
    assert spec["attention"] == {**spec["attention"], "name": "restricted", "window": 8}
    assert spec["parts"]["decoder"]["cross"]["attention"]["name"] == "mha"


def test_an_attention_that_asks_a_position_for_nothing_is_tried_without_one_that_turns_queries(
    components: Registry,
) -> None:
    found = tried(components, "attention", "uniform")
    assert [cell.label for cell in found.values() if cell.is_preset] == list(PRESETS)
    assert found["encoder-tiny"].spec["position"]["name"] == "none"
    assert found["gpt-tiny"].spec["position"]["name"] == "learned"  # the preset's own, which adds to rows


def test_an_attention_that_sees_both_sides_stands_in_the_encoder_and_before_the_memory_alone(
    components: Registry, attention: Callable[..., Any]
) -> None:
    both = attention(traits={**SOFTMAX_TRAITS, "causal": False})
    found = tried(components.with_components(attention={"both": both}), "attention", "both")
    assert "gpt-tiny" not in found
    spec: Any = found["seq2seq-tiny"].spec
    decoder = spec["parts"]["decoder"]
    assert spec["attention"]["name"] == decoder["cross"]["attention"]["name"] == "both"
    assert decoder["attention"]["name"] == "mha"


@pytest.mark.parametrize(("name", "models"), [("mlm", {"encoder-tiny"}), ("span-corruption", {"seq2seq-tiny"})])
def test_a_model_that_a_rule_refuses_is_left_out_and_the_reason_kept(
    name: str, models: set[str], components: Registry
) -> None:
    case = Case(components, components.index.find("objective", name), base_specs(None, components))
    assert {cell.label for cell in host_models(case)} == models
    assert len(case.rejections) == len(PRESETS) - len(models)
    assert any(f"objective `{name}`" in refusal for refusal in case.rejections)


def test_a_model_is_built_once(components: Registry) -> None:
    case = Case(components, components.index.find("norm", "none"), base_specs(None, components))
    cell = next(host_models(case))
    assert case.small_model(cell) is case.small_model(cell)


def test_traits_are_asked_of_every_attention_of_a_model(components: Registry) -> None:
    case = Case(components, components.index.find("attention", "restricted"), base_specs(None, components))
    whole = {cell.label: cell for cell in host_models(case)}["seq2seq-tiny"]
    assert case.all_attentions_declare(whole, "documents")
    assert not case.all_attentions_declare(whole, "cross")  # that of the decoder's own rows cannot


@pytest.mark.parametrize(
    ("slot", "name", "model"),
    [
        ("embedding", "patches", "vit-tiny"),
        ("objective", "image-classify", "vit-tiny"),
        ("tokenizer", "pixels", "vit-tiny"),
        ("corpus", "shapes", "vit-tiny"),
        ("corpus", "digits", "vit-digits"),
    ],
)
def test_what_no_model_of_text_takes_is_tried_in_one_of_images(
    slot: str, name: str, model: str, components: Registry
) -> None:
    assert list(tried(components, slot, name)) == [model]


def test_what_a_model_of_text_takes_is_not_tried_on_images(components: Registry) -> None:
    assert {said for said in tried(components, "feedforward", "mlp") if "=" not in said} == set(PRESETS)


def test_each_choice_of_an_option_and_two_of_each_number_are_tried_where_rows_see_the_past(
    components: Registry,
) -> None:
    found = [said for said in tried(components, "attention", "gqa") if "kv_heads=" in said]
    assert found == ["gpt-tiny, kv_heads=4", "gpt-tiny, kv_heads=1"]
    scaled = [said for said in tried(components, "position", "rope") if ", " in said and "=" in said]
    assert {"gpt-tiny, interleaved=True", "gpt-tiny, theta=20000.0"} <= set(scaled)


def test_the_authors_spec_has_the_last_word_on_options(components: Registry) -> None:
    base = {"preset": "gpt-tiny", "attention": {"name": "gqa", "kv_heads": 1}}
    case = Case(components, components.index.find("attention", "gqa"), base_specs(base, components))
    assert all(cell.spec["attention"]["kv_heads"] == 1 for cell in host_models(case) if "kv_heads" not in cell.label)

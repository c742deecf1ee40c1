"""Models that a component is tested in."""

from collections.abc import Callable
from typing import Any

import pytest

from paribus import SOFTMAX_TRAITS
from paribus.registry import Registry
from paribus.testing.host_models import PRESETS, Case, HostModel, base_specs, host_models


def models_of(components: Registry, slot: str, name: str) -> dict[str, HostModel]:
    case = Case(components, components.index.find(slot, name), base_specs(None, components))
    return {host.label: host for host in host_models(case)}


def test_attention_is_tested_with_each_kind_of_position(components: Registry) -> None:
    models = models_of(components, "attention", "mha")
    assert [host.label for host in models.values() if host.is_preset] == list(PRESETS)
    neighbours = [label.partition(", ")[2] for label in models if label.startswith("gpt-tiny, ")]
    assert {"position=none", "position=alibi", "position=rope"} <= set(neighbours)
    assert "position=learned" not in neighbours  # the preset has it
    assert not any(label.startswith("seq2seq-tiny, ") for label in models)


def test_every_model_contains_the_component_and_is_small(components: Registry) -> None:
    for host in models_of(components, "norm", "rmsnorm").values():
        assert host.spec["norm"]["name"] == "rmsnorm"
        assert host.spec["dims"]["width"] == 16
        assert host.spec["dims"]["vocabulary"] is None


def test_self_attention_keeps_the_cross_attention_of_the_preset(components: Registry) -> None:
    spec: Any = models_of(components, "attention", "restricted")["seq2seq-tiny"].spec
    assert spec["attention"] == {**spec["attention"], "name": "restricted", "window": 8}
    assert spec["parts"]["decoder"]["cross"]["attention"]["name"] == "mha"


def test_attention_without_position_hooks_drops_rotary_positions(
    components: Registry,
) -> None:
    models = models_of(components, "attention", "uniform")
    assert [host.label for host in models.values() if host.is_preset] == list(PRESETS)
    assert models["encoder-tiny"].spec["position"]["name"] == "none"
    assert models["gpt-tiny"].spec["position"]["name"] == "learned"  # of the preset: it adds to the input


def test_bidirectional_attention_is_used_in_encoder_and_cross_attention(
    components: Registry, attention: Callable[..., Any]
) -> None:
    bidirectional = attention(traits={**SOFTMAX_TRAITS, "causal": False})
    models = models_of(
        components.with_components(attention={"bidirectional": bidirectional}), "attention", "bidirectional"
    )
    assert "gpt-tiny" not in models
    spec: Any = models["seq2seq-tiny"].spec
    decoder = spec["parts"]["decoder"]
    assert spec["attention"]["name"] == decoder["cross"]["attention"]["name"] == "bidirectional"
    assert decoder["attention"]["name"] == "mha"


def test_causal_attention_is_used_in_decoders_only(components: Registry, attention: Callable[..., Any]) -> None:
    always_causal = attention(traits={**SOFTMAX_TRAITS, "bidirectional": False, "cross": False})
    models = models_of(
        components.with_components(attention={"always-causal": always_causal}), "attention", "always-causal"
    )
    assert "gpt-tiny" in models
    assert "encoder-tiny" not in models
    spec: Any = models["seq2seq-tiny"].spec
    assert spec["parts"]["encoder"]["attention"]["name"] == "mha"
    assert spec["attention"]["name"] == "always-causal"


@pytest.mark.parametrize(("name", "model_names"), [("mlm", {"encoder-tiny"}), ("span-corruption", {"seq2seq-tiny"})])
def test_models_that_a_rule_rejects_are_skipped_with_the_reason(
    name: str, model_names: set[str], components: Registry
) -> None:
    case = Case(components, components.index.find("objective", name), base_specs(None, components))
    assert {host.label for host in host_models(case)} == model_names
    assert len(case.rejections) == len(PRESETS) - len(model_names)
    assert any(f"objective `{name}`" in rejection for rejection in case.rejections)


def test_model_is_built_once(components: Registry) -> None:
    case = Case(components, components.index.find("norm", "none"), base_specs(None, components))
    host = next(host_models(case))
    assert case.small_model(host) is case.small_model(host)


def test_trait_must_be_declared_by_every_attention_of_a_model(components: Registry) -> None:
    case = Case(components, components.index.find("attention", "restricted"), base_specs(None, components))
    host = {host.label: host for host in host_models(case)}["seq2seq-tiny"]
    assert case.all_attentions_declare(host, "documents")
    assert not case.all_attentions_declare(host, "cross")  # the self-attention of the decoder does not


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
def test_image_components_are_tested_in_image_models(slot: str, name: str, model: str, components: Registry) -> None:
    assert list(models_of(components, slot, name)) == [model]


@pytest.mark.thorough
def test_text_components_are_not_tested_in_image_models(components: Registry) -> None:
    assert {label for label in models_of(components, "feedforward", "mlp") if "=" not in label} == set(PRESETS)


def test_other_option_values_are_tested_in_the_causal_model(
    components: Registry,
) -> None:
    labels = [label for label in models_of(components, "attention", "gqa") if "kv_heads=" in label]
    assert labels == ["gpt-tiny, kv_heads=4", "gpt-tiny, kv_heads=1"]
    labels = [label for label in models_of(components, "position", "rope") if ", " in label and "=" in label]
    assert {"gpt-tiny, interleaved=True", "gpt-tiny, theta=20000.0"} <= set(labels)


def test_options_of_the_given_spec_are_kept(components: Registry) -> None:
    base = {"preset": "gpt-tiny", "attention": {"name": "gqa", "kv_heads": 1}}
    case = Case(components, components.index.find("attention", "gqa"), base_specs(base, components))
    assert all(host.spec["attention"]["kv_heads"] == 1 for host in host_models(case) if "kv_heads" not in host.label)

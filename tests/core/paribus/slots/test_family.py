"""Model families: configuration keys that are read, rejected or unread, and encoders that differ from their decoder."""

from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus import Config, Key, SpecError
from paribus.conversion.api import families
from paribus.registry import installed

WIDTH = Key("hidden_size", "dims.width", 768)


@pytest.mark.parametrize(
    ("family", "architecture", "config", "code", "values"),
    [
        (
            "bert",
            "BertForMaskedLM",
            {"position_embedding_type": "relative_key"},
            "unsupported-option",
            ("position_embedding_type",),
        ),
        (
            "big_bird",
            "BigBirdForMaskedLM",
            {"attention_type": "block_sparse"},
            "unsupported-option",
            ("704",),
        ),
        (
            "m2m_100",
            "M2M100ForConditionalGeneration",
            {"encoder_layerdrop": 0.05},
            "unsupported-option",
            ("encoder_layerdrop", "0.05"),
        ),
        (
            "bart",
            "BartForConditionalGeneration",
            {"normalize_before": True},
            "unsupported-option",
            ("normalize_before",),
        ),
        ("bart", "BartForConditionalGeneration", {"attention_dropout": 0.2}, "unsupported-option", ("dropout",)),
        ("bart", "BartModel", {}, "unknown-architecture", ("BartModel", "bart")),
    ],
)
def test_an_unsupported_option_is_refused(
    family: str, architecture: str, config: dict[str, Any], code: str, values: tuple[str, ...]
) -> None:
    with raises_problem(SpecError, code, *values):
        families(installed())[family].spec_of(config, architecture)


def test_old_options_are_read_but_not_exported() -> None:
    bart = families(installed())["bart"]
    old_options = {"normalize_before": False, "add_final_layer_norm": False, "attention_dropout": 0.1}
    spec = bart.spec_of(old_options, "BartForConditionalGeneration")
    spec.setdefault("parts", {})
    assert bart.legacy.keys().isdisjoint(bart.config_of(spec, "BartForConditionalGeneration"))


def test_an_encoder_that_differs_from_its_decoder_becomes_a_part() -> None:
    config = {"attention_dropout": 0.1, "encoder_layers": 3, "encoder_attention_heads": 16, "encoder_ffn_dim": 48}
    spec = families(installed())["bart"].spec_of(config, "BartForConditionalGeneration")
    inner = {"name": "mlp", "activation": "gelu", "inner": 48}
    assert spec["parts"] == {"encoder": {"dims": {"layers": 3}, "feedforward": inner}}


def test_a_key_sets_the_matching_key_of_the_spec() -> None:
    spec: dict[str, object] = {"norm": {"name": "layernorm"}}
    config = Config({"hidden_size": 12, "act": "gelu_new", "rows": 20}, "x")
    config.read_key(spec, WIDTH)
    config.read_key(spec, Key("act", "feedforward.activation", "gelu", {"gelu_new": "gelu-tanh"}))
    config.read_key(spec, Key("rows", "dims.length", 2, read=lambda rows: rows - 2))
    config.read_key(spec, Key("eps", "norm.eps", 1e-5))
    config.raise_problems()
    assert spec == {
        "norm": {"name": "layernorm", "eps": 1e-5},
        "dims": {"width": 12, "length": 18},
        "feedforward": {"activation": "gelu-tanh"},
    }


def test_every_unread_key_is_reported() -> None:
    config = Config({"hidden_size": 12, "secret": True, "other": 1, "use_cache": False}, "x")
    config.read_key({}, WIDTH)
    with raises_problem(SpecError, "unknown-option", "other") as wrong:
        config.raise_problems()
    assert [problem.path for problem in wrong.value.problems] == ["other", "secret"]
    assert "unknown option of the family `x`" in str(wrong.value)


def test_two_keys_of_one_option_must_agree() -> None:
    spec: dict[str, object] = {}
    config = Config({"one": 0.1, "two": 0.2}, "x")
    for name in ("one", "two"):
        config.read_key(spec, Key(name, "dropout", 0.0))
    with raises_problem(SpecError, "unsupported-option", "two", "0.2", "one", "0.1", "dropout"):
        config.raise_problems()


def test_an_unsupported_value_is_refused_with_the_valid_values() -> None:
    config = Config({"act": "laplace", "relative": True}, "x")
    config.read_key({}, Key("act", "feedforward.activation", "gelu", {"gelu": "gelu", "relu": "relu"}))
    config.require("relative", False)
    with raises_problem(SpecError, "unsupported-option", "act", "laplace", "gelu, relu") as caught:
        config.raise_problems()
    assert [(problem.path, problem.valid) for problem in caught.value.problems][1:] == [("relative", "False")]

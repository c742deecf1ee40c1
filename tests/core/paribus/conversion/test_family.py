"""Hugging Face options that no component supports, old options, and encoders that differ from their decoder."""

from typing import Any

import pytest

from paribus import SpecError
from paribus.conversion.api import families
from paribus.registry import installed


@pytest.mark.parametrize(
    ("family", "architecture", "config", "message"),
    [
        ("bert", "BertForMaskedLM", {"position_embedding_type": "relative_key"}, "`position_embedding_type` is 'rel"),
        (
            "big_bird",
            "BigBirdForMaskedLM",
            {"attention_type": "block_sparse"},
            "for each head .*up to 704 tokens",
        ),
        ("m2m_100", "M2M100ForConditionalGeneration", {"encoder_layerdrop": 0.05}, "`encoder_layerdrop` is 0.05"),
        ("bart", "BartForConditionalGeneration", {"normalize_before": True}, "`normalize_before` is True"),
        ("bart", "BartForConditionalGeneration", {"attention_dropout": 0.2}, "but `dropout` has one value"),
        ("bart", "BartModel", {}, r"`BartModel` is an unknown class of the family `bart`"),
    ],
)
def test_an_unsupported_option_is_refused(family: str, architecture: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        families(installed())[family].spec_of(config, architecture)


def test_old_options_are_read_but_not_exported() -> None:
    bart = families(installed())["bart"]
    old_options = {"normalize_before": False, "add_final_layer_norm": False, "attention_dropout": 0.1}
    spec = bart.spec_of(old_options, "BartForConditionalGeneration")
    spec.setdefault("parts", {})
    assert bart.former.keys().isdisjoint(bart.config_of(spec, "BartForConditionalGeneration"))


def test_an_encoder_that_differs_from_its_decoder_becomes_a_part() -> None:
    config = {"attention_dropout": 0.1, "encoder_layers": 3, "encoder_attention_heads": 16, "encoder_ffn_dim": 48}
    spec = families(installed())["bart"].spec_of(config, "BartForConditionalGeneration")
    inner = {"name": "mlp", "activation": "gelu", "inner": 48}
    assert spec["parts"] == {"encoder": {"dims": {"layers": 3}, "feedforward": inner}}

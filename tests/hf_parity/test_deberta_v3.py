"""Parity of DeBERTa v3's generator and discriminator with transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.hf_parity.cases import LENGTH, SPECIALS, VOCABULARY
from torch import nn

import paribus
from paribus import Stream
from paribus.assembly.forward_pass import BatchForward
from paribus.models.assemble import build_model
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch
from paribus.registry import Registry
from paribus.slots.tokenizer import Vocabulary
from paribus.specs import resolved

transformers = pytest.importorskip("transformers")

SIZES = {
    **SPECIALS, "vocab_size": VOCABULARY, "max_position_embeddings": LENGTH, "hidden_size": 36, "intermediate_size": 31,
    "num_attention_heads": 3, "type_vocab_size": 0, "relative_attention": True, "position_buckets": 4,
    "max_relative_positions": 9, "share_att_key": True, "norm_rel_ebd": "layer_norm", "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}  # fmt: skip
TOKENS = torch.randint(7, VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(1))


def hf_deberta(layers: int, randomise: Callable[[nn.Module], nn.Module]) -> Any:
    config = transformers.DebertaV2Config(**SIZES, num_hidden_layers=layers)
    return randomise(transformers.DebertaV2ForMaskedLM(config))


@pytest.fixture
def model(components: Registry) -> Model:
    spec = resolved(
        "deberta-v3-tiny", f"dims={{width: 36, heads: 3, layers: 2, length: {LENGTH}, vocabulary: {VOCABULARY}}}",
        "position={distance: 9, buckets: 4}", "feedforward.inner=31", registry=components,
    )  # fmt: skip
    return build_model(spec, components, Vocabulary(VOCABULARY, {"mask": 1})).double().eval()


@pytest.mark.thorough
def test_both_networks_match_and_the_body_reads_the_sum_of_two_tables(
    model: Model, randomise: Callable[[nn.Module], nn.Module]
) -> None:
    body, generator = hf_deberta(2, randomise), hf_deberta(1, randomise)
    with torch.no_grad():
        body.deberta.embeddings.word_embeddings.weight.add_(torch.linspace(-1, 1, VOCABULARY * 36).view(-1, 36))
    converted = {"body": paribus.convert(body), "generator": paribus.convert(generator)}
    table, body_table = (converted[part].get_parameter("embedding.tokens.weight") for part in ("generator", "body"))
    with torch.no_grad():
        model.get_parameter("embedding.tokens.weight").copy_(table)
        model.get_parameter("offsets.tokens_weight").copy_(body_table - table)
        for part, converted_model in converted.items():
            for name, tensor in converted_model.named_parameters():
                if name.startswith("body."):
                    model.get_parameter(name.replace("body.", f"{part}.")).copy_(tensor)
        run = BatchForward(
            model.topology, Batch({"body": Stream(TOKENS), "generator": Stream(TOKENS)}, {}, torch.arange(3))
        )
        for part, hf_model in (("body", body), ("generator", generator)):
            expected = hf_model.deberta(TOKENS).last_hidden_state
            torch.testing.assert_close(run.output(part).hidden, expected, rtol=0, atol=1e-9)

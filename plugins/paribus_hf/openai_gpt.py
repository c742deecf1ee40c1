"""GPT-1 of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, final

from paribus import Architecture, Family, Key, Move
from paribus_hf.bodies import turned_layers

ACTIVATIONS: Final[Mapping[str, str]] = {"gelu": "gelu-tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
"""Here alone, "gelu" has always meant its approximation by tanh."""


@final
class OpenAIGpt(Family):
    """ "Improving Language Understanding by Generative Pre-Training" (Radford et al. 2018): post-norm."""

    kind = "openai-gpt"
    architectures: ClassVar[Mapping[str, Architecture]] = {
        "OpenAIGPTLMHeadModel": Architecture(),
        "OpenAIGPTModel": Architecture(prefix="transformer."),
    }
    spec: ClassVar[Mapping[str, Any]] = {
        "preset": "gpt2",
        "topology": "decoder",
        "embedding": {"name": "tokens"},
        "attention": {"name": "mha"},
        "position": "learned",
        "norm": {"name": "layernorm"},
        "placement": "post",
        "feedforward": {"name": "mlp"},
        "objective": {"name": "clm", "bias": False},
    }
    keys: ClassVar[tuple[Key, ...]] = (
        Key("vocab_size", "dims.vocabulary", 40478),
        Key("n_positions", "dims.length", 512),
        Key("n_embd", "dims.width", 768),
        Key("n_layer", "dims.layers", 12),
        Key("n_head", "dims.heads", 12),
        Key("afn", "feedforward.activation", "gelu", ACTIVATIONS),
        Key("resid_pdrop", "dropout", 0.1),
        Key("embd_pdrop", "dropout", 0.1),
        Key("attn_pdrop", "dropout", 0.1),
        Key("layer_norm_epsilon", "norm.eps", 1e-5),
        Key("tie_word_embeddings", "embedding.tie", True),
    )
    fixed: ClassVar[Mapping[str, Any]] = {"is_encoder_decoder": False}
    ignored: ClassVar[frozenset[str]] = frozenset(
        {
            "initializer_range", "n_ctx", "n_special", "predict_special_tokens", "summary_activation",
            "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
        }
    )  # fmt: skip
    buffers: ClassVar[tuple[str, ...]] = (".attn.bias", "transformer.position_ids", "position_ids")

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        tied = ("lm_head.weight",) if spec["embedding"]["tie"] else ()
        yield Move("embedding.tokens.weight", "transformer.tokens_embed.weight", also=tied)
        if not tied:
            yield Move("embedding.head.weight", "lm_head.weight")
        yield Move("body.position.0.table.weight", "transformer.positions_embed.weight")
        yield from turned_layers(spec)

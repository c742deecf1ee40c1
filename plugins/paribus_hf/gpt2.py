"""GPT-2 of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, final

from paribus import Architecture, Family, Key, Move
from paribus_hf.activations import ACTIVATIONS
from paribus_hf.bodies import EXPAND, turned_layers


@final
class Gpt2(Family):
    """ "Language Models are Unsupervised Multitask Learners" (Radford et al. 2019). Its matrices are turned."""

    kind = "gpt2"
    architectures: ClassVar[Mapping[str, Architecture]] = {
        "GPT2LMHeadModel": Architecture(),
        "GPT2Model": Architecture(prefix="transformer."),
    }
    spec: ClassVar[Mapping[str, Any]] = {
        "preset": "gpt2",
        "topology": "decoder",
        "embedding": {"name": "tokens"},
        "attention": {"name": "mha"},
        "position": "learned",
        "norm": {"name": "layernorm"},
        "placement": "pre",
        "feedforward": {"name": "mlp"},
        "objective": {"name": "clm", "bias": False},
    }
    keys: ClassVar[tuple[Key, ...]] = (
        Key("vocab_size", "dims.vocabulary", 50257),
        Key("n_positions", "dims.length", 1024),
        Key("n_embd", "dims.width", 768),
        Key("n_layer", "dims.layers", 12),
        Key("n_head", "dims.heads", 12),
        Key("n_inner", "feedforward.inner", None, times=EXPAND),
        Key("activation_function", "feedforward.activation", "gelu_new", ACTIVATIONS),
        Key("resid_pdrop", "dropout", 0.1),
        Key("embd_pdrop", "dropout", 0.1),
        Key("attn_pdrop", "dropout", 0.1),
        Key("layer_norm_epsilon", "norm.eps", 1e-5),
        Key("scale_attn_weights", "attention.scores.scaled", True),
        Key("tie_word_embeddings", "embedding.tie", True),
    )
    fixed: ClassVar[Mapping[str, Any]] = {
        "is_encoder_decoder": False,
        "add_cross_attention": False,
        "scale_attn_by_inverse_layer_idx": False,
    }
    ignored: ClassVar[frozenset[str]] = frozenset(
        {
            "initializer_range", "n_ctx", "reorder_and_upcast_attn", "summary_activation", "summary_first_dropout",
            "summary_proj_to_labels", "summary_type", "summary_use_proj",
        }
    )  # fmt: skip
    buffers: ClassVar[tuple[str, ...]] = (".attn.bias", ".attn.masked_bias")

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        tied = ("lm_head.weight",) if spec["embedding"]["tie"] else ()
        yield Move("embedding.tokens.weight", "transformer.wte.weight", also=tied)
        if not tied:
            yield Move("embedding.head.weight", "lm_head.weight")
        yield Move("body.position.0.table.weight", "transformer.wpe.weight")
        yield from turned_layers(spec)
        for kind in ("weight", "bias"):
            yield Move(f"body.norm.{kind}", f"transformer.ln_f.{kind}")

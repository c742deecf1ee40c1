"""CTRL of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, final

from paribus import Architecture, Family, Key, Move
from paribus_hf.layer_names import EXPAND, SAME_AS_CLM, SUMMARY_KEYS, layer_moves

NAMES: Final[Mapping[str, str]] = {
    "attention.heads.q": "multi_head_attention.Wq",
    "attention.heads.k": "multi_head_attention.Wk",
    "attention.heads.v": "multi_head_attention.Wv",
    "attention.heads.o": "multi_head_attention.dense",
    "placement.norms.attention": "layernorm1",
    "placement.norms.feedforward": "layernorm2",
    "feedforward.inner": "ffn.0",
    "feedforward.outer": "ffn.2",
}


@final
class Ctrl(Family):
    """CTRL (Keskar et al. 2019): sinusoidal positions with all sines before all cosines."""

    kind = "ctrl"
    architectures: ClassVar[Mapping[str, Architecture]] = {"CTRLLMHeadModel": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        "preset": "ctrl",
        "topology": "decoder",
        "embedding": {"name": "tokens", "scale": True, "tie": True},
        "attention": {"name": "mha"},
        "position": {"name": "sinusoidal", "layout": "halves"},
        "norm": {"name": "layernorm", "eps": 1e-6},
        "placement": "pre",
        "feedforward": {"name": "mlp", "activation": "relu"},
        "objective": {"name": "clm", "bias": True},
    }
    keys: ClassVar[tuple[Key, ...]] = (
        Key("vocab_size", "dims.vocabulary", 246534),
        Key("n_positions", "dims.length", 256),
        Key("n_embd", "dims.width", 1280),
        Key("dff", "feedforward.inner", 8192, factors=EXPAND),
        Key("n_layer", "dims.layers", 48),
        Key("n_head", "dims.heads", 16),
        Key("resid_pdrop", "dropout", 0.1),
        Key("embd_pdrop", "dropout", 0.1),
    )
    fixed: ClassVar[Mapping[str, Any]] = {"is_encoder_decoder": False, "tie_word_embeddings": True}
    same_heads: ClassVar[frozenset[str]] = SAME_AS_CLM
    ignored: ClassVar[frozenset[str]] = SUMMARY_KEYS | {
        "attn_pdrop", "initializer_range", "layer_norm_epsilon", "n_ctx",
    }  # fmt: skip  # the class ignores attn_pdrop and layer_norm_epsilon

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        yield Move("embedding.tokens.weight", "transformer.w.weight", tied_names=("lm_head.weight",))
        yield Move("objectives.clm.bias", "lm_head.bias")
        for kind in ("weight", "bias"):
            yield Move(f"body.norm.{kind}", f"transformer.layernorm.{kind}")
        yield from layer_moves(spec, "transformer.h", NAMES)

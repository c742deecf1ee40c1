"""DistilBERT of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, final

from paribus import Architecture, Family, Key, Move
from paribus_hf import bert_shared
from paribus_hf.layer_names import EXPAND, layer_moves

NAMES: Final[Mapping[str, str]] = {
    "attention.heads.q": "attention.q_lin",
    "attention.heads.k": "attention.k_lin",
    "attention.heads.v": "attention.v_lin",
    "attention.heads.o": "attention.out_lin",
    "placement.norms.attention": "sa_layer_norm",
    "feedforward.inner": "ffn.lin1",
    "feedforward.outer": "ffn.lin2",
    "placement.norms.feedforward": "output_layer_norm",
}


@final
class DistilBert(Family):
    """DistilBERT (Sanh et al. 2019): half of BERT's layers, no segments, no pooler."""

    kind = "distilbert"
    architectures: ClassVar[Mapping[str, Architecture]] = {"DistilBertForMaskedLM": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        "preset": "bert-base",
        "topology": "encoder",
        "embedding": {"name": "tokens", "normed": True, "segments": 0},
        "attention": {"name": "mha"},
        "position": "learned",
        "norm": {"name": "layernorm", "eps": 1e-12},
        "placement": "post",
        "feedforward": {"name": "mlp", "activation": "gelu"},
        "objective": bert_shared.MLM,
    }
    keys: ClassVar[tuple[Key, ...]] = (
        Key("vocab_size", "dims.vocabulary", 30522),
        Key("max_position_embeddings", "dims.length", 512),
        Key("dim", "dims.width", 768),
        Key("n_layers", "dims.layers", 6),
        Key("n_heads", "dims.heads", 12),
        Key("hidden_dim", "feedforward.inner", 3072, factors=EXPAND),
        Key("dropout", "dropout", 0.1),
        Key("attention_dropout", "dropout", 0.1),
        Key("tie_word_embeddings", "embedding.tie", True),
    )
    fixed: ClassVar[Mapping[str, Any]] = {
        "activation": "gelu",
        "is_encoder_decoder": False,
        "sinusoidal_pos_embds": False,  # True: a fixed sinusoidal table
    }
    ignored: ClassVar[frozenset[str]] = frozenset(
        {"initializer_range", "output_past", "qa_dropout", "seq_classif_dropout", "tie_weights_"}
    )
    buffers: ClassVar[tuple[str, ...]] = ("embeddings.position_ids",)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        embeddings, tie = "distilbert.embeddings", spec["embedding"]["tie"]
        tied = ("vocab_projector.weight",) if tie else ()
        yield Move("embedding.tokens.weight", f"{embeddings}.word_embeddings.weight", tied_names=tied)
        if not tie:
            yield Move("embedding.head.weight", "vocab_projector.weight")
        yield Move("body.position.0.table.weight", f"{embeddings}.position_embeddings.weight")
        yield Move("objectives.mlm.bias", "vocab_projector.bias")
        for kind in ("weight", "bias"):
            yield Move(f"body.embedding.norm.{kind}", f"{embeddings}.LayerNorm.{kind}")
            yield Move(f"objectives.mlm.dense.{kind}", f"vocab_transform.{kind}")
            yield Move(f"objectives.mlm.norm.{kind}", f"vocab_layer_norm.{kind}")
        yield from layer_moves(spec, "distilbert.transformer.layer", NAMES)

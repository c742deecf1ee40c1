"""What RoBERTa and XLM-R have in common, which is all but their name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from paribus import Config, Key, Move
from paribus_hf.bodies import POST_NORM, layers

PADDING: Final = 1  # their positions begin behind that of padding, which is the id of padding
OFFSET: Final = PADDING + 1

SPEC: Final[Mapping[str, Any]] = {
    "preset": "bert-base",
    "topology": "encoder",
    "embedding": {"name": "tokens", "normed": True, "tie": True},
    "attention": {"name": "mha"},
    "position": {"name": "learned", "offset": OFFSET},
    "norm": {"name": "layernorm"},
    "placement": "post",
    "feedforward": {"name": "mlp", "activation": "gelu"},
    "objective": {"name": "mlm", "transform": True, "activation": "gelu", "bias": True},
}
KEYS: Final[tuple[Key, ...]] = (
    Key("vocab_size", "dims.vocabulary", 50265),
    Key(
        "max_position_embeddings",
        "dims.length",
        514,
        read=lambda rows: rows - OFFSET,
        write=lambda length: length + OFFSET,
    ),
    Key("hidden_size", "dims.width", 768),
    Key("num_hidden_layers", "dims.layers", 12),
    Key("num_attention_heads", "dims.heads", 12),
    Key("intermediate_size", "feedforward.inner", 3072),
    Key("type_vocab_size", "embedding.segments", 1),
    Key("hidden_dropout_prob", "dropout", 0.1),
    Key("attention_probs_dropout_prob", "dropout", 0.1),
    Key("layer_norm_eps", "norm.eps", 1e-5),
)
FIXED: Final[Mapping[str, Any]] = {
    "hidden_act": "gelu",
    "pad_token_id": PADDING,
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,  # else the head has two biases, of which one is dead
}
IGNORED: Final = frozenset({"classifier_dropout", "gradient_checkpointing", "initializer_range"})
BUFFERS: Final = ("embeddings.position_ids", "embeddings.token_type_ids")


def read(config: Config) -> None:
    config.only("position_embedding_type", "absolute")


def moves(spec: Mapping[str, Any]) -> Iterator[Move]:
    embeddings = "roberta.embeddings"
    yield Move("embedding.tokens.weight", f"{embeddings}.word_embeddings.weight", also=("lm_head.decoder.weight",))
    if spec["embedding"]["segments"]:
        yield Move("embedding.segments.weight", f"{embeddings}.token_type_embeddings.weight")
    yield Move("body.position.0.table.weight", f"{embeddings}.position_embeddings.weight")
    yield Move("objectives.mlm.bias", "lm_head.bias", also=("lm_head.decoder.bias",))
    for kind in ("weight", "bias"):
        yield Move(f"body.embedding.norm.{kind}", f"{embeddings}.LayerNorm.{kind}")
        yield Move(f"objectives.mlm.dense.{kind}", f"lm_head.dense.{kind}")
        yield Move(f"objectives.mlm.norm.{kind}", f"lm_head.layer_norm.{kind}")
    yield from layers(spec, "roberta.encoder.layer", POST_NORM)

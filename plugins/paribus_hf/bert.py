"""BERT of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf.bodies import POST_NORM, layers

MLM: Mapping[str, Any] = {"name": "mlm", "transform": True, "activation": "gelu", "bias": True}
TIED = "cls.predictions.decoder.weight"


@final
class Bert(Family):
    """ "BERT: Pre-training of Deep Bidirectional Transformers" (Devlin et al. 2019), with one head or both."""

    kind = "bert"
    architectures: ClassVar[Mapping[str, Architecture]] = {
        "BertForPreTraining": Architecture(spec={"objective": [MLM, "nsp"]}),
        "BertForMaskedLM": Architecture(spec={"objective": MLM}),
    }
    spec: ClassVar[Mapping[str, Any]] = {
        "preset": "bert-base",
        "topology": "encoder",
        "embedding": {"name": "tokens", "normed": True, "tie": True},
        "attention": {"name": "mha"},
        "position": "learned",
        "norm": {"name": "layernorm"},
        "placement": "post",
        "feedforward": {"name": "mlp", "activation": "gelu"},
    }
    keys: ClassVar[tuple[Key, ...]] = (
        Key("vocab_size", "dims.vocabulary", 30522),
        Key("max_position_embeddings", "dims.length", 512),
        Key("hidden_size", "dims.width", 768),
        Key("num_hidden_layers", "dims.layers", 12),
        Key("num_attention_heads", "dims.heads", 12),
        Key("intermediate_size", "feedforward.inner", 3072),
        Key("type_vocab_size", "embedding.segments", 2),
        Key("hidden_dropout_prob", "dropout", 0.1),
        Key("attention_probs_dropout_prob", "dropout", 0.1),
        Key("layer_norm_eps", "norm.eps", 1e-12),
    )
    fixed: ClassVar[Mapping[str, Any]] = {
        "hidden_act": "gelu",  # which is also that of the head
        "is_decoder": False,
        "is_encoder_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,  # else the head has two biases, of which one is dead
    }
    ignored: ClassVar[frozenset[str]] = frozenset({"classifier_dropout", "gradient_checkpointing", "initializer_range"})
    buffers: ClassVar[tuple[str, ...]] = ("embeddings.position_ids", "embeddings.token_type_ids")

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        config.only("position_embedding_type", "absolute")

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        """Every tensor, of the body and of the heads that there are."""
        embeddings, predictions = "bert.embeddings", "cls.predictions"
        yield Move("embedding.tokens.weight", f"{embeddings}.word_embeddings.weight", also=(TIED,))
        if spec["embedding"]["segments"]:
            yield Move("embedding.segments.weight", f"{embeddings}.token_type_embeddings.weight")
        yield Move("body.position.0.table.weight", f"{embeddings}.position_embeddings.weight")
        yield Move("objectives.mlm.bias", f"{predictions}.bias", also=(f"{predictions}.decoder.bias",))
        for kind in ("weight", "bias"):
            yield Move(f"body.embedding.norm.{kind}", f"{embeddings}.LayerNorm.{kind}")
            yield Move(f"objectives.mlm.dense.{kind}", f"{predictions}.transform.dense.{kind}")
            yield Move(f"objectives.mlm.norm.{kind}", f"{predictions}.transform.LayerNorm.{kind}")
            if isinstance(spec["objective"], (list, tuple)):
                yield Move(f"objectives.nsp.head.dense.{kind}", f"bert.pooler.dense.{kind}")
                yield Move(f"objectives.nsp.head.scores.{kind}", f"cls.seq_relationship.{kind}")
        yield from layers(spec, "bert.encoder.layer", POST_NORM)

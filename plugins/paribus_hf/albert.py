"""ALBERT of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Final, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import bert_shared
from paribus_hf.activations import HEAD_ACTIVATIONS
from paribus_hf.layer_names import EXPAND

MLM: Final[Mapping[str, Any]] = {"name": "mlm", "transform": True, "transform_bias": True, "bias": True}
POOLER: Final = ("albert.pooler.weight", "albert.pooler.bias")
NAMES: Final[Mapping[str, str]] = {
    "attention.heads.q": "attention.query",
    "attention.heads.k": "attention.key",
    "attention.heads.v": "attention.value",
    "attention.heads.o": "attention.dense",
    "placement.norms.attention": "attention.LayerNorm",
    "feedforward.inner": "ffn",
    "feedforward.outer": "ffn_output",
    "placement.norms.feedforward": "full_layer_layer_norm",
}


@final
class Albert(Family):
    """ALBERT (Lan et al. 2020): a factorised embedding and groups of layers that share parameters."""

    kind = "albert"
    architectures: ClassVar[Mapping[str, Architecture]] = {
        "AlbertForPreTraining": Architecture(spec={"objective": [MLM, {"name": "sop"}]}),
        "AlbertForMaskedLM": Architecture(spec={"objective": [MLM]}, unused_tensors=POOLER),  # in older files
    }
    spec: ClassVar[Mapping[str, Any]] = {
        "preset": "albert",
        "topology": "encoder",
        "embedding": {"name": "factorised", "normed": True, "tie": True},
        "attention": {"name": "mha"},
        "position": "learned",
        "norm": {"name": "layernorm"},
        "placement": "post",
        "feedforward": {"name": "mlp"},
    }
    keys: ClassVar[tuple[Key, ...]] = (
        Key("vocab_size", "dims.vocabulary", 30000),
        Key("embedding_size", "embedding.width", 128),
        Key("max_position_embeddings", "dims.length", 512),
        Key("hidden_size", "dims.width", 4096),
        Key("num_hidden_layers", "dims.layers", 12),
        Key("num_hidden_groups", "dims.groups", 1),
        Key("num_attention_heads", "dims.heads", 64),
        Key("intermediate_size", "feedforward.inner", 16384, factors=EXPAND),
        Key("hidden_act", "feedforward.activation", "gelu_new", HEAD_ACTIVATIONS),
        Key("type_vocab_size", "embedding.segments", 2),
        Key("hidden_dropout_prob", "dropout", 0.0),
        Key("attention_probs_dropout_prob", "dropout", 0.0),
        Key("layer_norm_eps", "norm.eps", 1e-12),
    )
    fixed: ClassVar[Mapping[str, Any]] = {
        "inner_group_num": 1,
        "is_encoder_decoder": False,
        "tie_word_embeddings": True,  # otherwise the head has two biases, one of them unused
    }
    legacy: ClassVar[Mapping[str, Any]] = {"position_embedding_type": "absolute"}
    ignored: ClassVar[frozenset[str]] = frozenset(
        {
            "classifier_dropout_prob", "down_scale_factor", "gap_size", "initializer_range", "layers_to_keep",
            "net_structure_type", "num_memory_blocks",
        }
    )  # fmt: skip
    buffers: ClassVar[tuple[str, ...]] = ("embeddings.position_ids", "embeddings.token_type_ids")

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        bert_shared.read(config, spec)
        if spec["embedding"]["width"] == spec["dims"]["width"]:
            message = (
                "`embedding_size` equals `hidden_size`: `transformers` has a projection between them, Paribus has none"
            )
            config.add_problem("embedding_size", message, "a different width")
        spec["objective"][0]["activation"] = spec["feedforward"].get("activation")
        if spec["dims"]["groups"] == spec["dims"]["layers"]:
            spec["dims"]["groups"] = None  # no shared layers

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        config["num_hidden_groups"] = spec["dims"]["groups"] or spec["dims"]["layers"]

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        """Yield all tensors of the body and of its heads."""
        embeddings, tied = "albert.embeddings", "predictions.decoder"
        yield Move("embedding.tokens.weight", f"{embeddings}.word_embeddings.weight", tied_names=(f"{tied}.weight",))
        if spec["embedding"]["segments"]:
            yield Move("embedding.segments.weight", f"{embeddings}.token_type_embeddings.weight")
        yield Move("body.position.0.table.weight", f"{embeddings}.position_embeddings.weight")
        yield Move("objectives.mlm.bias", "predictions.bias", tied_names=(f"{tied}.bias",))
        for kind in ("weight", "bias"):
            yield Move(f"embedding.norm.{kind}", f"{embeddings}.LayerNorm.{kind}")
            yield Move(f"body.embedding.project.{kind}", f"albert.encoder.embedding_hidden_mapping_in.{kind}")
            yield Move(f"objectives.mlm.dense.{kind}", f"predictions.dense.{kind}")
            yield Move(f"objectives.mlm.norm.{kind}", f"predictions.LayerNorm.{kind}")
            if len(spec["objective"]) > 1:
                yield Move(f"objectives.sop.head.dense.{kind}", f"albert.pooler.{kind}")
                yield Move(f"objectives.sop.head.scores.{kind}", f"sop_classifier.classifier.{kind}")
            groups = spec["dims"]["groups"] or spec["dims"]["layers"]
            for group in range(groups):
                layer = group * spec["dims"]["layers"] // groups
                hf_layer = f"albert.encoder.albert_layer_groups.{group}.albert_layers.0"
                for module, name in NAMES.items():
                    yield Move(f"body.layers.{layer}.{module}.{kind}", f"{hf_layer}.{name}.{kind}")

"""ELECTRA of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, final

from paribus import Architecture, Family, Key, Move
from paribus_hf import berts
from paribus_hf.bodies import POST_NORM, layers


@final
class Electra(Family):
    """ "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators" (Clark et al. 2020).

    One of the two networks, each of which is an encoder: a generator, which fills gaps, or a discriminator.
    """

    kind = "electra"
    architectures: ClassVar[Mapping[str, Architecture]] = {
        "ElectraForMaskedLM": Architecture(spec={"objective": berts.MLM}),
        "ElectraForPreTraining": Architecture(spec={"objective": {"name": "detection", "first": False}}),
    }
    spec: ClassVar[Mapping[str, Any]] = {
        **berts.SPEC,
        "embedding": {"name": "factorised", "normed": True, "tie": True},
    }
    keys: ClassVar[tuple[Key, ...]] = (
        Key("vocab_size", "dims.vocabulary", 30522),
        Key("embedding_size", "embedding.width", 128),
        Key("max_position_embeddings", "dims.length", 512),
        Key("hidden_size", "dims.width", 256),
        Key("num_hidden_layers", "dims.layers", 12),
        Key("num_attention_heads", "dims.heads", 4),
        Key("intermediate_size", "feedforward.inner", 1024),
        Key("type_vocab_size", "embedding.segments", 2),
        Key("hidden_dropout_prob", "dropout", 0.1),
        Key("attention_probs_dropout_prob", "dropout", 0.1),
        Key("layer_norm_eps", "norm.eps", 1e-12),
    )
    fixed: ClassVar[Mapping[str, Any]] = {
        "hidden_act": "gelu",  # which is also that of both heads
        "is_decoder": False,
        "is_encoder_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    }
    former: ClassVar[Mapping[str, Any]] = berts.FORMER
    ignored: ClassVar[frozenset[str]] = berts.IGNORED | {
        "summary_activation",
        "summary_last_dropout",
        "summary_type",
        "summary_use_proj",
    }
    buffers: ClassVar[tuple[str, ...]] = berts.BUFFERS

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        """Every tensor, of the body and of its head."""
        fills = spec["objective"]["name"] == "mlm"
        embeddings = "electra.embeddings"
        tied = ("generator_lm_head.weight",) if fills else ()
        yield Move("embedding.tokens.weight", f"{embeddings}.word_embeddings.weight", also=tied)
        if spec["embedding"]["segments"]:
            yield Move("embedding.segments.weight", f"{embeddings}.token_type_embeddings.weight")
        yield Move("body.position.0.table.weight", f"{embeddings}.position_embeddings.weight")
        if fills:
            yield Move("objectives.mlm.bias", "generator_lm_head.bias")
        for kind in ("weight", "bias"):
            yield Move(f"embedding.norm.{kind}", f"{embeddings}.LayerNorm.{kind}")
            if spec["embedding"]["width"] != spec["dims"]["width"]:
                yield Move(f"body.embedding.project.{kind}", f"electra.embeddings_project.{kind}")
            if fills:
                yield Move(f"objectives.mlm.dense.{kind}", f"generator_predictions.dense.{kind}")
                yield Move(f"objectives.mlm.norm.{kind}", f"generator_predictions.LayerNorm.{kind}")
            else:
                head = "objectives.detection.detector"
                yield Move(f"{head}.dense.{kind}", f"discriminator_predictions.dense.{kind}")
                yield Move(f"{head}.scores.{kind}", f"discriminator_predictions.dense_prediction.{kind}")
        yield from layers(spec, "electra.encoder.layer", POST_NORM)

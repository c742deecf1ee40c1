"""ELECTRA of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, final

from paribus import Architecture, Family, Key, Move, Network, Problem, SpecError
from paribus_hf import bert_shared
from paribus_hf.layer_names import EXPAND, POST_NORM, layer_moves

DETECTION: Final[Mapping[str, Any]] = {"name": "detection", "add_first_token": False}
PAIR_TOPOLOGY: Final[Mapping[str, Any]] = {"name": "generator-discriminator", "sharing": "whole"}


@final
class Electra(Family):
    """ELECTRA (Clark et al. 2020), its generator or discriminator alone, or both as the pair that was trained."""

    kind = "electra"
    architectures: ClassVar[Mapping[str, Architecture]] = {
        "ElectraForPreTraining": Architecture(spec={"objective": DETECTION}),
        "ElectraForMaskedLM": Architecture(spec={"objective": bert_shared.MLM}),
    }
    spec: ClassVar[Mapping[str, Any]] = {
        **bert_shared.SPEC,
        "embedding": {"name": "factorised", "normed": True, "tie": True},
    }
    keys: ClassVar[tuple[Key, ...]] = (
        Key("vocab_size", "dims.vocabulary", 30522),
        Key("embedding_size", "embedding.width", 128),
        Key("max_position_embeddings", "dims.length", 512),
        Key("hidden_size", "dims.width", 256),
        Key("num_hidden_layers", "dims.layers", 12),
        Key("num_attention_heads", "dims.heads", 4),
        Key("intermediate_size", "feedforward.inner", 1024, factors=EXPAND),
        Key("type_vocab_size", "embedding.segments", 2),
        Key("hidden_dropout_prob", "dropout", 0.1),
        Key("attention_probs_dropout_prob", "dropout", 0.1),
        Key("layer_norm_eps", "norm.eps", 1e-12),
    )
    fixed: ClassVar[Mapping[str, Any]] = {
        "hidden_act": "gelu",  # also that of both heads
        "is_decoder": False,
        "is_encoder_decoder": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    }
    legacy: ClassVar[Mapping[str, Any]] = bert_shared.FORMER
    ignored: ClassVar[frozenset[str]] = bert_shared.IGNORED | {
        "summary_activation",
        "summary_last_dropout",
        "summary_type",
        "summary_use_proj",
    }
    buffers: ClassVar[tuple[str, ...]] = bert_shared.BUFFERS

    def network(self, spec: Mapping[str, Any], architecture: str) -> Network:
        if spec["topology"] != PAIR_TOPOLOGY:
            return Network(spec, str)
        is_generator = architecture == "ElectraForMaskedLM"
        overrides = (spec["parts"] or {}).get("generator" if is_generator else "discriminator", {})
        dims = {**spec["dims"], **overrides.get("dims", {})}
        head = {"objective": bert_shared.MLM if is_generator else DETECTION}
        alone = {**spec, **overrides, "dims": dims, "topology": "encoder", "parts": None, "evaluate": None, **head}
        return Network(alone, _generator_path if is_generator else _discriminator_path, is_whole=False)

    def combine(self, specs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        if set(specs) != set(self.architectures):
            return super().combine(specs)
        body, generator = (specs[architecture] for architecture in self.architectures)
        dims = {key: value for key, value in generator["dims"].items() if value != body["dims"][key]}
        parts = {"generator": {"dims": dims, "feedforward": generator["feedforward"]}}
        spec = {
            **body,
            "topology": PAIR_TOPOLOGY,
            "parts": parts,
            "objective": {"name": "rtd", "add_first_token": False},
        }
        for key in ("embedding", "norm", "dropout"):
            if body[key] != generator[key]:
                message = f"`{key}` differs: {body[key]} in the discriminator, {generator[key]} in the generator"
                raise SpecError(
                    Problem(
                        code="not-a-pair",
                        path=key,
                        message=message,
                        valid="a generator and a discriminator that were trained together",
                    )
                )
        return spec

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        """Yield all tensors of the body and of its head."""
        is_generator = spec["objective"]["name"] == "mlm"
        embeddings = "electra.embeddings"
        tied = ("generator_lm_head.weight",) if is_generator else ()
        yield Move("embedding.tokens.weight", f"{embeddings}.word_embeddings.weight", tied_names=tied)
        if spec["embedding"]["segments"]:
            yield Move("embedding.segments.weight", f"{embeddings}.token_type_embeddings.weight")
        yield Move("body.position.0.table.weight", f"{embeddings}.position_embeddings.weight")
        if is_generator:
            yield Move("objectives.mlm.bias", "generator_lm_head.bias")
        for kind in ("weight", "bias"):
            yield Move(f"embedding.norm.{kind}", f"{embeddings}.LayerNorm.{kind}")
            if spec["embedding"]["width"] != spec["dims"]["width"]:
                yield Move(f"body.embedding.project.{kind}", f"electra.embeddings_project.{kind}")
            if is_generator:
                yield Move(f"objectives.mlm.dense.{kind}", f"generator_predictions.dense.{kind}")
                yield Move(f"objectives.mlm.norm.{kind}", f"generator_predictions.LayerNorm.{kind}")
            else:
                head = "objectives.detection.detector"
                yield Move(f"{head}.dense.{kind}", f"discriminator_predictions.dense.{kind}")
                yield Move(f"{head}.scores.{kind}", f"discriminator_predictions.dense_prediction.{kind}")
        yield from layer_moves(spec, "electra.encoder.layer", POST_NORM)


def _discriminator_path(name: str) -> str:
    return name.replace("objectives.detection.", "objectives.rtd.")


def _generator_path(name: str) -> str:
    """Return the path in the pair; both networks share the position table."""
    if name.startswith("body.position."):
        return name
    return name.replace("body.", "generator.").replace("objectives.mlm.", "objectives.rtd.generator.")

"""ELECTRA of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, final

from paribus import Alone, Architecture, Family, Key, Move, Problem, SpecError
from paribus_hf import berts
from paribus_hf.bodies import EXPAND, POST_NORM, layers

DETECTION: Final[Mapping[str, Any]] = {"name": "detection", "first": False}
TOGETHER: Final[Mapping[str, Any]] = {"name": "generator-discriminator", "sharing": "whole"}


@final
class Electra(Family):
    """ "ELECTRA: Pre-training Text Encoders as Discriminators Rather Than Generators" (Clark et al. 2020).

    One of the two networks, a generator or a discriminator, is an encoder; the two are what trained them.
    """

    kind = "electra"
    architectures: ClassVar[Mapping[str, Architecture]] = {
        "ElectraForPreTraining": Architecture(spec={"objective": DETECTION}),
        "ElectraForMaskedLM": Architecture(spec={"objective": berts.MLM}),
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
        Key("intermediate_size", "feedforward.inner", 1024, times=EXPAND),
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

    def alone(self, spec: Mapping[str, Any], architecture: str) -> Alone:
        if spec["topology"] != TOGETHER:
            return Alone(spec, str)
        fills = architecture == "ElectraForMaskedLM"
        own = (spec["parts"] or {}).get("generator" if fills else "discriminator", {})
        dims = {**spec["dims"], **own.get("dims", {})}
        head = {"objective": berts.MLM if fills else DETECTION}
        alone = {**spec, **own, "dims": dims, "topology": "encoder", "parts": None, "evaluate": None, **head}
        return Alone(alone, _of_the_generator if fills else _of_the_discriminator)

    def together(self, specs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        if set(specs) != set(self.architectures):
            return super().together(specs)
        body, generator = (specs[architecture] for architecture in self.architectures)
        own = {key: value for key, value in generator["dims"].items() if value != body["dims"][key]}
        parts = {"generator": {"dims": own, "feedforward": generator["feedforward"]}}
        whole = {**body, "topology": TOGETHER, "parts": parts, "objective": {"name": "rtd", "first": False}}
        for key in ("embedding", "norm", "dropout"):
            if body[key] != generator[key]:
                what = f"`{key}` is {body[key]} of the discriminator and {generator[key]} of the generator"
                raise SpecError(Problem(code="no-pair", path=key, message=what, valid="two that were trained together"))
        return whole

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


def _of_the_discriminator(name: str) -> str:
    return name.replace("objectives.detection.", "objectives.rtd.")


def _of_the_generator(name: str) -> str:
    """The table of positions is the one that both have."""
    if name.startswith("body.position."):
        return name
    return name.replace("body.", "generator.").replace("objectives.mlm.", "objectives.rtd.generator.")

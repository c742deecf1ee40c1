"""BART of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import bart_shared
from paribus_hf.layer_names import SAME_AS_DENOISE


@final
class Bart(Family):
    """BART (Lewis et al. 2020): positions and an embedding norm for each stack.

    The bias of the scores is a buffer there, and 0 unless it was set.
    """

    kind = "bart"
    architectures: ClassVar[Mapping[str, Architecture]] = {"BartForConditionalGeneration": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        "preset": "bart-base",
        "topology": "encoder-decoder",
        "embedding": {"name": "tokens", "normed": True},
        "attention": {"name": "mha"},
        "position": {"name": "learned", "offset": bart_shared.OFFSET},
        "norm": {"name": "layernorm"},
        "placement": "post",
        "feedforward": {"name": "mlp"},
        "objective": "denoise",
    }
    keys: ClassVar[tuple[Key, ...]] = bart_shared.keys(50265, "gelu", scale=False, attention_dropout=0.0)
    fixed: ClassVar[Mapping[str, Any]] = bart_shared.FIXED
    legacy: ClassVar[Mapping[str, Any]] = {
        "add_bias_logits": False,
        "add_final_layer_norm": False,
        "normalize_before": False,
        "normalize_embedding": True,
        "static_position_embeddings": False,
    }
    same_heads: ClassVar[frozenset[str]] = SAME_AS_DENOISE
    ignored: ClassVar[frozenset[str]] = bart_shared.IGNORED | {
        "classif_dropout", "classifier_dropout", "extra_pos_embeddings", "force_bos_token_to_be_generated",
    }  # fmt: skip

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        bart_shared.read(config, spec)

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        bart_shared.write(spec, config)
        config["forced_eos_token_id"] = None  # the default is an id of the published vocabulary

    def constants(self, spec: Mapping[str, Any]) -> Mapping[str, Tensor]:
        return {"final_logits_bias": torch.zeros(1, spec["dims"]["vocabulary"])}

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        norms = {f"embedding.norm.{kind}": f"layernorm_embedding.{kind}" for kind in ("weight", "bias")}
        return bart_shared.moves(spec, {**norms, "position.0.table.weight": "embed_positions.weight"})

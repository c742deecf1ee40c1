"""Llama of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import llama_shared
from paribus_hf.layer_names import SAME_AS_CLM, llama_moves


@final
class Llama(Family):
    """Llama (Touvron et al. 2023) and Llama 2, with grouped-query attention."""

    kind = "llama"
    architectures: ClassVar[Mapping[str, Architecture]] = {"LlamaForCausalLM": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {**llama_shared.SPEC, "attention": {"name": "gqa"}}
    keys: ClassVar[tuple[Key, ...]] = (
        *llama_shared.KEYS,
        Key("max_position_embeddings", "dims.length", 2048),
        Key("attention_bias", "attention.scores.bias", False),
        Key("mlp_bias", "feedforward.bias", False),
    )
    fixed: ClassVar[Mapping[str, Any]] = llama_shared.FIXED
    same_heads: ClassVar[frozenset[str]] = SAME_AS_CLM
    ignored: ClassVar[frozenset[str]] = llama_shared.IGNORED | {"pretraining_tp"}
    buffers: ClassVar[tuple[str, ...]] = llama_shared.BUFFERS

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        llama_shared.read_rope(config, spec)
        llama_shared.head_width(spec)
        spec["attention"]["kv_heads"] = config.take("num_key_value_heads", None) or spec["dims"]["heads"]

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        llama_shared.write_rope(spec, config)
        llama_shared.write_head_width(spec, config)
        config["num_key_value_heads"] = spec["attention"].get("kv_heads", spec["dims"]["heads"])

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return llama_moves(spec)

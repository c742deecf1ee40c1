"""Llama of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import llamas
from paribus_hf.bodies import gated_moves


@final
class Llama(Family):
    """ "LLaMA: Open and Efficient Foundation Language Models" (Touvron et al. 2023), and 2, whose heads share keys."""

    kind = "llama"
    architectures: ClassVar[Mapping[str, Architecture]] = {"LlamaForCausalLM": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {**llamas.SPEC, "attention": {"name": "gqa"}}
    keys: ClassVar[tuple[Key, ...]] = (
        *llamas.KEYS,
        Key("max_position_embeddings", "dims.length", 2048),
        Key("attention_bias", "attention.scores.bias", False),
        Key("mlp_bias", "feedforward.bias", False),
    )
    fixed: ClassVar[Mapping[str, Any]] = llamas.FIXED
    ignored: ClassVar[frozenset[str]] = llamas.IGNORED | {"pretraining_tp"}
    buffers: ClassVar[tuple[str, ...]] = llamas.BUFFERS

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        llamas.read_rope(config, spec)
        llamas.head_width(spec)
        spec["attention"]["kv_heads"] = config.take("num_key_value_heads", None) or spec["dims"]["heads"]

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        llamas.write_rope(spec, config)
        llamas.write_head_width(spec, config)
        config["num_key_value_heads"] = spec["attention"].get("kv_heads", spec["dims"]["heads"])

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return gated_moves(spec)

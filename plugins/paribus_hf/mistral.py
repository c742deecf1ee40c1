"""Mistral of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import llamas
from paribus_hf.bodies import EXPAND, gated_moves


@final
class Mistral(Family):
    """ "Mistral 7B" (Jiang et al. 2023): Llama whose rows see a window, of which each row is a part."""

    kind = "mistral"
    architectures: ClassVar[Mapping[str, Architecture]] = {"MistralForCausalLM": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {**llamas.SPEC, "attention": {"name": "restricted", "scores": {"bias": False}}}
    keys: ClassVar[tuple[Key, ...]] = (
        *(key for key in llamas.KEYS if key.theirs != "intermediate_size"),
        Key("intermediate_size", "feedforward.inner", 14336, times=EXPAND),
        Key("max_position_embeddings", "dims.length", 131072),
    )
    fixed: ClassVar[Mapping[str, Any]] = llamas.FIXED
    ignored: ClassVar[frozenset[str]] = llamas.IGNORED
    varies: ClassVar[frozenset[str]] = frozenset({"attention"})
    buffers: ClassVar[tuple[str, ...]] = llamas.BUFFERS

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        llamas.read_rope(config, spec)
        llamas.head_width(spec)
        kv_heads = config.take("num_key_value_heads", 8) or spec["dims"]["heads"]
        window = config.take("sliding_window", 4096)
        if window is None or window >= spec["dims"]["length"]:  # nothing is out of sight
            spec["attention"] = {"name": "gqa", "kv_heads": kv_heads, "scores": {"bias": False}}
        else:
            spec["attention"] |= {"window": window, "kv_heads": kv_heads}

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        llamas.write_rope(spec, config)
        llamas.write_head_width(spec, config)
        config["num_key_value_heads"] = spec["attention"].get("kv_heads") or spec["dims"]["heads"]
        config["sliding_window"] = spec["attention"].get("window")

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return gated_moves(spec)

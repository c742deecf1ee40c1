"""Mistral of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import llama_shared
from paribus_hf.layer_names import EXPAND, SAME_AS_CLM, llama_moves


@final
class Mistral(Family):
    """Mistral (Jiang et al. 2023): Llama with a sliding window, which includes the query itself."""

    kind = "mistral"
    architectures: ClassVar[Mapping[str, Architecture]] = {"MistralForCausalLM": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        **llama_shared.SPEC,
        "attention": {"name": "restricted", "scores": {"bias": False}},
    }
    keys: ClassVar[tuple[Key, ...]] = (
        *(key for key in llama_shared.KEYS if key.hf_name != "intermediate_size"),
        Key("intermediate_size", "feedforward.inner", 14336, factors=EXPAND),
        Key("max_position_embeddings", "dims.length", 131072),
    )
    fixed: ClassVar[Mapping[str, Any]] = llama_shared.FIXED
    same_heads: ClassVar[frozenset[str]] = SAME_AS_CLM
    ignored: ClassVar[frozenset[str]] = llama_shared.IGNORED
    variable_slots: ClassVar[frozenset[str]] = frozenset({"attention"})
    buffers: ClassVar[tuple[str, ...]] = llama_shared.BUFFERS

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        llama_shared.read_rope(config, spec)
        llama_shared.head_width(spec)
        kv_heads = config.take("num_key_value_heads", 8) or spec["dims"]["heads"]
        window = config.take("sliding_window", 4096)
        if window is None or window >= spec["dims"]["length"]:  # full attention
            spec["attention"] = {"name": "gqa", "kv_heads": kv_heads, "scores": {"bias": False}}
        else:
            spec["attention"] |= {"window": window, "kv_heads": kv_heads}

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        llama_shared.write_rope(spec, config)
        llama_shared.write_head_width(spec, config)
        config["num_key_value_heads"] = spec["attention"].get("kv_heads") or spec["dims"]["heads"]
        config["sliding_window"] = spec["attention"].get("window")

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return llama_moves(spec)

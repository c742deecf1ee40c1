"""Qwen 2 of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import llama_shared
from paribus_hf.layer_names import EXPAND, SAME_AS_CLM, llama_moves


@final
class Qwen2(Family):
    """Qwen 2 (Yang et al. 2024) and Qwen 2.5: Llama with biases of queries, keys and values."""

    kind = "qwen2"
    architectures: ClassVar[Mapping[str, Architecture]] = {"Qwen2ForCausalLM": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        **llama_shared.SPEC,
        "attention": {"name": "gqa", "output_bias": False, "scores": {"bias": True}},
    }
    keys: ClassVar[tuple[Key, ...]] = (
        *(key for key in llama_shared.KEYS if key.hf_name not in ("intermediate_size", "vocab_size")),
        Key("intermediate_size", "feedforward.inner", 22016, factors=EXPAND),
        Key("vocab_size", "dims.vocabulary", 151936),
        Key("max_position_embeddings", "dims.length", 32768),
    )
    fixed: ClassVar[Mapping[str, Any]] = {**llama_shared.FIXED, "use_sliding_window": False}
    same_heads: ClassVar[frozenset[str]] = SAME_AS_CLM
    ignored: ClassVar[frozenset[str]] = llama_shared.IGNORED | {"max_window_layers", "sliding_window"}
    buffers: ClassVar[tuple[str, ...]] = llama_shared.BUFFERS

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        llama_shared.read_rope(config, spec)
        llama_shared.head_width(spec)
        llama_shared.read_layer_types(config)
        spec["attention"]["kv_heads"] = config.take("num_key_value_heads", 32) or spec["dims"]["heads"]

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        llama_shared.write_rope(spec, config)
        llama_shared.write_head_width(spec, config)
        config["num_key_value_heads"] = spec["attention"].get("kv_heads", spec["dims"]["heads"])

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return llama_moves(spec)

"""Qwen 3 of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import llama_shared
from paribus_hf.layer_names import EXPAND, SAME_AS_CLM, llama_moves


@final
class Qwen3(Family):
    """Qwen 3 (Yang et al. 2025): Llama with normalised queries and keys."""

    kind = "qwen3"
    architectures: ClassVar[Mapping[str, Architecture]] = {"Qwen3ForCausalLM": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {**llama_shared.SPEC, "attention": {"name": "gqa", "scores": {"qk_norm": True}}}
    keys: ClassVar[tuple[Key, ...]] = (
        *(key for key in llama_shared.KEYS if key.hf_name not in ("head_dim", "intermediate_size", "vocab_size")),
        Key("head_dim", "dims.head_width", 128),
        Key("intermediate_size", "feedforward.inner", 22016, factors=EXPAND),
        Key("vocab_size", "dims.vocabulary", 151936),
        Key("max_position_embeddings", "dims.length", 32768),
        Key("attention_bias", "attention.scores.bias", False),
    )
    fixed: ClassVar[Mapping[str, Any]] = {**llama_shared.FIXED, "use_sliding_window": False}
    same_heads: ClassVar[frozenset[str]] = SAME_AS_CLM
    ignored: ClassVar[frozenset[str]] = llama_shared.IGNORED | {"max_window_layers", "sliding_window"}
    buffers: ClassVar[tuple[str, ...]] = llama_shared.BUFFERS

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        llama_shared.read_rope(config, spec)
        llama_shared.head_width(spec)
        spec["attention"]["kv_heads"] = config.take("num_key_value_heads", 32) or spec["dims"]["heads"]
        llama_shared.read_layer_types(config)
        if config.values.get("rms_norm_eps", 1e-6) != 1e-6:
            config.add_problem("rms_norm_eps", "Paribus normalises queries and keys with a fixed eps", "1e-6")

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        llama_shared.write_rope(spec, config)
        llama_shared.write_head_width(spec, config)
        config["num_key_value_heads"] = spec["attention"].get("kv_heads", spec["dims"]["heads"])

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return llama_moves(spec)

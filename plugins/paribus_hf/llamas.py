"""What Llama and its like have in common: the modern decoder."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from paribus import Config, Key
from paribus_hf.activations import ACTIVATIONS

SPEC: Final[Mapping[str, Any]] = {
    "preset": "gpt2",  # for what no configuration says: data and optimizer
    "topology": "decoder",
    "embedding": {"name": "tokens"},
    "position": {"name": "rope"},
    "norm": {"name": "rmsnorm"},
    "placement": "pre",
    "feedforward": {"name": "glu", "bias": False},
    "objective": "clm",
}
KEYS: Final[tuple[Key, ...]] = (
    Key("num_hidden_layers", "dims.layers", 32),
    Key("num_attention_heads", "dims.heads", 32),
    Key("hidden_size", "dims.width", 4096),
    Key("head_dim", "dims.head_width", None),
    Key("vocab_size", "dims.vocabulary", 32000),
    Key("hidden_act", "feedforward.activation", "silu", ACTIVATIONS),
    Key("intermediate_size", "feedforward.inner", 11008),
    Key("rms_norm_eps", "norm.eps", 1e-6),
    Key("attention_dropout", "dropout", 0.0),
    Key("tie_word_embeddings", "embedding.tie", False),
)
FIXED: Final[Mapping[str, Any]] = {"is_encoder_decoder": False}
IGNORED: Final = frozenset({"initializer_range"})
BUFFERS: Final = (".rotary_emb.inv_freq",)


def read_rope(config: Config, spec: MutableMapping[str, Any]) -> None:
    """How positions turn: in one mapping nowadays, and in two keys before."""
    said = config.take("rope_parameters", None) or {}
    before = config.take("rope_scaling", None) or {}
    theta = config.take("rope_theta", 10_000.0)
    kind = said.get("rope_type") or before.get("rope_type") or before.get("type") or "default"
    if kind != "default":
        config.wrong("rope_parameters", f"positions turn as `{kind}` has it, which no component here does", "default")
    spec["position"]["theta"] = float(said.get("rope_theta", theta))


def write_rope(spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": spec["position"]["theta"]}


def head_width(spec: MutableMapping[str, Any]) -> None:
    """A head width that is said, and is what it would be, is left to the spec."""
    dims = spec["dims"]
    if dims["head_width"] == dims["width"] // dims["heads"]:
        dims["head_width"] = None


def write_head_width(spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
    dims = spec["dims"]
    config["head_dim"] = dims["head_width"] or dims["width"] // dims["heads"]

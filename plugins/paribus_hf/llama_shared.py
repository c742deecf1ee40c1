"""Shared spec and keys of Llama and derived families."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from paribus import Config, Key
from paribus_hf.activations import ACTIVATIONS
from paribus_hf.layer_names import EXPAND

SPEC: Final[Mapping[str, Any]] = {
    "preset": "gpt2",  # for data and optimizer, which no configuration has
    "topology": "decoder",
    "embedding": {"name": "tokens"},
    "position": {"name": "rope"},
    "norm": {"name": "rmsnorm"},
    "placement": "pre",
    "feedforward": {"name": "glu", "bias": False},
    "objective": {"name": "clm", "bias": False},
}
KEYS: Final[tuple[Key, ...]] = (
    Key("num_hidden_layers", "dims.layers", 32),
    Key("num_attention_heads", "dims.heads", 32),
    Key("hidden_size", "dims.width", 4096),
    Key("head_dim", "dims.head_width", None),
    Key("vocab_size", "dims.vocabulary", 32000),
    Key("hidden_act", "feedforward.activation", "silu", ACTIVATIONS),
    Key("intermediate_size", "feedforward.inner", 11008, factors=EXPAND),
    Key("rms_norm_eps", "norm.eps", 1e-6),
    Key("attention_dropout", "dropout", 0.0),
    Key("tie_word_embeddings", "embedding.tie", False),
)
FIXED: Final[Mapping[str, Any]] = {"is_encoder_decoder": False}
IGNORED: Final = frozenset({"initializer_range"})
BUFFERS: Final = (".rotary_emb.inv_freq",)


SCALINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "original_max_position_embeddings": "length",
        "high_freq_factor": "fast",
        "low_freq_factor": "slow",
    },
    "yarn": {
        "factor": "factor",
        "original_max_position_embeddings": "length",
        "beta_fast": "fast",
        "beta_slow": "slow",
        "attention_factor": "temperature",
    },
}
"""Options of each rotary scaling, by their names in `transformers` and in Paribus."""


def read_rope(config: Config, spec: MutableMapping[str, Any]) -> None:
    """Read rotary options, from `rope_parameters` or from two keys of older configurations."""
    rope_scaling = config.take("rope_scaling", None) or {}
    rope = {
        "rope_theta": config.take("rope_theta", 10_000.0),
        **rope_scaling,
        **(config.take("rope_parameters", None) or {}),
    }
    kind = rope.pop("rope_type", None) or rope.pop("type", None) or "default"
    rope.pop("type", None)
    spec["position"]["theta"] = float(rope.pop("rope_theta"))
    names = SCALINGS.get(kind, {})
    unknown = sorted(set(rope) - set(names))
    if (kind != "default" and not names) or unknown:
        message = f"unsupported rotary scaling `{kind}`" + (f" with {', '.join(unknown)}" if unknown else "")
        config.add_problem("rope_parameters", message, ", ".join(("default", *SCALINGS)))
    elif names:
        options = {names[name]: value for name, value in rope.items() if value is not None}
        floats = {name: value if name == "length" else float(value) for name, value in options.items()}
        spec["position"]["scaling"] = {"kind": kind, **floats}


def write_rope(spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
    node = spec["position"]
    scaling = node.get("scaling") or {"kind": "none"}
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": node["theta"]}
    if scaling["kind"] in SCALINGS:
        names = SCALINGS[scaling["kind"]]
        rope["rope_type"] = scaling["kind"]
        rope.update({name: scaling[option] for name, option in names.items() if scaling.get(option) is not None})
    config["rope_parameters"] = rope


def read_layer_types(config: Config) -> None:
    """Reject layers with a sliding window."""
    kinds = set(config.take("layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        config.add_problem("layer_types", f"unsupported layer types {sorted(kinds)}", "full_attention")


def head_width(spec: MutableMapping[str, Any]) -> None:
    """Set a head width to null if it is the default, width / heads."""
    dims = spec["dims"]
    if dims["head_width"] == dims["width"] // dims["heads"]:
        dims["head_width"] = None


def write_head_width(spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
    dims = spec["dims"]
    config["head_dim"] = dims["head_width"] or dims["width"] // dims["heads"]

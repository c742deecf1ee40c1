"""GPT-Neo of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Final, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf.activations import ACTIVATIONS
from paribus_hf.layer_names import EXPAND, SAME_AS_CLM, SUMMARY_KEYS, as_list, layer_moves, shortest_cycle

GLOBAL, LOCAL = "global", "local"
WINDOW: Final = 256  # default size of the window of a local layer
ATTENTION: Final[Mapping[str, Any]] = {"qkv_bias": False, "scores": {"bias": True, "scaled": False}}
PROJECTIONS: Final[Mapping[str, str]] = {
    f"attention.heads.{name}": f"attn.attention.{name}_proj" for name in ("q", "k", "v")
}
BIASED: Final[Mapping[str, str]] = {
    "attention.heads.o": "attn.attention.out_proj",
    "placement.norms.attention": "ln_1",
    "placement.norms.feedforward": "ln_2",
    "feedforward.inner": "mlp.c_fc",
    "feedforward.outer": "mlp.c_proj",
}


@final
class GptNeo(Family):
    """GPT-Neo (Black et al. 2021): layers with full attention and with a sliding window, which includes the query.

    Scores are not divided by the root of the head width, and queries, keys and values have no bias.
    """

    kind = "gpt_neo"
    architectures: ClassVar[Mapping[str, Architecture]] = {
        "GPTNeoForCausalLM": Architecture(),
        "GPTNeoModel": Architecture(prefix="transformer."),
    }
    spec: ClassVar[Mapping[str, Any]] = {
        "preset": "gpt-neo",
        "topology": "decoder",
        "embedding": {"name": "tokens"},
        "position": "learned",
        "norm": {"name": "layernorm"},
        "placement": "pre",
        "feedforward": {"name": "mlp"},
        "objective": {"name": "clm", "bias": False},
    }
    keys: ClassVar[tuple[Key, ...]] = (
        Key("vocab_size", "dims.vocabulary", 50257),
        Key("max_position_embeddings", "dims.length", 2048),
        Key("hidden_size", "dims.width", 2048),
        Key("num_layers", "dims.layers", 24),
        Key("num_heads", "dims.heads", 16),
        Key("intermediate_size", "feedforward.inner", None, factors=EXPAND),
        Key("activation_function", "feedforward.activation", "gelu_new", ACTIVATIONS),
        Key("resid_dropout", "dropout", 0.0),
        Key("embed_dropout", "dropout", 0.0),
        Key("attention_dropout", "dropout", 0.0),
        Key("layer_norm_epsilon", "norm.eps", 1e-5),
        Key("tie_word_embeddings", "embedding.tie", True),
    )
    fixed: ClassVar[Mapping[str, Any]] = {"is_encoder_decoder": False}
    same_heads: ClassVar[frozenset[str]] = SAME_AS_CLM
    ignored: ClassVar[frozenset[str]] = SUMMARY_KEYS | {
        "attention_layers", "classifier_dropout", "gradient_checkpointing", "initializer_range",
    }  # fmt: skip  # attention_layers repeats attention_types
    buffers: ClassVar[tuple[str, ...]] = (".attn.attention.bias", ".attn.attention.masked_bias")

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        """Read the layers' kinds of attention, the default of which is a global and a local layer in turn."""
        types = config.take("attention_types", None) or [[[GLOBAL, LOCAL], 12]]
        kinds = [kind for names, count in types for _ in range(count) for kind in names]
        layers, length = (spec["dims"][key] for key in ("layers", "length"))
        window = config.take("window_size", WINDOW)
        if len(kinds) != layers or not set(kinds) <= {GLOBAL, LOCAL}:
            message = f"`attention_types` is {types!r}, which is not a kind of attention for each of {layers} layers"
            config.add_problem("attention_types", message, f"{GLOBAL} or {LOCAL} for each layer")
            kinds = [GLOBAL]
        attentions: Mapping[str, Any] = {
            GLOBAL: {"name": "mha", **ATTENTION},
            LOCAL: {"name": "restricted", "window": min(window, length), **ATTENTION},
        }
        spec["attention"] = shortest_cycle([attentions[kind] for kind in kinds])

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        nodes = as_list(spec["attention"])
        kinds = [LOCAL if "window" in nodes[layer % len(nodes)] else GLOBAL for layer in range(spec["dims"]["layers"])]
        windows = [node["window"] for node in nodes if "window" in node]
        config["attention_types"] = [[kinds, 1]]
        config["window_size"] = windows[0] if windows else WINDOW

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        tied = ("lm_head.weight",) if spec["embedding"]["tie"] else ()
        yield Move("embedding.tokens.weight", "transformer.wte.weight", tied_names=tied)
        if not tied:
            yield Move("embedding.head.weight", "lm_head.weight")
        yield Move("body.position.0.table.weight", "transformer.wpe.weight")
        for kind in ("weight", "bias"):
            yield Move(f"body.norm.{kind}", f"transformer.ln_f.{kind}")
        yield from layer_moves(spec, "transformer.h", PROJECTIONS, ("weight",))
        yield from layer_moves(spec, "transformer.h", BIASED)

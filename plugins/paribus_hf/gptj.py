"""GPT-J of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Final, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf.activations import ACTIVATIONS
from paribus_hf.layer_names import EXPAND, SAME_AS_CLM, SUMMARY_KEYS, layer_moves

ROTARY: Final = 64  # default number of rotated channels of a head
PROJECTIONS: Final[Mapping[str, str]] = {
    "attention.heads.q": "attn.q_proj",
    "attention.heads.k": "attn.k_proj",
    "attention.heads.v": "attn.v_proj",
    "attention.heads.o": "attn.out_proj",
}
BIASED: Final[Mapping[str, str]] = {
    "placement.norms.attention": "ln_1",
    "feedforward.inner": "mlp.fc_in",
    "feedforward.outer": "mlp.fc_out",
}


@final
class GptJ(Family):
    """GPT-J (Wang & Komatsuzaki 2021): parallel attention and feed-forward, and rotary pairs of adjacent channels.

    The output head has a bias.
    """

    kind = "gptj"
    architectures: ClassVar[Mapping[str, Architecture]] = {"GPTJForCausalLM": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        "preset": "gpt-j",
        "topology": "decoder",
        "embedding": {"name": "tokens"},
        "attention": {"name": "mha", "scores": {"bias": False}},
        "position": {"name": "rope", "theta": 10_000.0, "interleaved": True},
        "norm": {"name": "layernorm"},
        "placement": {"name": "parallel", "shared_norm": True},
        "feedforward": {"name": "mlp"},
        "objective": {"name": "clm", "bias": True},
    }
    keys: ClassVar[tuple[Key, ...]] = (
        Key("vocab_size", "dims.vocabulary", 50400),
        Key("n_positions", "dims.length", 2048),
        Key("n_embd", "dims.width", 4096),
        Key("n_layer", "dims.layers", 28),
        Key("n_head", "dims.heads", 16),
        Key("n_inner", "feedforward.inner", None, factors=EXPAND),
        Key("activation_function", "feedforward.activation", "gelu_new", ACTIVATIONS),
        Key("resid_pdrop", "dropout", 0.0),
        Key("embd_pdrop", "dropout", 0.0),
        Key("attn_pdrop", "dropout", 0.0),
        Key("layer_norm_epsilon", "norm.eps", 1e-5),
        Key("tie_word_embeddings", "embedding.tie", False),
    )
    fixed: ClassVar[Mapping[str, Any]] = {"is_encoder_decoder": False}
    legacy: ClassVar[Mapping[str, Any]] = {"rotary": True, "scale_attn_weights": True}
    same_heads: ClassVar[frozenset[str]] = SAME_AS_CLM
    ignored: ClassVar[frozenset[str]] = SUMMARY_KEYS | {"gradient_checkpointing", "initializer_range"}
    buffers: ClassVar[tuple[str, ...]] = (".attn.bias", ".attn.masked_bias", ".attn.embed_positions")

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        """Read the number of rotated channels."""
        rotated, width = config.take("rotary_dim", ROTARY), spec["dims"]["width"] // spec["dims"]["heads"]
        if rotated is None or rotated % 2 or not 2 <= rotated <= width:
            message = f"`rotary_dim` is {rotated!r}, which is not an even number of the {width} channels of a head"
            config.add_problem("rotary_dim", message, f"even numbers from 2 to {width}")
        else:
            spec["position"]["fraction"] = rotated / width

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        width = spec["dims"]["width"] // spec["dims"]["heads"]
        config["rotary_dim"] = round(width * spec["position"]["fraction"])

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        tied = ("lm_head.weight",) if spec["embedding"]["tie"] else ()
        yield Move("embedding.tokens.weight", "transformer.wte.weight", tied_names=tied)
        if not tied:
            yield Move("embedding.head.weight", "lm_head.weight")
        yield Move("objectives.clm.bias", "lm_head.bias")
        for kind in ("weight", "bias"):
            yield Move(f"body.norm.{kind}", f"transformer.ln_f.{kind}")
        yield from layer_moves(spec, "transformer.h", PROJECTIONS, ("weight",))
        yield from layer_moves(spec, "transformer.h", BIASED)

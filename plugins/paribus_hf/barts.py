"""What BART and M2M-100 have in common: how fairseq calls the parts of an encoder-decoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Final

from paribus import Config, Key, Move
from paribus_hf.activations import ACTIVATIONS
from paribus_hf.bodies import EXPAND, layers

PADDING: Final = 1  # rows are numbered from behind it, and M2M-100 counts those of the text alone
OFFSET: Final = PADDING + 1

HEADS: Final = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
NAMES: Final[Mapping[str, str]] = {
    **{f"attention.heads.{ours}": f"self_attn.{theirs}" for ours, theirs in HEADS.items()},
    "placement.norms.attention": "self_attn_layer_norm",
    "feedforward.inner": "fc1",
    "feedforward.outer": "fc2",
    "placement.norms.feedforward": "final_layer_norm",
}
CROSS: Final[Mapping[str, str]] = {
    **{f"cross.heads.{ours}": f"encoder_attn.{theirs}" for ours, theirs in HEADS.items()},
    "placement.norms.cross": "encoder_attn_layer_norm",
}
STACKS: Final = {"body": "model.decoder", "encoder": "model.encoder"}
SIZES: Final = {"layers": "layers", "heads": "attention_heads"}

KEYS: Final[tuple[Key, ...]] = (
    Key("max_position_embeddings", "dims.length", 1024),
    Key("d_model", "dims.width", 1024),
    Key("decoder_layers", "dims.layers", 12),
    Key("decoder_attention_heads", "dims.heads", 16),
    Key("decoder_ffn_dim", "feedforward.inner", 4096, times=EXPAND),
    Key("dropout", "dropout", 0.1),
)
FIXED: Final[Mapping[str, Any]] = {
    "pad_token_id": PADDING,
    "activation_dropout": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "is_decoder": False,
    "is_encoder_decoder": True,
    "tie_word_embeddings": True,
}
IGNORED: Final = frozenset({"gradient_checkpointing", "init_std", "num_hidden_layers"})


def keys(vocabulary: int, activation: str, *, scale: bool, attention_dropout: float) -> tuple[Key, ...]:
    """The table of keys, with the defaults that the two do not share."""
    return (
        *KEYS,
        Key("vocab_size", "dims.vocabulary", vocabulary),
        Key("activation_function", "feedforward.activation", activation, ACTIVATIONS),
        Key("scale_embedding", "embedding.scale", scale),
        Key("attention_dropout", "dropout", attention_dropout),
    )


def read(config: Config, spec: MutableMapping[str, Any]) -> None:
    """What the encoder has otherwise than the decoder."""
    dims, feedforward = spec["dims"], spec["feedforward"]
    said = {ours: config.take(f"encoder_{theirs}", dims[ours]) for ours, theirs in SIZES.items()}
    sizes = {name: size for name, size in said.items() if size != dims[name]}
    inner = config.take("encoder_ffn_dim", feedforward["inner"])
    own: dict[str, Any] = {"dims": sizes} if sizes else {}
    if inner != feedforward["inner"]:
        own["feedforward"] = {**feedforward, "inner": inner}
    if own:
        spec["parts"] = {"encoder": own}


def write(spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
    own = spec["parts"].get("encoder", {})
    for ours, theirs in SIZES.items():
        config[f"encoder_{theirs}"] = own.get("dims", {}).get(ours, spec["dims"][ours])
    config["encoder_ffn_dim"] = own.get("feedforward", spec["feedforward"])["inner"]


def moves(spec: Mapping[str, Any], also: Mapping[str, str]) -> Iterator[Move]:
    """Every tensor; `also` are those that each stack has in one of the two families, and in the other has not."""
    shared = (*(f"{theirs}.embed_tokens.weight" for theirs in STACKS.values()), "lm_head.weight")
    yield Move("embedding.tokens.weight", "model.shared.weight", also=shared)
    for ours, theirs in STACKS.items():
        for name, called in also.items():
            yield Move(f"{ours}.{name}", f"{theirs}.{called}")
        yield from layers(spec, f"{theirs}.layers", {**NAMES, **(CROSS if ours == "body" else {})}, stack=ours)

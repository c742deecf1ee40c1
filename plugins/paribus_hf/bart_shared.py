"""Shared keys and tensor names of BART and M2M-100, which follow fairseq's encoder-decoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Final

from paribus import Config, Key, Move
from paribus_hf.activations import ACTIVATIONS
from paribus_hf.layer_names import EXPAND, layer_moves

PADDING: Final = 1  # positions are numbered from the next id; M2M-100 does not count padding
OFFSET: Final = PADDING + 1

HEADS: Final = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
NAMES: Final[Mapping[str, str]] = {
    **{f"attention.heads.{letter}": f"self_attn.{hf_name}" for letter, hf_name in HEADS.items()},
    "placement.norms.attention": "self_attn_layer_norm",
    "feedforward.inner": "fc1",
    "feedforward.outer": "fc2",
    "placement.norms.feedforward": "final_layer_norm",
}
CROSS: Final[Mapping[str, str]] = {
    **{f"cross.heads.{letter}": f"encoder_attn.{hf_name}" for letter, hf_name in HEADS.items()},
    "placement.norms.cross": "encoder_attn_layer_norm",
}
STACKS: Final = {"body": "model.decoder", "encoder": "model.encoder"}
SIZES: Final = {"layers": "layers", "heads": "attention_heads"}

KEYS: Final[tuple[Key, ...]] = (
    Key("max_position_embeddings", "dims.length", 1024),
    Key("d_model", "dims.width", 1024),
    Key("decoder_layers", "dims.layers", 12),
    Key("decoder_attention_heads", "dims.heads", 16),
    Key("decoder_ffn_dim", "feedforward.inner", 4096, factors=EXPAND),
    Key("dropout", "dropout", 0.1),
)
FIXED: Final[Mapping[str, Any]] = {
    "activation_dropout": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "is_decoder": False,
    "is_encoder_decoder": True,
    "tie_word_embeddings": True,
}
IGNORED: Final = frozenset({"gradient_checkpointing", "init_std", "num_hidden_layers"})


def keys(vocabulary: int, activation: str, *, scale: bool, attention_dropout: float) -> tuple[Key, ...]:
    """Return the table of keys, with the defaults in which the families differ."""
    return (
        *KEYS,
        Key("vocab_size", "dims.vocabulary", vocabulary),
        Key("activation_function", "feedforward.activation", activation, ACTIVATIONS),
        Key("scale_embedding", "embedding.scale", scale),
        Key("attention_dropout", "dropout", attention_dropout),
    )


def read(config: Config, spec: MutableMapping[str, Any]) -> None:
    """Read options of the encoder that differ from the decoder's."""
    dims, feedforward = spec["dims"], spec["feedforward"]
    encoder_sizes = {option: config.take(f"encoder_{hf_size}", dims[option]) for option, hf_size in SIZES.items()}
    sizes = {name: size for name, size in encoder_sizes.items() if size != dims[name]}
    inner = config.take("encoder_ffn_dim", feedforward["inner"])
    overrides: dict[str, Any] = {"dims": sizes} if sizes else {}
    if inner != feedforward["inner"]:
        overrides["feedforward"] = {**feedforward, "inner": inner}
    if overrides:
        spec["parts"] = {"encoder": overrides}


def write(spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
    overrides = spec["parts"].get("encoder", {})
    for size, hf_size in SIZES.items():
        config[f"encoder_{hf_size}"] = overrides.get("dims", {}).get(size, spec["dims"][size])
    config["encoder_ffn_dim"] = overrides.get("feedforward", spec["feedforward"])["inner"]


def moves(spec: Mapping[str, Any], extra: Mapping[str, str]) -> Iterator[Move]:
    """Yield all tensors; `extra` are those of each stack that only one of the families has."""
    embedding_names = (*(f"{hf_stack}.embed_tokens.weight" for hf_stack in STACKS.values()), "lm_head.weight")
    yield Move("embedding.tokens.weight", "model.shared.weight", tied_names=embedding_names)
    for stack, hf_stack in STACKS.items():
        for name, hf_name in extra.items():
            yield Move(f"{stack}.{name}", f"{hf_stack}.{hf_name}")
        yield from layer_moves(spec, f"{hf_stack}.layers", {**NAMES, **(CROSS if stack == "body" else {})}, stack=stack)

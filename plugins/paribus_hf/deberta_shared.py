"""Shared spec, keys and tensor names of all versions of DeBERTa."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Final

from paribus import Config, Key, Move
from paribus_hf.bert_shared import MLM
from paribus_hf.layer_names import EXPAND, POST_NORM, layer_moves

SPEC: Final[Mapping[str, Any]] = {
    "preset": "deberta",
    "topology": "encoder",
    "embedding": {"name": "tokens", "normed": True, "tie": True},
    "norm": {"name": "layernorm"},
    "placement": "post",
    "feedforward": {"name": "mlp", "activation": "gelu"},
    "objective": MLM,  # without absolute positions: `transformers` has no enhanced mask decoder
}
FIXED: Final[Mapping[str, Any]] = {
    "hidden_act": "gelu",  # also that of the head
    "is_encoder_decoder": False,
    "tie_word_embeddings": True,
}
IGNORED: Final = frozenset(
    {"initializer_range", "padding_idx", "pooler_dropout", "pooler_hidden_act", "pooler_hidden_size"}
)
TERMS: Final[Mapping[frozenset[str], str]] = {
    frozenset({"c2p", "p2c"}): "both",
    frozenset({"c2p"}): "c2p",
    frozenset({"p2c"}): "p2c",
}


def keys(vocabulary: int, width: int, layers: int, heads: int) -> tuple[Key, ...]:
    """Return the table of keys, with the defaults in which the versions differ."""
    return (
        Key("vocab_size", "dims.vocabulary", vocabulary),
        Key("max_position_embeddings", "dims.length", 512),
        Key("hidden_size", "dims.width", width),
        Key("num_hidden_layers", "dims.layers", layers),
        Key("num_attention_heads", "dims.heads", heads),
        Key("intermediate_size", "feedforward.inner", 4 * width, factors=EXPAND),
        Key("type_vocab_size", "embedding.segments", 0),
        Key("hidden_dropout_prob", "dropout", 0.1),
        Key("attention_probs_dropout_prob", "dropout", 0.1),
        Key("layer_norm_eps", "norm.eps", 1e-7),
    )


def read(config: Config, spec: MutableMapping[str, Any], *, relative: bool) -> None:
    """Read relative positions, the only ones that Paribus supports for DeBERTa."""
    config.take("legacy", True)  # selects one of two names of the head
    for name, default, required in (("relative_attention", relative, True), ("position_biased_input", True, False)):
        if config.take(name, default) is not required:
            config.add_problem(name, f"`{name}` must be {required}: Paribus supports relative positions only")
    value = config.take("pos_att_type", None) or ()
    terms = frozenset(term.strip() for term in (value.lower().split("|") if isinstance(value, str) else value))
    if terms not in TERMS:
        config.add_problem("pos_att_type", f"unsupported `pos_att_type` {value!r}", "c2p, p2c or both")
    distance = config.take("max_relative_positions", -1)
    spec["position"] = {
        **spec["position"],
        "distance": distance if distance >= 1 else spec["dims"]["length"],
        "scores": TERMS.get(terms, "both"),
    }


def write(spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
    position = spec["position"]
    terms = next(terms for terms, name in TERMS.items() if name == position["scores"])
    config.update(
        legacy=True,
        relative_attention=True,
        position_biased_input=False,
        max_relative_positions=position["distance"],
        pos_att_type=sorted(terms),
    )


def moves(spec: Mapping[str, Any]) -> Iterator[Move]:
    """Yield all tensors but queries, keys and values."""
    embeddings, head = "deberta.embeddings", "cls.predictions"
    tied = (f"{head}.decoder.weight",)
    yield Move("embedding.tokens.weight", f"{embeddings}.word_embeddings.weight", tied_names=tied)
    if spec["embedding"]["segments"]:
        yield Move("embedding.segments.weight", f"{embeddings}.token_type_embeddings.weight")
    yield Move("body.position.0.table.weight", "deberta.encoder.rel_embeddings.weight")
    aliases, new_head = (f"{head}.decoder.bias",), "lm_predictions.lm_head"
    yield Move("objectives.mlm.bias", f"{head}.bias", tied_names=aliases, hf_alternative=f"{new_head}.bias")
    for kind in ("weight", "bias"):
        yield Move(f"body.embedding.norm.{kind}", f"{embeddings}.LayerNorm.{kind}")
        for module, hf_module in (("dense", "dense"), ("norm", "LayerNorm")):
            hf_name, new_name = f"{head}.transform.{hf_module}.{kind}", f"{new_head}.{hf_module}.{kind}"
            yield Move(f"objectives.mlm.{module}.{kind}", hf_name, hf_alternative=new_name)
    names = {module: hf_module for module, hf_module in POST_NORM.items() if module[-2:] not in (".q", ".k", ".v")}
    yield from layer_moves(spec, "deberta.encoder.layer", names)

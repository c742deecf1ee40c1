"""What DeBERTa has in common with its second and third version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Final

from paribus import Config, Key, Move
from paribus_hf.berts import MLM
from paribus_hf.bodies import EXPAND, POST_NORM, layers

SPEC: Final[Mapping[str, Any]] = {
    "preset": "deberta",
    "topology": "encoder",
    "embedding": {"name": "tokens", "normed": True, "tie": True},
    "norm": {"name": "layernorm"},
    "placement": "post",
    "feedforward": {"name": "mlp", "activation": "gelu"},
    "objective": MLM,  # with no table of places: theirs leaves out where the enhanced decoder had them
}
FIXED: Final[Mapping[str, Any]] = {
    "hidden_act": "gelu",  # which is also that of the head
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
    """The table of keys, with the defaults that they do not share."""
    return (
        Key("vocab_size", "dims.vocabulary", vocabulary),
        Key("max_position_embeddings", "dims.length", 512),
        Key("hidden_size", "dims.width", width),
        Key("num_hidden_layers", "dims.layers", layers),
        Key("num_attention_heads", "dims.heads", heads),
        Key("intermediate_size", "feedforward.inner", 4 * width, times=EXPAND),
        Key("type_vocab_size", "embedding.segments", 0),
        Key("hidden_dropout_prob", "dropout", 0.1),
        Key("attention_probs_dropout_prob", "dropout", 0.1),
        Key("layer_norm_eps", "norm.eps", 1e-7),
    )


def read(config: Config, spec: MutableMapping[str, Any], *, relative: bool) -> None:
    """How far apart rows are, which is all that theirs may say here of where they are."""
    config.take("legacy", True)  # which of two names the head goes by
    for name, default, needed in (("relative_attention", relative, True), ("position_biased_input", True, False)):
        if config.take(name, default) is not needed:
            config.wrong(name, f"`{name}` is not {needed}: rows are told apart by distances, and by nothing else")
    said = config.take("pos_att_type", None) or ()
    terms = frozenset(term.strip() for term in (said.lower().split("|") if isinstance(said, str) else said))
    if terms not in TERMS:
        config.wrong("pos_att_type", f"`pos_att_type` is {said!r}, which no component here does", "c2p, p2c or both")
    distance = config.take("max_relative_positions", -1)
    spec["position"] = {
        **spec["position"],
        "distance": distance if distance >= 1 else spec["dims"]["length"],
        "scores": TERMS.get(terms, "both"),
    }


def write(spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
    position = spec["position"]
    terms = next(terms for terms, said in TERMS.items() if said == position["scores"])
    config.update(
        legacy=True,
        relative_attention=True,
        position_biased_input=False,
        max_relative_positions=position["distance"],
        pos_att_type=sorted(terms),
    )


def moves(spec: Mapping[str, Any]) -> Iterator[Move]:
    """Every tensor but those of queries, keys and values."""
    embeddings, head = "deberta.embeddings", "cls.predictions"
    tied = (f"{head}.decoder.weight",)
    yield Move("embedding.tokens.weight", f"{embeddings}.word_embeddings.weight", also=tied)
    if spec["embedding"]["segments"]:
        yield Move("embedding.segments.weight", f"{embeddings}.token_type_embeddings.weight")
    yield Move("body.position.0.table.weight", "deberta.encoder.rel_embeddings.weight")
    also, newer = (f"{head}.decoder.bias",), "lm_predictions.lm_head"
    yield Move("objectives.mlm.bias", f"{head}.bias", also=also, otherwise=f"{newer}.bias")
    for kind in ("weight", "bias"):
        yield Move(f"body.embedding.norm.{kind}", f"{embeddings}.LayerNorm.{kind}")
        for ours, theirs in (("dense", "dense"), ("norm", "LayerNorm")):
            place, other = f"{head}.transform.{theirs}.{kind}", f"{newer}.{theirs}.{kind}"
            yield Move(f"objectives.mlm.{ours}.{kind}", place, otherwise=other)
    rest = {ours: theirs for ours, theirs in POST_NORM.items() if ours[-2:] not in (".q", ".k", ".v")}
    yield from layers(spec, "deberta.encoder.layer", rest)

"""T5 of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Final, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf.bodies import depth

FEEDFORWARDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "relu": {"name": "mlp", "activation": "relu", "bias": False},
    "gated-gelu": {"name": "glu", "activation": "gelu-tanh", "bias": False},
    "gated-silu": {"name": "glu", "activation": "silu", "bias": False},
}
HEADS: Final = {name: f"attention.heads.{name}" for name in "qkvo"}
DERIVED: Final = frozenset({"dense_act_fn", "is_gated_act"})  # of `feed_forward_proj`


@final
class T5(Family):
    """ "Exploring the Limits of Transfer Learning …" (Raffel et al. 2020), and T5 1.1."""

    kind = "t5"
    architectures: ClassVar[Mapping[str, Architecture]] = {"T5ForConditionalGeneration": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        "preset": "t5-base",
        "topology": "encoder-decoder",
        "embedding": {"name": "tokens"},
        "attention": {"name": "mha", "scores": {"bias": False, "scaled": False}},
        "position": {"name": "t5"},
        "norm": {"name": "rmsnorm"},
        "placement": "pre",
        "feedforward": FEEDFORWARDS["relu"],
        "objective": "span-corruption",
    }
    keys: ClassVar[tuple[Key, ...]] = (
        Key("vocab_size", "dims.vocabulary", 32128),
        Key("n_positions", "dims.length", 512),  # what it was trained with: nothing ends there
        Key("d_model", "dims.width", 512),
        Key("num_heads", "dims.heads", 8),
        Key("d_kv", "dims.head_width", 64),
        Key("relative_attention_num_buckets", "position.buckets", 32),
        Key("relative_attention_max_distance", "position.distance", 128),
        Key("dropout_rate", "dropout", 0.1),
        Key("layer_norm_epsilon", "norm.eps", 1e-6),
        Key("tie_word_embeddings", "embedding.tie", True),
    )
    fixed: ClassVar[Mapping[str, Any]] = {"is_encoder_decoder": True, "is_decoder": False}
    ignored: ClassVar[frozenset[str]] = DERIVED | {"classifier_dropout", "initializer_factor", "output_past"}
    varies: ClassVar[frozenset[str]] = frozenset({"feedforward"})

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        """The depths, the feed-forward, and whether rows are divided before they are scored, by default if tied."""
        encoder = config.take("num_layers", 6)
        spec["dims"]["layers"] = config.take("num_decoder_layers", None) or encoder
        if encoder != spec["dims"]["layers"]:
            spec["parts"] = {"encoder": {"dims": {"layers": encoder}}}
        kind = config.take("feed_forward_proj", "relu")
        if kind in FEEDFORWARDS:
            spec["feedforward"] = {**FEEDFORWARDS[kind], "inner": config.take("d_ff", 2048)}
        else:
            config.wrong(
                "feed_forward_proj",
                f"`feed_forward_proj` is {kind!r}, which no component here does",
                ", ".join(FEEDFORWARDS),
            )
        spec["embedding"]["scale_outputs"] = config.take("scale_decoder_outputs", spec["embedding"]["tie"])

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        node = spec["feedforward"]
        kinds = [
            kind
            for kind, said in FEEDFORWARDS.items()
            if (said["name"], said["activation"]) == (node["name"], node["activation"])
        ]
        said: dict[str, Any] = {
            "num_decoder_layers": spec["dims"]["layers"],
            "num_layers": depth(spec, "encoder"),
            "feed_forward_proj": kinds[0] if kinds else node["activation"],
            "d_ff": node["inner"] or round(node["expand"] * spec["dims"]["width"]),
            "d_kv": spec["dims"]["head_width"] or spec["dims"]["width"] // spec["dims"]["heads"],
            "scale_decoder_outputs": spec["embedding"]["scale_outputs"],
        }
        config.update(said)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        also: tuple[str, ...] = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
        if spec["embedding"]["tie"]:
            also = (*also, "lm_head.weight")
        else:
            yield Move("embedding.head.weight", "lm_head.weight")
        yield Move("embedding.tokens.weight", "shared.weight", also=also)
        yield from _stack(spec, "encoder", "encoder", {"attention": "SelfAttention"})
        yield from _stack(spec, "body", "decoder", {"attention": "SelfAttention", "cross": "EncDecAttention"})


def _stack(spec: Mapping[str, Any], ours: str, theirs: str, attentions: Mapping[str, str]) -> Iterator[Move]:
    """One stack; its table of relative positions is kept in its first layer."""
    table = f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    yield Move(f"{ours}.position.0.table.weight", table)
    yield Move(f"{ours}.norm.weight", f"{theirs}.final_layer_norm.weight")
    gated = spec["feedforward"]["name"] == "glu"
    inner = {"gate": "wi_0", "inner": "wi_1", "outer": "wo"} if gated else {"inner": "wi", "outer": "wo"}
    for layer in range(depth(spec, ours)):
        here, there = f"{ours}.layers.{layer}", f"{theirs}.block.{layer}.layer"
        for place, (name, kind) in enumerate(attentions.items()):
            yield Move(f"{here}.placement.norms.{name}.weight", f"{there}.{place}.layer_norm.weight")
            for letter in "qkvo":
                yield Move(f"{here}.{name}.heads.{letter}.weight", f"{there}.{place}.{kind}.{letter}.weight")
        last = f"{there}.{len(attentions)}"
        yield Move(f"{here}.placement.norms.feedforward.weight", f"{last}.layer_norm.weight")
        for name, called in inner.items():
            yield Move(f"{here}.feedforward.{name}.weight", f"{last}.DenseReluDense.{called}.weight")

"""T5 of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Final, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf.layer_names import SAME_AS_DENOISE, stack_depth

FEEDFORWARDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "relu": {"name": "mlp", "activation": "relu", "bias": False},
    "gated-gelu": {"name": "glu", "activation": "gelu-tanh", "bias": False},
    "gated-silu": {"name": "glu", "activation": "silu", "bias": False},
}
HEADS: Final = {name: f"attention.heads.{name}" for name in "qkvo"}
DERIVED: Final = frozenset({"dense_act_fn", "is_gated_act"})  # of `feed_forward_proj`


@final
class T5(Family):
    """T5 (Raffel et al. 2020) and T5 1.1."""

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
        Key("n_positions", "dims.length", 512),  # length of training, not a limit
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
    same_heads: ClassVar[frozenset[str]] = SAME_AS_DENOISE
    ignored: ClassVar[frozenset[str]] = DERIVED | {"classifier_dropout", "initializer_factor", "output_past"}
    variable_slots: ClassVar[frozenset[str]] = frozenset({"feedforward"})

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        """Read depths, the feed-forward, and the scale of outputs, whose default is that of tied embeddings."""
        encoder = config.take("num_layers", 6)
        spec["dims"]["layers"] = config.take("num_decoder_layers", None) or encoder
        if encoder != spec["dims"]["layers"]:
            spec["parts"] = {"encoder": {"dims": {"layers": encoder}}}
        kind = config.take("feed_forward_proj", "relu")
        if kind in FEEDFORWARDS:
            spec["feedforward"] = {**FEEDFORWARDS[kind], "inner": config.take("d_ff", 2048)}
        else:
            config.add_problem(
                "feed_forward_proj",
                f"unsupported `feed_forward_proj` {kind!r}",
                ", ".join(FEEDFORWARDS),
            )
        spec["embedding"]["scale_outputs"] = config.take("scale_decoder_outputs", spec["embedding"]["tie"])

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        node = spec["feedforward"]
        kinds = [
            kind
            for kind, values in FEEDFORWARDS.items()
            if (values["name"], values["activation"]) == (node["name"], node["activation"])
        ]
        values: dict[str, Any] = {
            "num_decoder_layers": spec["dims"]["layers"],
            "num_layers": stack_depth(spec, "encoder"),
            "feed_forward_proj": kinds[0] if kinds else node["activation"],
            "d_ff": node["inner"] or round(node["expand"] * spec["dims"]["width"]),
            "d_kv": spec["dims"]["head_width"] or spec["dims"]["width"] // spec["dims"]["heads"],
            "scale_decoder_outputs": spec["embedding"]["scale_outputs"],
        }
        config.update(values)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        also: tuple[str, ...] = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
        if spec["embedding"]["tie"]:
            also = (*also, "lm_head.weight")
        else:
            yield Move("embedding.head.weight", "lm_head.weight")
        yield Move("embedding.tokens.weight", "shared.weight", tied_names=also)
        yield from _stack_moves(spec, "encoder", "encoder", {"attention": "SelfAttention"})
        yield from _stack_moves(spec, "body", "decoder", {"attention": "SelfAttention", "cross": "EncDecAttention"})


def _stack_moves(spec: Mapping[str, Any], stack: str, hf_stack: str, attentions: Mapping[str, str]) -> Iterator[Move]:
    """Yield the tensors of one stack; its table of relative positions is in its first layer."""
    table = f"{hf_stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    yield Move(f"{stack}.position.0.table.weight", table)
    yield Move(f"{stack}.norm.weight", f"{hf_stack}.final_layer_norm.weight")
    gated = spec["feedforward"]["name"] == "glu"
    inner = {"gate": "wi_0", "inner": "wi_1", "outer": "wo"} if gated else {"inner": "wi", "outer": "wo"}
    for layer in range(stack_depth(spec, stack)):
        layer_path, hf_layer = f"{stack}.layers.{layer}", f"{hf_stack}.block.{layer}.layer"
        for index, (name, kind) in enumerate(attentions.items()):
            yield Move(f"{layer_path}.placement.norms.{name}.weight", f"{hf_layer}.{index}.layer_norm.weight")
            for letter in "qkvo":
                yield Move(f"{layer_path}.{name}.heads.{letter}.weight", f"{hf_layer}.{index}.{kind}.{letter}.weight")
        hf_feedforward = f"{hf_layer}.{len(attentions)}"
        yield Move(f"{layer_path}.placement.norms.feedforward.weight", f"{hf_feedforward}.layer_norm.weight")
        for name, hf_name in inner.items():
            yield Move(f"{layer_path}.feedforward.{name}.weight", f"{hf_feedforward}.DenseReluDense.{hf_name}.weight")

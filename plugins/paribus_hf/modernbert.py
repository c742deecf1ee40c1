"""ModernBERT of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Final, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import bert_shared
from paribus_hf.activations import ACTIVATIONS
from paribus_hf.layer_names import EXPAND, as_list, shortest_cycle

FULL, SLIDING = "full_attention", "sliding_attention"
GLOBAL_EVERY: Final = 3  # period of layers with full attention, starting with the first
DROPOUTS: Final = ("embedding_dropout", "attention_dropout", "mlp_dropout")


@final
class ModernBert(Family):
    """ModernBERT (Warner et al. 2024).

    Every third layer has full attention, the others a sliding window and a smaller rotary base; gated feed-forwards, no
    biases, and no norm before the first attention, because one follows the embedding.
    """

    kind = "modernbert"
    architectures: ClassVar[Mapping[str, Architecture]] = {"ModernBertForMaskedLM": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        "preset": "modernbert-base",
        "topology": "encoder",
        "embedding": {"name": "tokens", "normed": True},
        "norm": {"name": "layernorm"},
        "placement": {"name": "pre", "bare_first": True},
        "feedforward": {"name": "glu"},
        "objective": {**bert_shared.MLM, "transform_bias": False},
    }
    keys: ClassVar[tuple[Key, ...]] = (
        Key("vocab_size", "dims.vocabulary", 50368),
        Key("max_position_embeddings", "dims.length", 8192),
        Key("hidden_size", "dims.width", 768),
        Key("num_hidden_layers", "dims.layers", 22),
        Key("num_attention_heads", "dims.heads", 12),
        Key("intermediate_size", "feedforward.inner", 1152, factors=EXPAND),
        Key("hidden_activation", "feedforward.activation", "gelu", ACTIVATIONS),
        Key("mlp_bias", "feedforward.bias", False),
        Key("norm_eps", "norm.eps", 1e-5),
        Key("norm_bias", "norm.bias", False),
        *(Key(name, "dropout", 0.0) for name in DROPOUTS),
        Key("tie_word_embeddings", "embedding.tie", True),
    )
    fixed: ClassVar[Mapping[str, Any]] = {
        "is_encoder_decoder": False,
        "decoder_bias": True,
        "classifier_bias": False,  # also that of the head's dense layer
        "classifier_activation": "gelu",  # also that of the head
    }
    ignored: ClassVar[frozenset[str]] = frozenset(
        {
            "classifier_dropout", "classifier_pooling", "deterministic_flash_attn", "global_attn_every_n_layers",
            "gradient_checkpointing", "initializer_cutoff_factor", "initializer_range", "reference_compile",
            "repad_logits_with_grad", "sparse_pred_ignore_index", "sparse_prediction",
        }
    )  # fmt: skip

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        """Read the layers' attention windows and rotary bases."""
        layers = spec["dims"]["layers"]
        period = config.values.get("global_attn_every_n_layers", GLOBAL_EVERY)
        kinds = config.take("layer_types", [SLIDING if layer % period else FULL for layer in range(layers)])
        scores = {"bias": config.take("attention_bias", False)}
        window = config.take("local_attention", 128) // 2 + 1
        rope = config.take("rope_parameters", None) or {
            FULL: {"rope_theta": config.take("global_rope_theta", 160_000.0)},
            SLIDING: {"rope_theta": config.take("local_rope_theta", 10_000.0)},
        }
        config.ignore({"global_rope_theta", "local_rope_theta"})
        attentions: Mapping[str, Any] = {
            FULL: {"name": "mha", "scores": scores},
            SLIDING: {"name": "restricted", "window": min(window, spec["dims"]["length"]), "scores": scores},
        }
        if any(parameters.get("rope_type", "default") != "default" for parameters in rope.values()):
            config.add_problem("rope_parameters", f"unsupported `rope_parameters` {rope!r}", "rope_type default")
        spec["attention"] = shortest_cycle([attentions[kind] for kind in kinds])
        spec["position"] = shortest_cycle(
            [{"name": "rope", "theta": float(rope[kind]["rope_theta"])} for kind in kinds]
        )

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        attentions, positions = (as_list(spec[slot]) for slot in ("attention", "position"))
        layers = spec["dims"]["layers"]
        kinds = [SLIDING if "window" in attentions[layer % len(attentions)] else FULL for layer in range(layers)]
        thetas = {kind: positions[layer % len(positions)].get("theta", 1e4) for layer, kind in enumerate(kinds)}
        windows = [node["window"] for node in attentions if "window" in node]
        values: dict[str, Any] = {
            "pad_token_id": None,  # the default is outside a small vocabulary
            "layer_types": kinds,
            "attention_bias": attentions[0]["scores"]["bias"],
            "local_attention": 2 * (windows[0] - 1) if windows else 128,
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": thetas.get(kind, default)}
                for kind, default in ((FULL, 160_000.0), (SLIDING, 10_000.0))
            },
        }
        config.update(values)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        tie = spec["embedding"]["tie"]
        yield Move(
            "embedding.tokens.weight",
            "model.embeddings.tok_embeddings.weight",
            tied_names=("decoder.weight",) if tie else (),
        )
        if not tie:
            yield Move("embedding.head.weight", "decoder.weight")
        yield Move("objectives.mlm.bias", "decoder.bias")
        yield Move("objectives.mlm.dense.weight", "head.dense.weight")
        norm_suffixes = ("weight", "bias") if spec["norm"]["bias"] else ("weight",)
        for kind in norm_suffixes:
            yield Move(f"body.embedding.norm.{kind}", f"model.embeddings.norm.{kind}")
            yield Move(f"body.norm.{kind}", f"model.final_norm.{kind}")
            yield Move(f"objectives.mlm.norm.{kind}", f"head.norm.{kind}")
        attention_suffixes = ("weight", "bias") if as_list(spec["attention"])[0]["scores"]["bias"] else ("weight",)
        feedforward_suffixes = ("weight", "bias") if spec["feedforward"]["bias"] else ("weight",)
        for layer in range(spec["dims"]["layers"]):
            layer_path, hf_layer = f"body.layers.{layer}", f"model.layers.{layer}"
            for kind in norm_suffixes:
                if layer:
                    yield Move(f"{layer_path}.placement.norms.attention.{kind}", f"{hf_layer}.attn_norm.{kind}")
                yield Move(f"{layer_path}.placement.norms.feedforward.{kind}", f"{hf_layer}.mlp_norm.{kind}")
            for kind in attention_suffixes:
                for part, name in enumerate("qkv"):
                    yield Move(
                        f"{layer_path}.attention.heads.{name}.{kind}",
                        f"{hf_layer}.attn.Wqkv.{kind}",
                        part=part,
                        parts=3,
                    )
                yield Move(f"{layer_path}.attention.heads.o.{kind}", f"{hf_layer}.attn.Wo.{kind}")
            for kind in feedforward_suffixes:
                for part, name in enumerate(("gate", "inner")):
                    yield Move(
                        f"{layer_path}.feedforward.{name}.{kind}", f"{hf_layer}.mlp.Wi.{kind}", part=part, parts=2
                    )
                yield Move(f"{layer_path}.feedforward.outer.{kind}", f"{hf_layer}.mlp.Wo.{kind}")

"""XLNet of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Final, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf.activations import ACTIVATIONS
from paribus_hf.layer_names import EXPAND, layer_moves

PARAMETERS: Final[Mapping[str, str]] = {
    "position.leanings.key": "rel_attn.r_w_bias",
    "position.leanings.distance": "rel_attn.r_r_bias",
    "position.leanings.segment": "rel_attn.r_s_bias",
    "position.segments": "rel_attn.seg_embed",
}
MODULES: Final[Mapping[str, str]] = {
    "placement.norms.attention": "rel_attn.layer_norm",
    "feedforward.inner": "ff.layer_1",
    "feedforward.outer": "ff.layer_2",
    "placement.norms.feedforward": "ff.layer_norm",
}


@final
class XlNet(Family):
    """XLNet (Yang et al. 2019), with both streams and no memory."""

    kind = "xlnet"
    architectures: ClassVar[Mapping[str, Architecture]] = {"XLNetLMHeadModel": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        "preset": "xlnet",
        "topology": "two-stream",
        "embedding": {"name": "tokens", "segments": 0, "normed": False, "tie": True},
        "attention": {"name": "mha", "scores": {"bias": False}},
        "position": {"name": "transformer-xl", "untied": True, "segments": True, "base": 10_000.0},
        "norm": {"name": "layernorm"},
        "placement": "post",
        "feedforward": {"name": "mlp"},
        "objective": {"name": "permutation", "bias": True},
    }
    keys: ClassVar[tuple[Key, ...]] = (
        Key("vocab_size", "dims.vocabulary", 32000),
        Key("n_positions", "dims.length", 512),  # unused there, not a limit
        Key("d_model", "dims.width", 1024),
        Key("n_layer", "dims.layers", 24),
        Key("n_head", "dims.heads", 16),
        Key("d_inner", "feedforward.inner", 4096, factors=EXPAND),
        Key("ff_activation", "feedforward.activation", "gelu", ACTIVATIONS),
        Key("dropout", "dropout", 0.1),
        Key("layer_norm_eps", "norm.eps", 1e-12),
    )
    fixed: ClassVar[Mapping[str, Any]] = {
        "attn_type": "bi",
        "bi_data": False,
        "clamp_len": -1,
        "is_encoder_decoder": False,
        "same_length": False,
        "tie_word_embeddings": True,
    }
    ignored: ClassVar[frozenset[str]] = frozenset(
        {
            "end_n_top", "initializer_range", "mem_len", "reuse_len", "start_n_top", "summary_activation",
            "summary_last_dropout", "summary_type", "summary_use_proj", "use_mems_eval", "use_mems_train",
        }
    )  # fmt: skip

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        """Read `untie_r` and `d_head` of older configurations."""
        config.require("untie_r", True)
        width, heads = (spec["dims"][key] for key in ("width", "heads"))
        if config.take("d_head", None) not in (None, width // heads):
            config.add_problem("d_head", "`d_head` must be `d_model` / `n_head`", f"{width // heads}")

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        """Yield all tensors; projections have an axis of heads there."""
        width, heads = (spec["dims"][key] for key in ("width", "heads"))
        yield Move("embedding.tokens.weight", "transformer.word_embedding.weight", tied_names=("lm_loss.weight",))
        yield Move("objectives.permutation.bias", "lm_loss.bias")
        yield Move("query.vector", "transformer.mask_emb", hf_shape=(1, 1, width))
        yield from layer_moves(spec, "transformer.layer", MODULES)
        for layer in range(spec["dims"]["layers"]):
            layer_path, hf_layer, axes = (
                f"body.layers.{layer}",
                f"transformer.layer.{layer}",
                (width, heads, width // heads),
            )
            for name in "qkvo":
                hf_name = f"{hf_layer}.rel_attn.{name}"
                yield Move(f"{layer_path}.attention.heads.{name}.weight", hf_name, name != "o", hf_shape=axes)
            yield Move(
                f"{layer_path}.position.project.weight", f"{hf_layer}.rel_attn.r", transposed=True, hf_shape=axes
            )
            for path, name in PARAMETERS.items():
                yield Move(f"{layer_path}.{path}", f"{hf_layer}.{name}")

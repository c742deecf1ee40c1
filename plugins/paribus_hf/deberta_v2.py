"""DeBERTa, versions 2 and 3, of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Final, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import deberta_shared
from paribus_hf.layer_names import layer_moves

EPS: Final = 1e-7  # of the distance table's norm, which has no option here
NAMES: Final[Mapping[str, str]] = {
    f"attention.heads.{name[0]}": f"attention.self.{name}_proj" for name in ("query", "key", "value")
}


@final
class DebertaV2(Family):
    """DeBERTa v2 and v3 (He et al. 2023): shared projections of distances, in logarithmic buckets."""

    kind = "deberta-v2"
    architectures: ClassVar[Mapping[str, Architecture]] = {"DebertaV2ForMaskedLM": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        **deberta_shared.SPEC,
        "attention": {"name": "mha", "key_bias": True},
        "position": {"name": "disentangled", "separate_projections": False},
    }
    keys: ClassVar[tuple[Key, ...]] = deberta_shared.keys(128100, 1536, 24, 24)
    fixed: ClassVar[Mapping[str, Any]] = {**deberta_shared.FIXED, "conv_kernel_size": 0}
    ignored: ClassVar[frozenset[str]] = deberta_shared.IGNORED | {"conv_act", "conv_groups"}
    buffers: ClassVar[tuple[str, ...]] = ("embeddings.position_ids",)

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        """Read the norm, buckets and projections of distances; the default there is separate projections."""
        deberta_shared.read(config, spec, relative=True)
        if config.take("share_att_key", False) is not True:
            config.add_problem(
                "share_att_key", "`share_att_key` must be True: separate projections have a key bias that Paribus lacks"
            )
        width, heads = (spec["dims"][key] for key in ("width", "heads"))
        if config.take("attention_head_size", width // heads) != width // heads:
            config.add_problem("attention_head_size", "the head width must be `hidden_size` / `num_attention_heads`")
        buckets = config.take("position_buckets", -1)
        normed = "layer_norm" in config.take("norm_rel_ebd", "none").lower()
        if normed and spec["norm"]["eps"] != EPS:
            config.add_problem("layer_norm_eps", "the norm of distances has a fixed eps in Paribus", f"{EPS}")
        spec["position"] = {**spec["position"], "buckets": buckets if buckets > 0 else None, "normed": normed}

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        deberta_shared.write(spec, config)
        position = spec["position"]
        config.update(
            share_att_key=True,
            position_buckets=position["buckets"] or -1,
            norm_rel_ebd="layer_norm" if position["normed"] else "none",
        )

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        yield from deberta_shared.moves(spec)
        yield from layer_moves(spec, "deberta.encoder.layer", NAMES)
        for kind in ("weight", "bias") if spec["position"]["normed"] else ():
            yield Move(f"body.position.0.norm.{kind}", f"deberta.encoder.LayerNorm.{kind}")

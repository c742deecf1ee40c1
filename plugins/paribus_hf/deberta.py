"""DeBERTa, version 1, of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import deberta_shared


@final
class Deberta(Family):
    """DeBERTa (He et al. 2021), without its enhanced mask decoder."""

    kind = "deberta"
    architectures: ClassVar[Mapping[str, Architecture]] = {"DebertaForMaskedLM": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        **deberta_shared.SPEC,
        "attention": {"name": "mha", "key_bias": False},
        "position": {"name": "disentangled", "separate_projections": True, "buckets": None, "normed": False},
    }
    keys: ClassVar[tuple[Key, ...]] = deberta_shared.keys(50265, 768, 12, 12)
    fixed: ClassVar[Mapping[str, Any]] = deberta_shared.FIXED
    ignored: ClassVar[frozenset[str]] = deberta_shared.IGNORED
    buffers: ClassVar[tuple[str, ...]] = ("embeddings.position_ids",)

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        config.require("talking_head", False)
        deberta_shared.read(config, spec, relative=False)

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        deberta_shared.write(spec, config)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        """Yield all tensors. The fused query/key/value matrix is interleaved by head."""
        yield from deberta_shared.moves(spec)
        scores, heads = spec["position"]["scores"], spec["dims"]["heads"]
        for layer in range(spec["dims"]["layers"]):
            layer_path, hf_attention = f"body.layers.{layer}", f"deberta.encoder.layer.{layer}.attention.self"
            for part, name in enumerate("qkv"):
                path = f"{layer_path}.attention.heads.{name}"
                yield Move(f"{path}.weight", f"{hf_attention}.in_proj.weight", part=part, parts=3, interleaved=heads)
                if name != "k":
                    yield Move(f"{path}.bias", f"{hf_attention}.{name}_bias")
            if scores != "p2c":
                yield Move(f"{layer_path}.position.key.weight", f"{hf_attention}.pos_proj.weight")
            for kind in ("weight", "bias") if scores != "c2p" else ():
                yield Move(f"{layer_path}.position.query.{kind}", f"{hf_attention}.pos_q_proj.{kind}")

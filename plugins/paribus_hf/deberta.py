"""The first DeBERTa of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import debertas


@final
class Deberta(Family):
    """ "DeBERTa: Decoding-enhanced BERT with Disentangled Attention" (He et al. 2021), without its decoder."""

    kind = "deberta"
    architectures: ClassVar[Mapping[str, Architecture]] = {"DebertaForMaskedLM": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        **debertas.SPEC,
        "attention": {"name": "mha", "key_bias": False},
        "position": {"name": "disentangled", "separate_projections": True, "buckets": None, "normed": False},
    }
    keys: ClassVar[tuple[Key, ...]] = debertas.keys(50265, 768, 12, 12)
    fixed: ClassVar[Mapping[str, Any]] = debertas.FIXED
    ignored: ClassVar[frozenset[str]] = debertas.IGNORED
    buffers: ClassVar[tuple[str, ...]] = ("embeddings.position_ids",)

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        config.only("talking_head", False)
        debertas.read(config, spec, relative=False)

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        debertas.write(spec, config)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        """Every tensor. Their matrix of queries, keys and values has those of each head side by side."""
        yield from debertas.moves(spec)
        scores, heads = spec["position"]["scores"], spec["dims"]["heads"]
        for layer in range(spec["dims"]["layers"]):
            ours, theirs = f"body.layers.{layer}", f"deberta.encoder.layer.{layer}.attention.self"
            for part, name in enumerate("qkv"):
                place = f"{ours}.attention.heads.{name}"
                yield Move(f"{place}.weight", f"{theirs}.in_proj.weight", part=part, parts=3, turns=heads)
                if name != "k":
                    yield Move(f"{place}.bias", f"{theirs}.{name}_bias")
            if scores != "p2c":
                yield Move(f"{ours}.position.key.weight", f"{theirs}.pos_proj.weight")
            for kind in ("weight", "bias") if scores != "c2p" else ():
                yield Move(f"{ours}.position.query.{kind}", f"{theirs}.pos_q_proj.{kind}")

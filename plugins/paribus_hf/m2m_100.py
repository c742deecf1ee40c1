"""M2M-100 of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import barts


@final
class M2M100(Family):
    """ "Beyond English-Centric Multilingual Machine Translation" (Fan et al. 2021).

    It drops whole layers as it is trained, which no component here does: its two rates are told to be 0 to convert. Of
    its languages nothing is converted, since their tokens are others there.
    """

    kind = "m2m_100"
    architectures: ClassVar[Mapping[str, Architecture]] = {"M2M100ForConditionalGeneration": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        "preset": "m2m100",
        "topology": "encoder-decoder",
        "embedding": {"name": "tokens"},
        "attention": {"name": "mha", "scores": {"bias": True}},
        "position": {"name": "sinusoidal", "layout": "halves", "closed": True, "offset": barts.OFFSET},
        "norm": {"name": "layernorm"},
        "placement": "pre",
        "feedforward": {"name": "mlp"},
        "objective": {"name": "seq2seq", "languages": None},
    }
    keys: ClassVar[tuple[Key, ...]] = barts.keys(128112, "relu", scale=True, attention_dropout=0.1)
    fixed: ClassVar[Mapping[str, Any]] = barts.FIXED
    ignored: ClassVar[frozenset[str]] = barts.IGNORED

    def settled(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Without the languages that have tokens: these are the tokenizer's, and no configuration says which."""
        made = super().settled(spec)
        heads = made["objective"] if isinstance(made["objective"], list) else [made["objective"]]
        for head in heads:
            if "languages" in head:
                head["languages"] = None
        return made

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        barts.read(config, spec)
        spec["tokenizer"] = {"name": "bpe", "sentinels": 0}  # the preset's stand for languages

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        barts.write(spec, config)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return barts.moves(spec, {f"norm.{kind}": f"layer_norm.{kind}" for kind in ("weight", "bias")})

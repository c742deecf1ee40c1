"""M2M-100 of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import bart_shared


@final
class M2M100(Family):
    """M2M-100 (Fan et al. 2021).

    Layer drop is not supported: set both rates to 0 to convert. Languages are not converted, because their tokens
    differ.
    """

    kind = "m2m_100"
    architectures: ClassVar[Mapping[str, Architecture]] = {"M2M100ForConditionalGeneration": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        "preset": "m2m100",
        "topology": "encoder-decoder",
        "embedding": {"name": "tokens"},
        "attention": {"name": "mha", "scores": {"bias": True}},
        "position": {"name": "sinusoidal", "layout": "halves", "closed": True, "offset": bart_shared.OFFSET},
        "norm": {"name": "layernorm"},
        "placement": "pre",
        "feedforward": {"name": "mlp"},
        "objective": {"name": "seq2seq", "languages": None, "reversed": False},
    }
    keys: ClassVar[tuple[Key, ...]] = bart_shared.keys(128112, "relu", scale=True, attention_dropout=0.1)
    fixed: ClassVar[Mapping[str, Any]] = {**bart_shared.FIXED, "pad_token_id": bart_shared.PADDING}
    ignored: ClassVar[frozenset[str]] = bart_shared.IGNORED

    def resolve_multiples(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return the spec without language tokens, which belong to the tokenizer and are in no configuration."""
        resolved = super().resolve_multiples(spec)
        heads = resolved["objective"] if isinstance(resolved["objective"], list) else [resolved["objective"]]
        for head in heads:
            if "languages" in head:
                head["languages"] = None
        return resolved

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        bart_shared.read(config, spec)
        spec["tokenizer"] = {"name": "bpe", "sentinels": 0}  # the preset's sentinels are language tokens

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        bart_shared.write(spec, config)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return bart_shared.moves(spec, {f"norm.{kind}": f"layer_norm.{kind}" for kind in ("weight", "bias")})

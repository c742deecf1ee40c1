"""XLM-R of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import robertas


@final
class XlmRoberta(Family):
    """ "Unsupervised Cross-lingual Representation Learning at Scale" (Conneau et al. 2020)."""

    kind = "xlm-roberta"
    architectures: ClassVar[Mapping[str, Architecture]] = {"XLMRobertaForMaskedLM": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = robertas.SPEC
    keys: ClassVar[tuple[Key, ...]] = robertas.KEYS
    fixed: ClassVar[Mapping[str, Any]] = robertas.FIXED
    ignored: ClassVar[frozenset[str]] = robertas.IGNORED
    buffers: ClassVar[tuple[str, ...]] = robertas.BUFFERS

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        robertas.read(config)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return robertas.moves(spec)

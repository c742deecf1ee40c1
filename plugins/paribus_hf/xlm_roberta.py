"""XLM-R of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import berts
from paribus_hf.roberta import OFFSET, Roberta


@final
class XlmRoberta(Family):
    """ "Unsupervised Cross-lingual Representation Learning at Scale" (Conneau et al. 2020)."""

    kind = "xlm-roberta"
    architectures: ClassVar[Mapping[str, Architecture]] = {"XLMRobertaForMaskedLM": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = Roberta.spec
    keys: ClassVar[tuple[Key, ...]] = berts.keys(30522, 512, offset=OFFSET)
    fixed: ClassVar[Mapping[str, Any]] = Roberta.fixed
    former: ClassVar[Mapping[str, Any]] = berts.FORMER
    ignored: ClassVar[frozenset[str]] = berts.IGNORED
    buffers: ClassVar[tuple[str, ...]] = berts.BUFFERS

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        berts.read(config, spec)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return berts.moves(spec, "roberta", berts.LM_HEAD)

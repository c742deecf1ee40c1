"""XLM-R of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from torch import Tensor

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import bert_shared
from paribus_hf.roberta import Roberta, numbered, read_positions, write_positions


@final
class XlmRoberta(Family):
    """XLM-R (Conneau et al. 2020)."""

    kind = "xlm-roberta"
    architectures: ClassVar[Mapping[str, Architecture]] = {"XLMRobertaForMaskedLM": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = Roberta.spec
    keys: ClassVar[tuple[Key, ...]] = bert_shared.keys(30522, 512)
    fixed: ClassVar[Mapping[str, Any]] = Roberta.fixed
    legacy: ClassVar[Mapping[str, Any]] = bert_shared.FORMER
    ignored: ClassVar[frozenset[str]] = bert_shared.IGNORED
    buffers: ClassVar[tuple[str, ...]] = bert_shared.BUFFERS

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        bert_shared.read(config, spec)
        read_positions(config, spec)

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        write_positions(spec, config)

    def numbered(
        self, spec: Mapping[str, Any], parameters: Mapping[str, Tensor], pad: int | None
    ) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
        return numbered(spec, parameters, pad)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return bert_shared.moves(spec, "roberta", bert_shared.LM_HEAD)

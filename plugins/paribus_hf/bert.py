"""BERT of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import berts


@final
class Bert(Family):
    """ "BERT: Pre-training of Deep Bidirectional Transformers" (Devlin et al. 2019), with one head or both."""

    kind = "bert"
    architectures: ClassVar[Mapping[str, Architecture]] = {
        "BertForPreTraining": Architecture(spec={"objective": [berts.MLM, "nsp"]}),
        "BertForMaskedLM": Architecture(spec={"objective": berts.MLM}),
    }
    spec: ClassVar[Mapping[str, Any]] = berts.SPEC
    keys: ClassVar[tuple[Key, ...]] = berts.keys(30522, 512)
    fixed: ClassVar[Mapping[str, Any]] = {**berts.FIXED, **berts.GELU}
    former: ClassVar[Mapping[str, Any]] = berts.FORMER
    ignored: ClassVar[frozenset[str]] = berts.IGNORED
    buffers: ClassVar[tuple[str, ...]] = berts.BUFFERS

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        berts.read(config, spec)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return berts.moves(spec, "bert", berts.PREDICTIONS)

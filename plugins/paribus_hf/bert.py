"""BERT of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import bert_shared


@final
class Bert(Family):
    """BERT (Devlin et al. 2019), with one pre-training head or both."""

    kind = "bert"
    architectures: ClassVar[Mapping[str, Architecture]] = {
        "BertForPreTraining": Architecture(spec={"objective": [bert_shared.MLM, "nsp"]}),
        "BertForMaskedLM": Architecture(spec={"objective": bert_shared.MLM}),
    }
    spec: ClassVar[Mapping[str, Any]] = bert_shared.SPEC
    keys: ClassVar[tuple[Key, ...]] = bert_shared.keys(30522, 512)
    fixed: ClassVar[Mapping[str, Any]] = {**bert_shared.FIXED, **bert_shared.GELU}
    legacy: ClassVar[Mapping[str, Any]] = bert_shared.FORMER
    ignored: ClassVar[frozenset[str]] = bert_shared.IGNORED
    buffers: ClassVar[tuple[str, ...]] = bert_shared.BUFFERS

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        bert_shared.read(config, spec)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return bert_shared.moves(spec, "bert", bert_shared.PREDICTIONS)

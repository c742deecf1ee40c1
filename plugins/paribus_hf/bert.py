"""BERT of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import bert_shared


@final
class Bert(Family):
    """BERT (Devlin et al. 2019), with one pre-training head, both or none, or with a classifier.

    The pooler of a model without a head has no use, and is not read.
    """

    kind = "bert"
    architectures: ClassVar[Mapping[str, Architecture]] = {
        "BertForPreTraining": Architecture(spec={"objective": [bert_shared.MLM, "nsp"]}),
        "BertForMaskedLM": Architecture(spec={"objective": bert_shared.MLM}),
        "BertForSequenceClassification": Architecture(spec={"objective": bert_shared.CLASSIFY, "corpus": "word-order"}),
        "BertModel": Architecture(
            spec={"objective": bert_shared.NO_HEAD}, unused_tensors=("pooler.dense.weight", "pooler.dense.bias")
        ),
    }
    spec: ClassVar[Mapping[str, Any]] = bert_shared.SPEC
    keys: ClassVar[tuple[Key, ...]] = bert_shared.keys(30522, 512)
    fixed: ClassVar[Mapping[str, Any]] = {**bert_shared.FIXED, **bert_shared.GELU}
    legacy: ClassVar[Mapping[str, Any]] = bert_shared.FORMER
    ignored: ClassVar[frozenset[str]] = bert_shared.IGNORED
    buffers: ClassVar[tuple[str, ...]] = bert_shared.BUFFERS

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        bert_shared.read(config, spec)
        if spec["objective"] == bert_shared.CLASSIFY:
            bert_shared.read_labels(config, spec)

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        bert_shared.write_labels(spec, config)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        head = spec["objective"]
        has_body_only = isinstance(head, Mapping) and head["name"] == "mlm" and not head["transform"]
        for move in bert_shared.moves(spec, "bert", bert_shared.PREDICTIONS):
            yield move._replace(hf_name=move.hf_name.removeprefix("bert.")) if has_body_only else move

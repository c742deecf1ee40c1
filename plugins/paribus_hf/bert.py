"""BERT of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Final, final

import torch
from torch import Tensor

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import bert_shared

ANSWER_BIAS: Final = "qa_outputs.bias"


@final
class Bert(Family):
    """BERT (Devlin et al. 2019), with one pre-training head, both or none, or with a head for a task.

    The pooler of a model without a head has no use, and is not read; nor is the bias of answers, which is the same for
    all tokens.
    """

    kind = "bert"
    architectures: ClassVar[Mapping[str, Architecture]] = {
        "BertForPreTraining": Architecture(spec={"objective": [bert_shared.MLM, "nsp"]}),
        "BertForMaskedLM": Architecture(spec={"objective": bert_shared.MLM}),
        "BertForSequenceClassification": Architecture(spec={"objective": bert_shared.CLASSIFY, "corpus": "word-order"}),
        "BertForTokenClassification": Architecture(spec={"objective": bert_shared.TAG, "corpus": "code-words"}),
        "BertForQuestionAnswering": Architecture(
            spec={"objective": bert_shared.EXTRACT, "corpus": "cloze"}, unused_tensors=(ANSWER_BIAS,)
        ),
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

    def constants(self, spec: Mapping[str, Any]) -> Mapping[str, Tensor]:
        nodes = spec["objective"] if isinstance(spec["objective"], (list, tuple)) else [spec["objective"]]
        return {ANSWER_BIAS: torch.zeros(2)} if any(node["name"] == "extract" for node in nodes) else {}

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        bert_shared.read(config, spec)
        if spec["objective"] in (bert_shared.CLASSIFY, bert_shared.TAG):
            bert_shared.read_labels(config, spec)

    def write(self, spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
        bert_shared.write_labels(spec, config)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        head = spec["objective"]
        has_body_only = isinstance(head, Mapping) and head["name"] == "mlm" and not head["transform"]
        for move in bert_shared.moves(spec, "bert", bert_shared.PREDICTIONS):
            yield move._replace(hf_name=move.hf_name.removeprefix("bert.")) if has_body_only else move

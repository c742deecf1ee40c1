"""RoBERTa of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Final, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import bert_shared

PADDING: Final = 1  # positions are numbered from the id after padding's
OFFSET: Final = PADDING + 1


@final
class Roberta(Family):
    """RoBERTa (Liu et al. 2019)."""

    kind = "roberta"
    architectures: ClassVar[Mapping[str, Architecture]] = {"RobertaForMaskedLM": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        **bert_shared.SPEC,
        "position": {"name": "learned", "offset": OFFSET},
        "objective": bert_shared.MLM,
    }
    keys: ClassVar[tuple[Key, ...]] = bert_shared.keys(50265, 512, offset=OFFSET)
    fixed: ClassVar[Mapping[str, Any]] = {**bert_shared.FIXED, **bert_shared.GELU, "pad_token_id": PADDING}
    legacy: ClassVar[Mapping[str, Any]] = bert_shared.FORMER
    ignored: ClassVar[frozenset[str]] = bert_shared.IGNORED
    buffers: ClassVar[tuple[str, ...]] = bert_shared.BUFFERS

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        bert_shared.read(config, spec)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return bert_shared.moves(spec, "roberta", bert_shared.LM_HEAD)

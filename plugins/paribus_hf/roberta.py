"""RoBERTa of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Final, final

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import berts

PADDING: Final = 1  # their positions begin behind that of padding, which is the id of padding
OFFSET: Final = PADDING + 1


@final
class Roberta(Family):
    """ "RoBERTa: A Robustly Optimized BERT Pretraining Approach" (Liu et al. 2019)."""

    kind = "roberta"
    architectures: ClassVar[Mapping[str, Architecture]] = {"RobertaForMaskedLM": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        **berts.SPEC,
        "position": {"name": "learned", "offset": OFFSET},
        "objective": berts.MLM,
    }
    keys: ClassVar[tuple[Key, ...]] = berts.keys(50265, 512, offset=OFFSET)
    fixed: ClassVar[Mapping[str, Any]] = {**berts.FIXED, **berts.GELU, "pad_token_id": PADDING}
    former: ClassVar[Mapping[str, Any]] = berts.FORMER
    ignored: ClassVar[frozenset[str]] = berts.IGNORED
    buffers: ClassVar[tuple[str, ...]] = berts.BUFFERS

    def read(self, config: Config, spec: MutableMapping[str, Any]) -> None:
        berts.read(config, spec)

    def moves(self, spec: Mapping[str, Any]) -> Iterator[Move]:
        return berts.moves(spec, "roberta", berts.LM_HEAD)

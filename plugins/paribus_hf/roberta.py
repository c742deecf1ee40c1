"""RoBERTa of the `transformers` library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, ClassVar, Final, final

import torch
from torch import Tensor

from paribus import Architecture, Config, Family, Key, Move
from paribus_hf import bert_shared

PADDING: Final = 1  # default
TABLE: Final = "body.position.0.table.weight"


def read_positions(config: Config, spec: MutableMapping[str, Any]) -> None:
    """Read the number of positions; they are numbered from the id after padding's."""
    pad = config.take("pad_token_id", PADDING)
    if not isinstance(pad, int) or pad < 0:
        config.add_problem(
            "pad_token_id", f"`pad_token_id` is {pad!r}, from which no position can be numbered", "an id"
        )
        return
    spec["position"]["offset"] = pad + 1
    spec["dims"]["length"] -= pad + 1


def write_positions(spec: Mapping[str, Any], config: MutableMapping[str, Any]) -> None:
    offset = spec["position"].get("offset", PADDING + 1)
    config["pad_token_id"] = max(offset - 1, 0)  # without unused rows, reading it gives another spec, a refusal
    config["max_position_embeddings"] += offset


def numbered(
    spec: Mapping[str, Any], parameters: Mapping[str, Tensor], pad: int | None
) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
    """Move the table of positions to the row after padding's id: `transformers` numbers all other tokens from there."""
    offset = spec["position"].get("offset")
    if pad is None or offset in (None, pad + 1) or TABLE not in parameters:
        return spec, parameters
    rows = parameters[TABLE].detach()[offset:]
    table = torch.cat([rows.new_zeros(pad + 1, rows.shape[1]), rows])
    return {**spec, "position": {**spec["position"], "offset": pad + 1}}, {**parameters, TABLE: table}


@final
class Roberta(Family):
    """RoBERTa (Liu et al. 2019)."""

    kind = "roberta"
    architectures: ClassVar[Mapping[str, Architecture]] = {"RobertaForMaskedLM": Architecture()}
    spec: ClassVar[Mapping[str, Any]] = {
        **bert_shared.SPEC,
        "position": {"name": "learned"},
        "objective": bert_shared.MLM,
    }
    keys: ClassVar[tuple[Key, ...]] = bert_shared.keys(50265, 512)
    fixed: ClassVar[Mapping[str, Any]] = {**bert_shared.FIXED, **bert_shared.GELU}
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

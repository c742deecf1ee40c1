"""What a stack remembers between decoding steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paribus.parts.context import Memory, State
from paribus.parts.rows import Rows


@dataclass
class States:
    """What a stack remembers between decoding steps: what its keys are, and each sublayer's own state."""

    layers: list[dict[str, State]]
    past: int = 0
    rows: Rows | None = None
    memory: Memory | None = None
    room: int | None = None  # for how many rows there is room; None: nobody said

    def extend(self, fresh: Rows) -> Rows:
        """All rows so far, after `fresh` ones came in."""
        if self.room is not None and self.past + fresh.positions.shape[-1] > self.room:
            came = f"{self.past} came already, and now {fresh.positions.shape[-1]} more"
            raise ValueError(f"these states have room for {self.room} rows: {came}; start(batch, length) says how many")
        if self.rows is None:
            self.rows = fresh
        else:
            sides = self.rows._replace(counted=None), fresh._replace(counted=None)  # of no use to rows against a cache
            self.rows = Rows(*(_joined(old, new) for old, new in zip(*sides, strict=True)))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None
        return self.rows

    def take(self, index: Tensor) -> None:
        """Goes on with the sequences (B',) of those that there are, each as often as it comes, in this order."""
        for layer in self.layers:
            for state in layer.values():
                state.update({name: tensor.index_select(0, index) for name, tensor in state.items()})
        self.rows = None if self.rows is None else _taken(self.rows, index)
        if self.memory is not None:
            handed = None if self.memory.handed is None else self.memory.handed.index_select(0, index)
            hidden = self.memory.hidden.index_select(0, index)
            self.memory = Memory(hidden, _taken(self.memory.rows, index), handed)

    @property
    def bytes(self) -> int:
        """What its layers keep, and the memory that they read."""
        held = [tensor for layer in self.layers for state in layer.values() for tensor in state.values()]
        if self.memory is not None:
            held += [tensor for tensor in (self.memory.hidden, self.memory.handed) if tensor is not None]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)


def _taken(rows: Rows, index: Tensor) -> Rows:
    """Of what is said of each sequence by itself, that of some."""
    return Rows(*(vector if vector is None or len(vector) == 1 else vector[index] for vector in rows))  # type: ignore[arg-type]  # a NamedTuple loses which field may be None


def _joined(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    if old is None and new is None:
        return None
    assert old is not None, "rows that come later say no more than the first ones did"
    assert new is not None, "rows that come later say no less than the first ones did"
    batch = max(old.shape[0], new.shape[0])
    return torch.cat([old.expand(batch, -1), new.expand(batch, -1)], dim=1)

"""One stream through one stack: what every topology of this plugin does for each of its parts."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from paribus import AddPositions, Capture, Memory, Output, Stack, States, Stream, TokenLayout

Embed = Callable[[Stream, int, AddPositions, nn.Module | None], tuple[Tensor, TokenLayout]]


def passed(
    stream: Stream,
    embedding: Embed,
    stack: Stack,
    *,
    memory: Memory | None,
    states: States | None,
    capture: Capture | bool,
) -> Output:
    """(B, T) -> (B, T, D), behind the rows that `states` remember."""
    x, rows = embedding(stream, states.past if states is not None else 0, stack.place, stack.embedding)
    output: Output = stack(x, rows, memory, states, capture)
    return output

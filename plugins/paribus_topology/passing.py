"""One stream through one stack: what every topology of this plugin does for each of its parts."""

from __future__ import annotations

from paribus import Embedding, Memory, Output, Stack, States, Stream


def passed(
    stream: Stream,
    embedding: Embedding,
    stack: Stack,
    *,
    memory: Memory | None,
    states: States | None,
    capture: bool,
) -> Output:
    """(B, T) -> (B, T, D), behind the rows that `states` remember."""
    x, rows = embedding(stream, states.past if states is not None else 0, stack.place, stack.embedding)
    output: Output = stack(x, rows, memory, states, capture)
    return output

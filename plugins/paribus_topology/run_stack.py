"""One stream through one stack, for every topology of this plugin."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from paribus import AddPositions, Capture, Memory, Output, Stack, States, Stream, TokenLayout

Embed = Callable[[Stream, int, AddPositions, nn.Module | None], tuple[Tensor, TokenLayout]]


def run_stack(
    stream: Stream,
    embedding: Embed,
    stack: Stack,
    *,
    memory: Memory | None,
    states: States | None,
    capture: Capture | bool,
) -> Output:
    """Embed a stream and run the stack, after the tokens in `states`: (B, T) -> (B, T, D)."""
    x, layout = embedding(stream, states.past if states is not None else 0, stack.add_positions, stack.embedding)
    output: Output = stack(x, layout, memory, states, capture, tokens=stream.tokens)
    return output

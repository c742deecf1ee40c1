"""One stream through one stack, for every topology of this plugin."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from paribus import AddPositions, Capture, Embedding, Memory, Output, Stack, States, Stream, TokenLayout

Embed = Callable[[Stream, int, AddPositions, nn.ModuleDict | None], tuple[Tensor, TokenLayout]]


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
    assert stack.embedding is None or isinstance(stack.embedding, nn.ModuleDict), "made by `stack_part`"
    if states is None:
        x, layout = embedding(stream, 0, stack.add_positions, stack.embedding)
    else:
        assert isinstance(embedding, Embedding), "expected the embedding of a topology that decodes"
        x, layout = embedding.embed_after(states, stream, stack.add_positions, stack.embedding)
    output: Output = stack(x, layout, memory, states, capture, tokens=stream.tokens)
    return output

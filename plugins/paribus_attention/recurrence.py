"""Shared code of recurrent attentions: one pass over tokens, documents kept apart.

Torch runs packed sequences of different lengths together: all first tokens, all second tokens, and so on. Each document
becomes a sequence, padding is dropped, and nothing is computed in vain. The lengths are read on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from paribus import Context, Shape, fill_padding, is_content, previous_document


@final
class Direction(nn.Module):
    """Weights of one direction: the input and recurrent projections of all gates."""

    def __init__(self, width: int, inner: int, gates: int) -> None:
        super().__init__()
        self.reads = nn.Linear(width, gates * inner)
        self.repeats = nn.Linear(inner, gates * inner)

    @property
    def weights(self) -> list[Tensor]:
        """Weights and biases in torch's order."""
        return [self.reads.weight, self.repeats.weight, self.reads.bias, self.repeats.bias]


Hidden = tuple[Tensor, ...]
"""h, or h and c: (directions, sequences, K) each."""
RecurrentKernel = Callable[[Tensor, Tensor | None, Hidden, list[Tensor]], tuple[Tensor, Hidden]]
"""Run over tokens (B, T, D), or over packed tokens (M, D) and the batch sizes of `PackedSequence`."""


def inner_width(shape: Shape) -> int:
    """Return the width of one direction: `dims.width` in causal stacks, else half of it."""
    if shape.causal:
        return shape.width
    if shape.width % 2:
        raise ValueError(
            f"two directions share `dims.width`, so it must be even, got {shape.width}; valid: {shape.width + 1}"
        )
    return shape.width // 2


def directions(shape: Shape, gates: int) -> nn.ModuleList:
    inner = inner_width(shape)
    return nn.ModuleList(Direction(shape.width, inner, gates) for _ in range(1 if shape.causal else 2))


def run_recurrence(
    run: RecurrentKernel, x: Tensor, parts: nn.ModuleList, names: tuple[str, ...], ctx: Context
) -> Tensor:
    """Run over (B, T, D) from the decoding state, whose tensors are `names`, and update that state."""
    weights = [weight for part in parts for weight in part.weights]  # type: ignore[union-attr]  # each is a Direction
    size = (len(parts), x.shape[0], weights[1].shape[1])
    if ctx.state is None:
        initial: Hidden = tuple(x.new_zeros(size) for _ in names)
    else:
        initial = tuple(ctx.state[name].to(x.dtype).unsqueeze(0) for name in names)
    if ctx.layout.documents is None:
        y, final = run(x, None, initial, weights)
    else:
        y, final = _run_by_document(run, x, initial, weights, ctx)
    if ctx.state is not None:
        ctx.state.update({name: part[0] for name, part in zip(names, final, strict=True)})
    return y


class PackedDocuments(NamedTuple):
    """Documents of a batch as packed sequences, the longest first."""

    tokens: Tensor  # (M,): index of each token among the B * T tokens, in packed order
    batch_sizes: Tensor  # sequences with a first token, a second token … (on the CPU)
    example: Tensor  # (N,): the example that each sequence is part of
    document: Tensor  # (N,): the number of each document


def pack_documents(documents: Tensor) -> PackedDocuments:
    """Pack the documents (B, T) as one sequence each, without padding."""
    tokens = is_content(documents).flatten().nonzero().squeeze(1)
    if not len(tokens):  # torch has no empty packed sequence; outputs of padding are ignored
        tokens = torch.zeros(1, dtype=torch.long, device=documents.device)
    keys = torch.stack([tokens // documents.shape[1], documents.flatten()[tokens]])
    documents_seen, sequence, lengths = keys.unique(dim=1, return_inverse=True, return_counts=True)
    grouped = sequence.argsort(stable=True)
    starts = (lengths.cumsum(0) - lengths)[sequence[grouped]]
    step = torch.empty_like(sequence)
    step[grouped] = torch.arange(len(tokens), device=tokens.device) - starts
    by_length = lengths.argsort(descending=True, stable=True)
    rank = torch.empty_like(by_length)
    rank[by_length] = torch.arange(len(by_length), device=tokens.device)
    order = (step * len(by_length) + rank[sequence]).argsort()
    return PackedDocuments(
        tokens[order], step.bincount().cpu(), documents_seen[0, by_length], documents_seen[1, by_length]
    )


def _run_by_document(
    run: RecurrentKernel, x: Tensor, initial: Hidden, weights: list[Tensor], ctx: Context
) -> tuple[Tensor, Hidden]:
    """Run over each document separately; the state continues in the document that it ended in."""
    assert ctx.layout.documents is not None, "called only for batches with documents"
    documents = ctx.layout.documents.expand(x.shape[0], -1)
    sequences = pack_documents(documents)
    continues = torch.zeros_like(sequences.example, dtype=torch.bool)
    if ctx.state is not None:
        continues = sequences.document == previous_document(ctx).expand(x.shape[0], -1)[sequences.example, 0]
    starts = tuple(part[:, sequences.example] * continues.unsqueeze(-1) for part in initial)
    outputs, final = run(x.flatten(0, 1)[sequences.tokens], sequences.batch_sizes, starts, weights)
    y = outputs.new_zeros(x.shape[0] * x.shape[1], outputs.shape[-1]).index_copy(0, sequences.tokens, outputs)
    return y.unflatten(0, x.shape[:2]), _final_states(sequences, documents, initial, final)


def _final_states(sequences: PackedDocuments, documents: Tensor, initial: Hidden, final: Hidden) -> Hidden:
    """Return the state of each example after its last document; unchanged where all tokens are padding."""
    last_documents = fill_padding(documents)[:, -1]
    batch = torch.arange(len(last_documents), device=last_documents.device)
    matches = (
        (sequences.example == batch.unsqueeze(-1))
        & (sequences.document == last_documents.unsqueeze(-1))
        & is_content(last_documents).unsqueeze(-1)
    )
    has_match, index = matches.any(1).unsqueeze(-1), matches.to(torch.uint8).argmax(1)
    return tuple(torch.where(has_match, new[:, index], old) for new, old in zip(final, initial, strict=True))

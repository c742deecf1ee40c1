"""Checks of which tokens an output depends on: future tokens, padding, other documents, other examples, positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from paribus.assembly.build import as_list
from paribus.parts.attend import Attend
from paribus.parts.batch import PADDING, Stream, TokenLayout
from paribus.parts.stack import Stack
from paribus.parts.visibility import Visibility, visibility_mask, with_order
from paribus.slots.placement import Placement
from paribus.testing.host_models import DOES_NOT_APPLY, HOLDS, Case, HostModel, Verdict
from paribus.testing.small_model import (
    TOLERANCE,
    SmallModel,
    max_difference,
    noise,
    relative_change,
    replace_tokens,
    tokens,
)

LENGTHS: Final = (2, 3, 5, 12)  # ascending, so that the first counterexample is the smallest
DROPOUT: Final = 0.5


def causality(case: Case, host: HostModel) -> Verdict:
    """In a causal stack, no position depends on a later token."""
    model = case.small_model(host)
    if not model.body.causal:
        return DOES_NOT_APPLY
    return next((fault for length in LENGTHS if (fault := causality_fault(token_influence(model, length)))), HOLDS)


def causality_fault(changed: Tensor) -> str:
    """Return a message if a position depends on a later token; input (token, position)."""
    early = changed.tril(-1)
    if float(early.max()) <= TOLERANCE:
        return HOLDS
    token, position = _first_change(early)
    return (
        f"in a sequence of {len(early)} tokens, changing token {token} changes the output at position {position} by "
        f"{early[token, position]:.2g}; expected no change. Usual cause: the causal mask is missing or shifted by one"
    )


def prefix(case: Case, host: HostModel) -> Verdict:
    """In a causal stack, tokens appended to a sequence do not change the outputs before them."""
    model = case.small_model(host)
    if not model.body.causal:
        return DOES_NOT_APPLY
    full_output = model.hidden(tokens(1, LENGTHS[-1]))
    for length in range(1, LENGTHS[-1]):
        difference = max_difference(model.hidden(tokens(1, length)), full_output[:, :length])
        if difference > TOLERANCE:
            return (
                f"the first {length} of {LENGTHS[-1]} tokens give an output that differs by {difference:.2g} from that "
                "of "
                f"{length} tokens alone. Usual cause: a value that depends on the sequence length"
            )
    return HOLDS


def token_mixing(case: Case, host: HostModel) -> Verdict:
    """Each visible token changes the output at another position; the trait `reads_keys` declares exceptions."""
    model = case.small_model(host)
    if model.has_fixed_length:
        return DOES_NOT_APPLY
    return mixing_fault(model, token_influence(model, LENGTHS[1]))


def mixing_fault(model: SmallModel, changed: Tensor) -> str:
    """Return a message if the tokens that influence other positions are not the declared ones."""
    length, influence = len(changed), changed.clone().fill_diagonal_(0)
    influences = [float(reached.max()) > TOLERANCE for reached in influence]
    reads_keys = {layer.attention.traits.get("reads_keys", "all") for layer in model.layers()} or {"all"}
    if reads_keys == {"all"}:
        for token in [] if weights_may_vanish(model) else visible_to_others(model, length):
            if not influences[token]:
                return (
                    f"in a sequence of {length} tokens, changing token {token} changes no output at another position. "
                    "Usual cause: an attention that ignores its keys or values"
                )
        return HOLDS
    mixes_itself = not isinstance(model.topology.stage("body"), Stack)  # as a BiLSTM over layers of attention
    placements = [layer.placement for layer in model.layers() if isinstance(layer.placement, Placement)]
    mixes_itself = mixes_itself or any(placement.traits.get("mixes_tokens", False) for placement in placements)
    mixes_itself = mixes_itself or any(layer.feeds_context for layer in model.layers())
    if not mixes_itself and len(reads_keys) == 1 and sum(influences) != (expected := 1 if "one" in reads_keys else 0):
        return (
            f"in a sequence of {length} tokens, {sum(influences)} change an output at another position; expected "
            f"{expected}, as its trait `reads_keys` is {next(iter(reads_keys))!r}"
        )
    return HOLDS


def weights_may_vanish(model: SmallModel) -> bool:
    """Return True if a bias of the position may take all scores below 0, where weights like those of ReLU are 0."""
    attends = [
        module
        for layer in model.layers()
        if not layer.attention.traits.get("normalized", False)
        for module in layer.attention.modules()
        if isinstance(module, Attend)
    ]
    return any(attend.position.traits["bias"] != "none" for attend in attends)


def visible_to_others(model: SmallModel, length: int) -> list[int]:
    """Return the tokens that some other position may attend to, by the declared visibility of the attentions."""
    layout = with_order(TokenLayout(torch.arange(length).unsqueeze(0)))
    visible = torch.zeros(length, length, dtype=torch.bool)  # (position, token)
    mixes: list[set[Visibility]] = [
        {module.visibility for module in layer.attention.modules() if isinstance(module, Attend)}
        for layer in model.layers()
    ]
    for visibilities in mixes or [set()]:
        for visibility in visibilities or {Visibility(model.body.causal)}:
            mask = visibility_mask(visibility, layout, layout, window_by_index=True)
            visible |= torch.ones_like(visible) if mask is None else mask[0, 0]
    visible_tokens: list[int] = (visible & ~torch.eye(length, dtype=torch.bool)).any(0).nonzero().flatten().tolist()
    return visible_tokens


def batch_independence(case: Case, host: HostModel) -> Verdict:
    """The output for an example does not depend on the other examples of its batch."""
    model = case.small_model(host)
    for length in LENGTHS:
        token_ids = model.tokens(3, length)
        source = tokens(3, 6, "source")
        batched = model.hidden(token_ids, source=source)
        for example in range(3):
            span = slice(example, example + 1)
            difference = max_difference(model.hidden(token_ids[span], source=source[span]), batched[span])
            if difference > TOLERANCE:
                return (
                    f"example {example} of a batch of 3 with {length} tokens differs by {difference:.2g} from the same "
                    "example "
                    "alone. Usual cause: a statistic over the batch dimension"
                )
    if model.has_fixed_length or not case.all_attentions_declare(host, "documents", "padding"):
        return HOLDS
    return _ragged_batch_fault(model)


def _ragged_batch_fault(model: SmallModel) -> str:
    """Compare a batch with padding on the left, of a different length for each example, with its examples."""
    length, padding_lengths = LENGTHS[-1], torch.tensor([[0], [3], [8]])
    positions = torch.arange(length) - padding_lengths
    documents = torch.where(positions < 0, PADDING, 0)
    token_ids, source = tokens(3, length), tokens(3, 6, "source")
    batched = model.hidden(Stream(token_ids, documents=documents, positions=positions), source=source)
    for example in range(3):
        span = slice(example, example + 1)
        stream = Stream(token_ids[span], documents=documents[span], positions=positions[span])
        difference = max_difference(model.hidden(stream, source=source[span]), batched[span])
        if difference > TOLERANCE:
            return (
                f"example {example} of a batch with {padding_lengths.flatten().tolist()} tokens of padding differs by "
                f"{difference:.2g} from the same example alone. Usual cause: positions or documents of the first "
                "example are used for all"
            )
    return HOLDS


def determinism(case: Case, host: HostModel) -> Verdict:
    """Two passes in evaluation mode are bitwise equal for any state of torch's global generator, at any dropout."""
    model = SmallModel({**host.spec, "dropout": DROPOUT}, case.registry)
    token_ids = model.tokens(2, LENGTHS[-1])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first_pass = model.hidden(token_ids)
        torch.manual_seed(2)
        second_pass = model.hidden(token_ids)
    if not torch.equal(first_pass, second_pass):
        difference = max_difference(first_pass, second_pass)
        return (
            f"two passes over {LENGTHS[-1]} tokens differ by {difference:.2g}; expected bitwise equality. "
            "Usual cause: dropout in evaluation mode"
        )
    difference = max_difference(first_pass, case.small_model(host).hidden(token_ids))
    if difference > TOLERANCE:
        return f"with a dropout of {DROPOUT}, the output in evaluation mode changes by {difference:.2g}"
    return HOLDS


def padding(case: Case, host: HostModel) -> Verdict:
    """Padding anywhere, with any id, changes no other output; a sequence of only padding stays finite."""
    model = case.small_model(host)
    if model.has_fixed_length or not case.all_attentions_declare(host, "documents", "padding"):
        return DOES_NOT_APPLY
    for length in LENGTHS[:3]:
        token_ids = tokens(1, length)
        expected = model.hidden(token_ids)
        for side in ("right", "left", "inside"):
            for pad in (0, 20):
                stream, span = pad_tokens(token_ids, side, pad)
                difference = max_difference(model.hidden(stream)[:, span], expected)
                if difference > TOLERANCE:
                    return (
                        f"the output for {length} tokens changes by {difference:.2g} with 3 padding tokens (id {pad}) "
                        f"{side if side == 'inside' else f'on the {side}'}. Usual cause: padding is not masked, or "
                        "counts as distance"
                    )
        fault = _source_padding_fault(model, length)
        if fault:
            return fault
    return _all_padding_fault(model)


def _source_padding_fault(model: SmallModel, length: int) -> str:
    if model.body.cross is None:
        return HOLDS
    body, source = tokens(1, length), tokens(1, 4, "source")
    expected = model.hidden(body, source=source)
    for side in ("right", "left"):
        stream, _ = pad_tokens(source, side, 0)
        difference = max_difference(model.hidden(body, source=stream), expected)
        if difference > TOLERANCE:
            return (
                f"the output for {length} tokens changes by {difference:.2g} when the source has 3 padding tokens on "
                "the "
                f"{side}. Usual cause: cross-attention does not mask padding"
            )
    return HOLDS


def _all_padding_fault(model: SmallModel) -> str:
    token_ids = tokens(2, 4)
    documents = torch.tensor([[0] * 4, [PADDING] * 4])
    with torch.enable_grad():
        hidden = model.hidden(Stream(token_ids, documents=documents))
        grads = torch.autograd.grad(hidden.sin().sum(), list(model.topology.parameters()), allow_unused=True)
    if not torch.isfinite(hidden).all():
        return (
            "the output for a sequence of only padding is not finite. Usual cause: a softmax in which all scores are "
            "-inf"
        )
    if not all(torch.isfinite(grad).all() for grad in grads if grad is not None):
        return (
            "gradients for a sequence of only padding are not finite. Usual cause: a softmax in which all scores are "
            "-inf"
        )
    return HOLDS


def documents(case: Case, host: HostModel) -> Verdict:
    """Documents packed into one sequence give the same output as separate documents."""
    model = case.small_model(host)
    if model.has_fixed_length or not case.all_attentions_declare(host, "documents"):
        return DOES_NOT_APPLY
    for first_length, second_length in ((1, 1), (2, 1), (3, 4)):
        token_ids = tokens(1, first_length + second_length)
        alone = torch.cat([model.hidden(token_ids[:, :first_length]), model.hidden(token_ids[:, first_length:])], dim=1)
        document_ids = torch.tensor([[0] * first_length + [1] * second_length])
        positions = torch.tensor([[*range(first_length), *range(second_length)]])
        difference = max_difference(model.hidden(Stream(token_ids, documents=document_ids, positions=positions)), alone)
        if difference > TOLERANCE:
            return (
                f"documents of {first_length} and {second_length} tokens in one sequence differ by {difference:.2g} "
                "from "
                "separate ones. Usual cause: tokens attend to another document"
            )
    return HOLDS if model.body.cross is None else _source_documents_fault(model)


def _source_documents_fault(model: SmallModel) -> str:
    """Return a message if a document reads the source of another, or changes with the source without having one."""
    token_ids, source_ids = tokens(1, 7), tokens(1, 6, "source")
    stream = packed_stream(token_ids, [[0, 0, 0, 1, 1, 2, 2]])
    source = packed_stream(source_ids, [[0, 0, 2, 2, 2, PADDING]])
    output = model.hidden(stream, source=source)
    for document, span, source_span in ((0, slice(0, 3), slice(0, 2)), (2, slice(5, 7), slice(2, 5))):
        alone = model.hidden(token_ids[:, span], source=source_ids[:, source_span])
        difference = max_difference(output[:, span], alone)
        if difference > TOLERANCE:
            return (
                f"document {document} of 3 differs by {difference:.2g} from the same one alone, with sources packed as "
                "well. Usual cause: cross-attention reads the source of another document"
            )
    other_output = model.hidden(stream, source=source._replace(tokens=replace_tokens(source_ids)))
    difference = max_difference(other_output[:, 3:5], output[:, 3:5])
    if difference > TOLERANCE:
        return f"a document without a source changes by {difference:.2g} with the source of other documents"
    return HOLDS


def packed_stream(token_ids: Tensor, documents: Sequence[Sequence[int]]) -> Stream:
    """Return a stream of documents, with the positions of each token in its own."""
    numbers = torch.tensor(documents)
    earlier = (numbers.unsqueeze(-1) == numbers.unsqueeze(-2)).tril(-1)  # (B, T, T)
    return Stream(token_ids, documents=numbers, positions=earlier.sum(-1))


def order(case: Case, host: HostModel) -> Verdict:
    """Permuted tokens with a given order have the permuted output; none depends on a later one in that order."""
    model = case.small_model(host)
    if model.has_fixed_length or _mixes_tokens(case, host) or not case.all_attentions_declare(host, "order"):
        return DOES_NOT_APPLY
    for length in LENGTHS:
        token_ids = tokens(1, length)
        permutation = (torch.arange(length) * 5 + 1) % length if length % 5 else torch.arange(length).flip(0)
        stream = Stream(token_ids[:, permutation], positions=permutation.unsqueeze(0), order=permutation.unsqueeze(0))
        ordered = Stream(token_ids, order=torch.arange(length).unsqueeze(0))
        expected = model.hidden(token_ids if model.body.causal else ordered)
        difference = max_difference(model.hidden(stream), expected[:, permutation])
        if difference > TOLERANCE:
            return (
                f"{length} tokens permuted to the order {permutation.tolist()} differ by {difference:.2g} from the "
                "permuted "
                "output. Usual cause: `ctx.layout.order` is not used"
            )
        changed = ordered._replace(tokens=torch.cat([token_ids[:, :-1], replace_tokens(token_ids[:, -1:])], dim=1))
        difference = max_difference(model.hidden(changed)[:, :-1], expected[:, :-1])
        if difference > TOLERANCE:
            return (
                f"in an ordered sequence of {length} tokens, changing the last one changes an earlier output by "
                f"{difference:.2g}. Usual cause: the causal mask ignores `ctx.layout.order`"
            )
    return HOLDS


def _mixes_tokens(case: Case, host: HostModel) -> bool:
    """Return True if a layer reads neighbouring tokens beside its attention, which no order and no extra query has."""
    nodes = as_list(host.spec.get("placement") or [])
    entries = case.registry.index.entries["placement"]
    is_mixed = any(entries[node["name"]].traits.get("mixes_tokens") for node in nodes)
    return is_mixed or any(layer.feeds_context for layer in case.small_model(host).layers())


def extra_queries(case: Case, host: HostModel) -> Verdict:
    """Queries without keys change no other output, and a copied query has the output of its original."""
    if _mixes_tokens(case, host) or not case.all_attentions_declare(host, "extra_queries"):
        return DOES_NOT_APPLY
    model = case.small_model(host)
    stack = model.stack()
    memory = model.memory(tokens(2, 6, "source"))
    for length in LENGTHS:
        x = noise("rows", 2, length, stack.shape.width)
        layout = TokenLayout(torch.arange(length).unsqueeze(0))
        if model.body.causal:
            layout = with_order(layout)
        indices = (torch.arange(3) * 5 + torch.arange(2).unsqueeze(1)) % length
        copies = x.gather(1, indices.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
        ids = model.tokens(2, length)
        plain = stack(x, layout, memory, tokens=ids).hidden
        everything = torch.cat([x, copies, noise("asking", *copies.shape)], dim=1)
        extended = stack(everything, layout.append_copies(indices.repeat(1, 2)), memory, keys=layout, tokens=ids).hidden
        difference = max_difference(extended[:, :length], plain)
        if difference > TOLERANCE:
            return (
                f"the output for {length} tokens changes by {difference:.2g} with 6 extra queries. Usual cause: extra "
                "queries "
                "are also used as keys"
            )
        difference = max_difference(
            extended[:, length : length + 3], plain.gather(1, indices.unsqueeze(-1).expand_as(copies))
        )
        if difference > TOLERANCE:
            return (
                f"copies of {length} queries, appended as extra queries, have outputs that differ by {difference:.2g}"
            )
    return HOLDS


def position_sensitivity(case: Case, host: HostModel) -> Verdict:
    """Permuting tokens changes the output if, and only if, the position declares a hook."""
    model = case.small_model(host)
    if model.body.causal or model.body.cross is not None or model.has_fixed_length or not host.is_preset:
        return DOES_NOT_APPLY
    declares_hooks = bool(case.entry.traits.get("hooks"))
    token_ids = tokens(1, 3)
    permutation = torch.tensor([1, 2, 0])
    difference = max_difference(model.hidden(token_ids[:, permutation]), model.hidden(token_ids)[:, permutation])
    if declares_hooks and difference <= TOLERANCE:
        return "3 permuted tokens give the permuted output; expected an output that depends on positions"
    if not declares_hooks and difference > TOLERANCE:
        return f"its trait `hooks` is empty, but 3 permuted tokens differ by {difference:.2g} from the permuted output"
    return HOLDS


def pad_tokens(token_ids: Tensor, side: str, pad: int) -> tuple[Stream, Tensor]:
    """Pad (B, T) with 3 tokens on one side, or inside; return the stream and the places of the original tokens."""
    batch, length = token_ids.shape
    start = {"right": length, "left": 0, "inside": length // 2}[side]
    places = torch.arange(length) + 3 * (torch.arange(length) >= start)
    combined = torch.full((batch, length + 3), pad)
    documents = torch.full((batch, length + 3), PADDING)
    combined[:, places], documents[:, places] = token_ids, 0
    positions = torch.arange(length, length + 3).repeat(length + 3) if side == "inside" else torch.arange(length + 3)
    positions = positions[: length + 3].clone() - (3 if side == "left" else 0)
    positions[places] = torch.arange(length)
    return Stream(combined, documents=documents, positions=positions.expand(batch, -1)), places


def token_influence(model: SmallModel, length: int) -> Tensor:
    """(token, position): relative change of each position when a token is replaced."""
    token_ids = tokens(1, length)
    changed = torch.where(torch.eye(length, dtype=torch.bool), replace_tokens(token_ids), token_ids)
    source = tokens(1, 6, "source")
    with torch.no_grad():
        return relative_change(
            model.hidden(changed, source=source.expand(length, -1)), model.hidden(token_ids, source=source)
        )


def _first_change(changes: Tensor) -> tuple[int, int]:
    token, position = (~(changes <= TOLERANCE)).nonzero()[0].tolist()  # NaN counts as a change
    return token, position

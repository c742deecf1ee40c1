"""XLNet's second stream, against the `transformers` library's: what asks, in an order that is drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.twins.cases import CASES, VOCABULARY
from tests.twins.double import keep_double
from torch import Tensor, nn
from torch.nn import functional

import paribus
from paribus import PADDING, Draw, Stream
from paribus.assembly.forward_pass import BatchForward
from paribus.parts.batch import Batch
from paribus.registry import Registry

transformers = pytest.importorskip("transformers")

LENGTH = 13


@pytest.fixture(params=CASES["xlnet"], ids=lambda case: case.said)
def twins(
    request: pytest.FixtureRequest,
    shake: Callable[[nn.Module], nn.Module],
    components: Registry,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Any, Any]:
    keep_double(monkeypatch)
    theirs = shake(request.param.made)
    return paribus.convert(theirs, registry=components).eval(), theirs


def told(order: Tensor) -> Tensor:
    """(B, T) -> (B, T, T): as theirs is told of an order, where 1 says that a row does not see another."""
    unseen = order.unsqueeze(2) <= order.unsqueeze(1)  # neither itself, which content sees all the same
    return (unseen & (order.unsqueeze(1) > 0)).double()


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("segments", [False, True], ids=["", "segments"])
def test_scores_and_gradients_of_the_rows_that_ask_are_those_of_the_twin(
    padded: bool, segments: bool, twins: tuple[Any, Any]
) -> None:
    ours, theirs = twins
    generator = torch.Generator().manual_seed(LENGTH)
    tokens = torch.randint(7, VOCABULARY, (3, LENGTH), generator=generator)
    text = torch.arange(LENGTH) < torch.tensor([[LENGTH], [9], [4]]) if padded else torch.ones_like(tokens) > 0
    kinds = torch.randint(0, 2, tokens.shape, generator=generator) if segments else None
    stream = Stream(tokens, torch.where(text, 0, PADDING), segments=kinds)
    objective = ours.objective("permutation")
    streams, targets = objective.corrupt({"body": stream}, {}, Draw(0, 0, torch.arange(3)))
    order, asked = streams["body"].order, streams["body"].query_positions
    run = BatchForward(ours.topology, Batch(streams, {"permutation": targets}, torch.arange(3))).of("permutation")
    found = objective.logits(run.hidden()[:, LENGTH:], run.unembed)
    expected = theirs(
        tokens,
        attention_mask=text.double(),
        perm_mask=told(order),
        target_mapping=functional.one_hot(asked, LENGTH).double(),
        token_type_ids=kinds,
    ).logits
    real = targets["labels"] >= 0
    torch.testing.assert_close(found[real], expected[real], rtol=0, atol=1e-9)
    weights = torch.linspace(-1, 1, int(real.sum()) * VOCABULARY, dtype=torch.float64).view(-1, VOCABULARY)
    (found[real] * weights).sum().backward()
    (expected[real] * weights).sum().backward()
    pairs = [
        (ours.get_parameter("query.vector"), theirs.transformer.mask_emb.flatten()),
        (ours.get_parameter("embedding.tokens.weight"), theirs.transformer.word_embedding.weight),
    ]
    vector, table = (mine.grad for mine, _ in pairs)
    torch.testing.assert_close(vector, theirs.transformer.mask_emb.grad.flatten(), rtol=0, atol=1e-8)
    torch.testing.assert_close(table, theirs.transformer.word_embedding.weight.grad, rtol=0, atol=1e-8)
    if segments:
        for layer, each in enumerate(theirs.transformer.layer):
            mine = ours.get_parameter(f"body.layers.{layer}.position.segments").grad
            torch.testing.assert_close(mine, each.rel_attn.seg_embed.grad, rtol=0, atol=1e-8)

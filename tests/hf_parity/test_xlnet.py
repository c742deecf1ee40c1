"""Parity of XLNet with both streams and random orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.hf_parity.cases import CASES, VOCABULARY
from tests.hf_parity.float64 import keep_float64
from torch import Tensor, nn
from torch.nn import functional

import paribus
from paribus import PADDING, Draw, Stream
from paribus.assembly.forward_pass import BatchForward
from paribus.parts.batch import Batch
from paribus.registry import Registry

transformers = pytest.importorskip("transformers")

LENGTH = 13


@pytest.fixture(params=CASES["xlnet"], ids=lambda case: case.label)
def models(
    request: pytest.FixtureRequest,
    randomise: Callable[[nn.Module], nn.Module],
    components: Registry,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Any, Any]:
    keep_float64(monkeypatch)
    hf_model = randomise(request.param.hf_model)
    return paribus.convert(hf_model, registry=components).eval(), hf_model


def hf_permutation_mask(order: Tensor) -> Tensor:
    """Return the permutation mask of an order, 1 where a token is hidden: (B, T) -> (B, T, T)."""
    unseen = order.unsqueeze(2) <= order.unsqueeze(1)  # the token itself too, which the content stream sees anyway
    return (unseen & (order.unsqueeze(1) > 0)).double()


@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("segments", [False, True], ids=["", "segments"])
def test_scores_and_gradients_of_queries_match(padded: bool, segments: bool, models: tuple[Any, Any]) -> None:
    model, hf_model = models
    generator = torch.Generator().manual_seed(LENGTH)
    tokens = torch.randint(7, VOCABULARY, (3, LENGTH), generator=generator)
    text = torch.arange(LENGTH) < torch.tensor([[LENGTH], [9], [4]]) if padded else torch.ones_like(tokens) > 0
    kinds = torch.randint(0, 2, tokens.shape, generator=generator) if segments else None
    stream = Stream(tokens, torch.where(text, 0, PADDING), segments=kinds)
    objective = model.objective("permutation")
    streams, targets = objective.corrupt({"body": stream}, {}, Draw(0, 0, torch.arange(3)))
    order, query_positions = streams["body"].order, streams["body"].query_positions
    run = BatchForward(model.topology, Batch(streams, {"permutation": targets}, torch.arange(3))).of("permutation")
    scores = objective.logits(run.hidden()[:, LENGTH:], run.unembed)
    expected = hf_model(
        tokens,
        attention_mask=text.double(),
        perm_mask=hf_permutation_mask(order),
        target_mapping=functional.one_hot(query_positions, LENGTH).double(),
        token_type_ids=kinds,
    ).logits
    real = targets["labels"] >= 0
    torch.testing.assert_close(scores[real], expected[real], rtol=0, atol=1e-9)
    weights = torch.linspace(-1, 1, int(real.sum()) * VOCABULARY, dtype=torch.float64).view(-1, VOCABULARY)
    (scores[real] * weights).sum().backward()
    (expected[real] * weights).sum().backward()
    pairs = [
        (model.get_parameter("query.vector"), hf_model.transformer.mask_emb.flatten()),
        (model.get_parameter("embedding.tokens.weight"), hf_model.transformer.word_embedding.weight),
    ]
    vector, table = (parameter.grad for parameter, _ in pairs)
    torch.testing.assert_close(vector, hf_model.transformer.mask_emb.grad.flatten(), rtol=0, atol=1e-8)
    torch.testing.assert_close(table, hf_model.transformer.word_embedding.weight.grad, rtol=0, atol=1e-8)
    if segments:
        for layer, hf_layer in enumerate(hf_model.transformer.layer):
            gradient = model.get_parameter(f"body.layers.{layer}.position.segments").grad
            torch.testing.assert_close(gradient, hf_layer.rel_attn.seg_embed.grad, rtol=0, atol=1e-8)

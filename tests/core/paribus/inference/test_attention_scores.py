"""Queries, keys and scores of attention maps, beside a computation by hand from the parameters of the layer."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import paribus
from paribus.models.lightning_module import Model
from paribus.parts.attend import Attend
from paribus.parts.heads import Heads
from paribus.parts.stack import Layer, Stack

HEADS, WIDTH = 4, 6  # of each head
TINY = ("dims.layers=2", "dims.width=24", f"dims.heads={HEADS}", "dims.length=16", "data.validation=16")
TEXT = "import os"


def model_of(*options: str, preset: str = "gpt-tiny") -> Model:
    model: Model = paribus.assemble(paribus.spec(preset, *TINY, *options)).double()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and sinks that are 0 at the start, too
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)).double())
    return model.requires_grad_(False)


def with_inputs(model: Model, **options: Any) -> tuple[paribus.AttentionMaps, list[Tensor], list[Layer]]:
    """Return the maps of the text, the input (T, D) of each layer's attention, and the layers."""
    inputs: list[Tensor] = []
    body = model.topology.stage("body")
    assert isinstance(body, Stack)
    layers = cast("list[Layer]", list(body.layers))
    attentions = [cast("nn.Module", layer.attention) for layer in layers]
    hooks = [module.register_forward_pre_hook(lambda _, args: inputs.append(args[0][0])) for module in attentions]
    maps = paribus.attend(model, TEXT, scores=True, **options)
    for hook in hooks:
        hook.remove()
    return maps, inputs, layers


def rotated(vector: Tensor, position: int) -> Tensor:
    """Return a vector whose channels i and i + K/2 are rotated by position * 10000^(-2i/K)."""
    result, half = vector.clone(), len(vector) // 2
    for i in range(half):
        angle = position * 10_000 ** (-2 * i / len(vector))
        one, other = vector[i], vector[i + half]
        result[i] = one * math.cos(angle) - other * math.sin(angle)
        result[i + half] = other * math.cos(angle) + one * math.sin(angle)
    return result


def projected(projection: nn.Linear, x: Tensor, head: int) -> Tensor:
    """Return one head of a projection of a token: (D,) -> (K,)."""
    rows = slice(head * WIDTH, (head + 1) * WIDTH)
    return projection.weight[rows] @ x + projection.bias[rows]


@pytest.mark.parametrize(
    "options", [("attention=mha",), ("attention={name: gqa, kv_heads: 2}",), ("position=rope",), ("position=alibi",)]
)
def test_queries_keys_scores_and_weights_are_those_of_the_formulas(options: tuple[str, ...]) -> None:
    maps, inputs, layers = with_inputs(model_of(*options))
    for x, layer, scores, weights in zip(inputs, layers, maps.scores, maps.layers, strict=True):
        assert scores is not None
        assert weights is not None
        heads = cast("Any", layer.attention).heads
        assert isinstance(heads, Heads)
        group = HEADS // heads.kv_heads
        assert group == (2 if "gqa" in options[0] else 1)
        turn = rotated if "rope" in options[0] else lambda vector, _: vector
        for h in range(HEADS):
            slope = 2.0 ** (-8 * (h + 1) / HEADS) if "alibi" in options[0] else 0.0
            for t, query in enumerate(x):
                q = turn(projected(heads.q, query, h), t)
                row: list[Tensor] = []
                for s in range(t + 1):  # no key ahead of the query
                    k = turn(projected(heads.k, x[s], h // group), s)
                    dot = sum((q[i] * k[i] for i in range(WIDTH)), torch.zeros(()).double())
                    row.append(dot / math.sqrt(WIDTH) - slope * (t - s))
                    torch.testing.assert_close(scores.k[h, s], k)
                    torch.testing.assert_close(scores.products(h, t)[s], q * k)
                    torch.testing.assert_close(scores.other_terms[h, t, s].item(), -slope * (t - s), atol=1e-12, rtol=0)
                torch.testing.assert_close(scores.q[h, t], q)
                torch.testing.assert_close(scores.scores[h, t, : t + 1], torch.stack(row))
                assert scores.scores[h, t, t + 1 :].eq(-math.inf).all()
                exponentials = [math.exp(score) for score in row]
                expected = [value / sum(exponentials) for value in exponentials]
                assert weights[h, t].tolist() == pytest.approx([*expected, *[0.0] * (len(x) - t - 1)], abs=1e-12)
        torch.testing.assert_close(scores.softmax(), weights)
        assert scores.has_other_terms == ("alibi" in options[0])


@pytest.mark.parametrize(
    "options",
    [
        ("attention={name: mha, scores: {sinks: true, soft_cap: 2, qk_norm: true}}",),
        ("attention={name: mha, scores: {scaled: false}}", "position=t5"),
        ("attention=mla", "position=rope"),
        ("attention={name: restricted, window: 3}", "position=transformer-xl"),
        ("position=shaw",),
        ("position=disentangled",),
    ],
)
def test_scores_with_further_terms_give_the_weights_of_the_map(options: tuple[str, ...]) -> None:
    maps = paribus.attend(model_of(*options), TEXT, scores=True)
    assert maps.reasons == ("", "")
    for scores, weights in zip(maps.scores, maps.layers, strict=True):
        assert scores is not None
        assert weights is not None
        torch.testing.assert_close(scores.softmax(), weights)
        torch.testing.assert_close(scores.dot_products + scores.other_terms, scores.scores)
        if not scores.has_other_terms:
            visible = scores.scores > -math.inf
            torch.testing.assert_close(scores.dot_products[visible], scores.scores[visible])


def test_a_soft_cap_and_a_sink_are_terms_of_the_scores() -> None:
    model = model_of("attention={name: mha, scores: {sinks: true, soft_cap: 2}}")
    (scores, _), weights = (maps := paribus.attend(model, TEXT, scores=True)).scores, maps.layers[0]
    assert scores is not None
    assert scores.sinks is not None
    assert weights is not None
    torch.testing.assert_close(scores.scores.tril(), (2 * (scores.dot_products / 2).tanh()).tril())
    exponentials = scores.scores.exp()
    torch.testing.assert_close(weights, exponentials / (exponentials.sum(-1) + scores.sinks.exp()[:, None])[..., None])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("attention=additive", "its score is not the product of a query and a key"),
        ("attention=talking-heads", "its score is not the product of a query and a key"),
        ("attention=local-m", "its weights are changed after they are normalised"),
        ("attention=differential", "its weights are not those of one score for each query and key"),
    ],
)
def test_a_layer_whose_weights_are_not_those_of_products_has_a_reason_and_no_scores(options: str, reason: str) -> None:
    maps = paribus.attend(model_of(options), TEXT, scores=True)
    assert maps.scores == (None, None)
    assert maps.reasons == (reason, reason)


def test_weights_that_are_no_softmax_are_marked() -> None:
    maps = paribus.attend(model_of("attention=sigmoid"), TEXT, scores=True)
    assert [scores is not None and scores.is_softmax for scores in maps.scores] == [False, False]


@pytest.mark.thorough
def test_layers_that_share_parameters_have_their_own_scores() -> None:
    maps = paribus.attend(model_of("dims.vocabulary=400", preset="albert-tiny"), TEXT, scores=True)
    for scores, weights in zip(maps.scores, maps.layers, strict=True):
        assert scores is not None
        assert weights is not None
        torch.testing.assert_close(scores.softmax(), weights)


@pytest.mark.thorough
def test_a_recurrent_decoder_has_the_scores_of_all_its_steps() -> None:
    model = paribus.assemble(paribus.spec("luong-tiny", "data.validation=16"))
    assert model.text is not None
    languages: Any = dict(zip(("language", "source_language"), model.text.languages, strict=False))
    maps = paribus.attend(model, "a b", source="c d e", scores=True, **languages)
    (scores,), (weights,) = maps.scores, maps.layers
    assert scores is not None
    assert weights is not None
    assert scores.q.shape[1] == len(maps.query_tokens)
    assert scores.k.shape[1] == len(maps.key_tokens)
    torch.testing.assert_close(scores.softmax(), weights)


def test_reading_scores_changes_no_weight_and_no_module() -> None:
    model = model_of("position=rope")
    maps, scored = paribus.attend(model, TEXT), paribus.attend(model, TEXT, scores=True)
    assert (maps.scores, maps.reasons) == ((), ())
    for one, other in zip(maps.layers, scored.layers, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)
    assert not [module for module in model.modules() if isinstance(module, Attend) and "weigh_values" in vars(module)]

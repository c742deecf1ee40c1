"""Crammed BERT, which transformers lacks, compared with an explicit implementation."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

import paribus

HEADS, LENGTH = 4, 9


def test_scores_match_an_explicit_implementation(randomise: Callable[[nn.Module], nn.Module]) -> None:
    model = randomise(paribus.assemble(paribus.spec("crammed-bert-tiny", "dims.width=16", "dims.vocabulary=300")))
    weights = dict(model.named_parameters())
    tokens = torch.randint(40, 290, (3, LENGTH), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens)[0], explicit_bert(weights, tokens), rtol=0, atol=1e-12)
    assert not [name for name in weights if name.endswith(("heads.q.bias", "inner.bias", "objectives.mlm.bias"))]


def explicit_bert(weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """(B, T) -> (B, T, V)."""
    table = weights["embedding.tokens.weight"]
    x = table[tokens]
    width = x.shape[-1]
    waves = torch.zeros(LENGTH, width, dtype=torch.float64)
    for place in range(LENGTH):
        for pair in range(width // 2):
            angle = place / 10_000 ** (2 * pair / width)
            waves[place, 2 * pair], waves[place, 2 * pair + 1] = math.sin(angle), math.cos(angle)
    x = layer_norm(x + waves * weights["body.position.0.gain"] / math.sqrt(width), weights, "body.embedding.norm")
    for layer in range(2):
        path = f"body.layers.{layer}"
        x = x + attend(layer_norm(x, weights, f"{path}.placement.norms.attention"), weights, f"{path}.attention.heads")
        h = layer_norm(x, weights, f"{path}.placement.norms.feedforward")
        gate, inner, outer = (weights[f"{path}.feedforward.{name}.weight"] for name in ("gate", "inner", "outer"))
        x = x + (gelu(h @ gate.T) * (h @ inner.T)) @ outer.T
    scores: Tensor = layer_norm(x, weights, "body.norm") @ table.T
    return scores


def attend(h: Tensor, weights: Mapping[str, Tensor], path: str) -> Tensor:
    q, k, v = ((h @ weights[f"{path}.{name}.weight"].T).unflatten(-1, (HEADS, -1)).transpose(1, 2) for name in "qkv")
    weighted = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
    mixed: Tensor = weighted.transpose(1, 2).flatten(2) @ weights[f"{path}.o.weight"].T
    return mixed


def layer_norm(x: Tensor, weights: Mapping[str, Tensor], path: str) -> Tensor:
    deviation = (x.var(-1, correction=0, keepdim=True) + 1e-12).sqrt()
    return (x - x.mean(-1, keepdim=True)) / deviation * weights[f"{path}.weight"] + weights[f"{path}.bias"]

"""Crammed BERT has no twin in a library: held against its layers written out."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

import paribus

HEADS, LENGTH = 4, 9


def test_scores_are_those_of_its_layers_written_out(shake: Callable[[nn.Module], nn.Module]) -> None:
    model = shake(paribus.assemble(paribus.spec("crammed-bert-tiny", "dims.width=16", "dims.vocabulary=300")))
    weights = dict(model.named_parameters())
    tokens = torch.randint(40, 290, (3, LENGTH), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens)[0], written_out(weights, tokens), rtol=0, atol=1e-12)
    assert not [name for name in weights if name.endswith(("heads.q.bias", "inner.bias", "objectives.mlm.bias"))]


def written_out(weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """(B, T) -> (B, T, V)."""
    table = weights["embedding.tokens.weight"]
    x = table[tokens]
    width = x.shape[-1]
    waves = torch.zeros(LENGTH, width, dtype=torch.float64)
    for place in range(LENGTH):
        for pair in range(width // 2):
            angle = place / 10_000 ** (2 * pair / width)
            waves[place, 2 * pair], waves[place, 2 * pair + 1] = math.sin(angle), math.cos(angle)
    x = normed(x + waves * weights["body.position.0.gain"] / math.sqrt(width), weights, "body.embedding.norm")
    for layer in range(2):
        at = f"body.layers.{layer}"
        x = x + attended(normed(x, weights, f"{at}.placement.norms.attention"), weights, f"{at}.attention.heads")
        h = normed(x, weights, f"{at}.placement.norms.feedforward")
        gate, inner, outer = (weights[f"{at}.feedforward.{name}.weight"] for name in ("gate", "inner", "outer"))
        x = x + (gelu(h @ gate.T) * (h @ inner.T)) @ outer.T
    scores: Tensor = normed(x, weights, "body.norm") @ table.T
    return scores


def attended(h: Tensor, weights: Mapping[str, Tensor], at: str) -> Tensor:
    q, k, v = ((h @ weights[f"{at}.{name}.weight"].T).unflatten(-1, (HEADS, -1)).transpose(1, 2) for name in "qkv")
    seen = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
    mixed: Tensor = seen.transpose(1, 2).flatten(2) @ weights[f"{at}.o.weight"].T
    return mixed


def normed(x: Tensor, weights: Mapping[str, Tensor], at: str) -> Tensor:
    deviation = (x.var(-1, correction=0, keepdim=True) + 1e-12).sqrt()
    return (x - x.mean(-1, keepdim=True)) / deviation * weights[f"{at}.weight"] + weights[f"{at}.bias"]

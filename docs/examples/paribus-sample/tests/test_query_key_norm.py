"""Conformance test of the component, and a test of the formula in its paper."""

import torch
from paribus_sample.query_key_norm import QueryKeyNorm

from paribus import Shape
from paribus.testing import conform


def test_it_conforms() -> None:
    conform(QueryKeyNorm)


def test_no_score_is_larger_than_the_scale() -> None:
    attention = QueryKeyNorm(Shape(width=8, heads=2, head_width=4, length=16, vocabulary=11, layers=1), scale=3.0)
    x = torch.randn(2, 5, 8) * 1000  # (B, T, D)
    scores = attention.queries(x) @ attention.keys(x).transpose(-1, -2)  # (B, H, T, S)
    assert scores.abs().max() <= 3.0001

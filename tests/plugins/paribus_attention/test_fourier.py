"""Fourier mixing, compared with the sum and with transformers."""

import cmath
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import FNetConfig
from transformers.models.fnet.modeling_fnet import FNetFourierTransform

from paribus import Stack, TokenLayout

BuildStack = Callable[..., Stack]
Randn = Callable[..., Tensor]
ROWS = TokenLayout(torch.arange(5).unsqueeze(0))


def test_matches_the_real_part_of_the_double_sum(build_stack: BuildStack, randn: Randn) -> None:
    x = randn(1, 5, 12)
    actual = build_stack("fourier", causal=False)(x, ROWS).hidden[0]
    layout = x[0].tolist()
    for t in range(5):
        for d in range(12):
            terms = (
                layout[s][c] * cmath.exp(-2j * cmath.pi * (t * s / 5 + d * c / 12)) for s in range(5) for c in range(12)
            )
            assert abs(sum(terms).real - float(actual[t, d])) < 1e-9


def test_matches_transformers(build_stack: BuildStack, randn: Randn) -> None:
    x = randn(2, 5, 12)
    hf_module = FNetFourierTransform(FNetConfig(hidden_size=12, use_tpu_fourier_optimizations=False))
    (mixed,) = hf_module.self(x)
    actual = build_stack("fourier", causal=False)(x, ROWS).hidden
    assert torch.allclose(actual, mixed, rtol=0, atol=1e-12)


def test_two_applications_restore_an_even_signal(build_stack: BuildStack, randn: Randn) -> None:
    x = randn(1, 5, 12)
    even = x + x.flip(1, 2).roll((1, 1), (1, 2))
    stack = build_stack("fourier", causal=False)
    assert torch.allclose(stack(stack(even, ROWS).hidden, ROWS).hidden, 60 * even, rtol=0, atol=1e-9)

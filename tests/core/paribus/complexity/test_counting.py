"""Sequential operations and path lengths of attentions, and growth of counts."""

import pytest
import torch

from paribus.complexity.counting import growth, path_length
from paribus.complexity.derivation import path, sequential
from paribus.complexity.sublayer import candidates
from paribus.registry import Registry, installed


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "causal", "steps", "paths"),
    [
        ("mha", False, "O(1)", "O(1)"),
        ("restricted", False, "O(1)", "O(n/w)"),
        ("restricted", True, "O(1)", "O(n/w)"),
        ("conv", False, "O(1)", "O(n/k)"),
        ("local-m", True, "O(1)", "O(n/r)"),
        ("linear", False, "O(1)", "O(1)"),
        ("linear", True, "O(n)", "O(n)"),
        ("lstm", True, "O(n)", "O(n)"),
        ("qrnn", True, "O(n)", "O(n)"),  # from chunk to chunk
        ("block-sparse", False, "O(1)", "O(1)"),
        ("dilated", False, "O(1)", "∞"),  # tokens at odd distances
        ("identity", False, "O(1)", "∞"),
    ],
)
def test_steps_and_paths_of_an_attention(registry: Registry, name: str, causal: bool, steps: str, paths: str) -> None:
    candidate = candidates(registry, [name])[0]
    counted = sequential(registry, candidate, causal=causal)
    assert counted.order == steps
    assert path(registry, candidate, counted, causal=causal).order == paths


def test_the_path_of_a_band_is_its_length_over_its_reach() -> None:
    index = torch.arange(9)
    band = (index.unsqueeze(0) - index.unsqueeze(1)).abs() <= 2
    assert path_length(band, causal=False) == (4, True)
    assert path_length(band.tril(), causal=True) == (4, True)
    assert path_length(torch.zeros(9, 9, dtype=torch.bool), causal=False) == (1, False)


@pytest.mark.parametrize(
    ("counts", "exponent"),
    [
        ((7, 7, 7), 0.0),
        ((7, 7, 12, 12), 0.0),  # a kernel that starts to work in blocks
        ((10, 20, 40), 1.0),
        ((17, 19, 23, 31), 1.0),
        ((1, 4, 16, 64), 2.0),
        ((1, 2, 3, 4), 0.5),
        ((1, 2, 3, 7), None),
    ],
)
def test_growth_of_counts_at_doubled_lengths(counts: tuple[int, ...], exponent: float | None) -> None:
    assert growth(counts) == exponent

"""Sequential operations and path lengths of attentions, and growth of counts."""

import itertools

import pytest
import torch

from paribus.complexity.counting import dependencies, growth, path_length
from paribus.complexity.derivation import path, sequential
from paribus.complexity.sublayer import Size, candidates, node_of
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
        ("full-conv", True, "O(1)", "O(n/k)"),
        ("dilated-conv", False, "O(1)", "O(log_k n)"),
        ("dilated-conv", True, "O(1)", "O(log_k n)"),
        ("{name: full-conv, dilation: 2}", False, "O(1)", "∞"),  # tokens at odd distances
        ("local-m", True, "O(1)", "O(n/r)"),
        ("linear", False, "O(1)", "O(1)"),
        ("linear", True, "O(n)", "O(n)"),
        ("lstm", True, "O(n)", "O(n)"),
        ("qrnn", True, "O(n)", "O(n)"),  # from chunk to chunk
        ("delta", True, "O(n)", "O(n)"),  # from chunk to chunk
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
    assert path_length(itertools.repeat(band), causal=False) == (4, True)
    assert path_length(itertools.repeat(band.tril()), causal=True) == (4, True)
    assert path_length(itertools.repeat(torch.zeros(9, 9, dtype=torch.bool)), causal=False) == (1, False)


@pytest.mark.parametrize("kernel", [2, 3, 4])
def test_the_path_of_a_dilated_stack_is_the_logarithm_of_its_length(registry: Registry, kernel: int) -> None:
    """Dilations 1, k, k² … connect k^L tokens in L layers, and no longer sequence."""
    candidate = candidates(registry, [f"{{name: dilated-conv, kernel: {kernel}}}"])[0]
    for length, layers in ((kernel, 1), (kernel**2, 2), (kernel**2 + 1, 3), (kernel**3, 3), (kernel**4, 4)):
        size = Size(length, 4, 1, causal=True)
        node = node_of(registry, candidate, size)
        graphs = (dependencies(registry, node, size._replace(layer=layer)) for layer in itertools.count())
        assert path_length(graphs, causal=True) == (layers, True)


def test_a_layer_that_reaches_nothing_new_does_not_end_a_path() -> None:
    index = torch.arange(9)
    distances = index.unsqueeze(1) - index.unsqueeze(0)
    near, far = ((distances == step) | (distances == 0) for step in (1, 100))
    assert path_length(itertools.cycle([near, far]), causal=True) == (15, True)


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


def test_growth_of_counts_at_quadrupled_lengths() -> None:
    assert growth((2, 5, 17, 65), ratio=4) == 1.0
    assert growth((1, 2, 3, 4), ratio=4) == 0.5

"""What counts as an operation."""

import math

import pytest
import torch

from paribus.testing.forward_checks import flop_counter


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_products_count_as_torch_counts_them_and_transforms_as_fftw_does(device: str) -> None:
    x = torch.zeros(3, 8, 6, device=device)
    with flop_counter() as counter:
        x @ x.transpose(1, 2)
    assert counter.get_total_flops() == 2 * 3 * 8 * 8 * 6
    with flop_counter() as counter:
        torch.fft.fft2(x)
    assert counter.get_total_flops() == pytest.approx(3 * 5 * 48 * math.log2(48), abs=2)

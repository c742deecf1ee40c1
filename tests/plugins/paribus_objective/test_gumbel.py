"""Gumbel noise: its distribution, and its dependence on key and position alone."""

import torch

from paribus_objective import gumbel

MASK = 2**64 - 1
KEYS = torch.arange(400) * 7919 + 2**40


def finalized(x: int) -> int:
    """Finalizer of splitmix64 on unsigned integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_numbers_equal_those_of_the_finalizer() -> None:
    keys = torch.tensor([0, 1, 2**61 + 12345])
    numbers = gumbel.uniform(keys, 3, 4)
    for row, key in enumerate(keys.tolist()):
        base = finalized((key + 3 * 0x9E3779B97F4A7C15) & MASK)
        for entry in range(4):
            bits = finalized((base + entry * 0xD1B54A32D192ED03) & MASK) >> 41
            assert numbers[row, entry].item() == (bits + 0.5) * 2.0**-23


def test_numbers_are_uniform_and_never_0_or_1() -> None:
    values = gumbel.uniform(KEYS, 0, 1000).flatten().double()
    assert 0 < values.min() < 1e-4
    assert 1 - 1e-4 < values.max() < 1
    counts = torch.histc(values, 50, 0, 1)
    expected = len(values) / 50
    assert float(((counts - expected) ** 2 / expected).sum()) < 100  # of 49 degrees of freedom: p < 1e-4


def test_a_draw_depends_only_on_its_key_and_position() -> None:
    whole = gumbel.uniform(KEYS, 5, 30)
    assert torch.equal(gumbel.uniform(KEYS[7:9], 5, 20), whole[7:9, :20])
    others = gumbel.uniform(KEYS, 6, 30)
    assert abs(torch.corrcoef(torch.stack([whole.flatten(), others.flatten()]))[0, 1]) < 0.03
    assert abs(torch.corrcoef(torch.stack([whole[1:].flatten(), whole[:-1].flatten()]))[0, 1]) < 0.03


def test_the_largest_noisy_score_follows_the_softmax() -> None:
    scores = torch.tensor([0.0, 1.0, -1.0, 2.0])
    keys = torch.arange(20_000)
    counts = (scores + gumbel.noise(keys, 1, 4)).argmax(-1).bincount(minlength=4)
    expected = scores.softmax(-1) * len(keys)
    assert float(((counts - expected) ** 2 / expected).sum()) < 21.1  # of 3 degrees of freedom: p < 1e-4


def test_noise_is_finite() -> None:
    noise = gumbel.noise(KEYS, 2, 5000)
    assert noise.dtype == torch.float32
    assert torch.isfinite(noise).all()

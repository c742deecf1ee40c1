"""Rotary scaling, compared with the papers' formulas and with transformers."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import Shape
from paribus_position.rotary import Rotary
from paribus_position.rotary_scaling import Scaling, frequencies, temperature, validate_scaling

CPU = torch.device("cpu")
COLUMNS = 64
CONFIGURED = {
    "linear": (Scaling("linear", 4.0), {"factor": 4.0}),
    "yarn": (Scaling("yarn", 8.0, 4096), {"factor": 8.0, "original_max_position_embeddings": 4096}),
    "yarn, narrow": (
        Scaling("yarn", 40.0, 300, fast=7.5, slow=2.0),
        {"factor": 40.0, "original_max_position_embeddings": 300, "beta_fast": 7.5, "beta_slow": 2.0},
    ),
    "yarn, other temperature": (
        Scaling("yarn", 2.0, 64, temperature=0.7),
        {"factor": 2.0, "original_max_position_embeddings": 64, "attention_factor": 0.7},
    ),
    "llama3": (
        Scaling("llama3", 8.0, 8192),
        {"factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ),
    "llama3, wide": (
        Scaling("llama3", 32.0, 512, fast=16.0, slow=0.5),
        {"factor": 32.0, "original_max_position_embeddings": 512, "low_freq_factor": 0.5, "high_freq_factor": 16.0},
    ),
}


def config(kind: str, theta: float, options: dict[str, Any]) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaConfig(
        hidden_size=4 * COLUMNS, num_attention_heads=4, max_position_embeddings=100_000,
        rope_parameters={"rope_type": kind, "rope_theta": theta, **options},
    )  # fmt: skip


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
@pytest.mark.parametrize("name", CONFIGURED)
def test_frequencies_and_temperature_match_transformers(name: str, theta: float) -> None:
    scaling, options = CONFIGURED[name]
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    reference, factor = utils.ROPE_INIT_FUNCTIONS[scaling.kind](config(scaling.kind, theta, options), CPU)
    actual = frequencies(theta, COLUMNS, scaling, CPU)
    assert torch.allclose(actual, reference.double(), rtol=2e-6, atol=1e-12)  # float32 in transformers
    assert (actual - reference).abs().max() <= 1e-6
    assert temperature(scaling) == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("times", [2.0, 16.0])
def test_ntk_matches_dynamic_scaling_of_transformers(times: float) -> None:
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    dynamic_config = config("dynamic", 10_000.0, {"factor": 1.0})
    reference, _ = utils.ROPE_INIT_FUNCTIONS["dynamic"](dynamic_config, CPU, seq_len=int(times * 100_000))
    actual = frequencies(10_000.0, COLUMNS, Scaling("ntk", times), CPU)
    assert torch.allclose(actual, reference.double(), rtol=2e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["linear", "yarn", "llama3, wide"])
def test_rotation_matches_llama(name: str, shape: Shape) -> None:
    scaling, options = CONFIGURED[name]
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    x, positions = torch.randn(2, 3, 20, COLUMNS), torch.arange(20).unsqueeze(0)
    cos, sin = modeling.LlamaRotaryEmbedding(config(scaling.kind, 10_000.0, options))(x, positions)
    expected, _ = modeling.apply_rotary_pos_emb(x, x, cos, sin)
    position = Rotary(shape, scaling=scaling)
    assert torch.allclose(position.rotate(x, position.tables(positions, COLUMNS), "query"), expected, rtol=0, atol=2e-5)


def formula(theta: float, columns: int, scaling: Scaling) -> list[float]:
    """Compute the papers' formulas, one pair at a time."""
    plain = [theta ** (-2 * i / columns) for i in range(columns // 2)]
    factor, length = scaling.factor or 1.0, scaling.length or 1
    if scaling.kind == "linear":
        return [angle / factor for angle in plain]
    if scaling.kind == "ntk":
        longer = theta * factor ** (columns / (columns - 2))
        return [longer ** (-2 * i / columns) for i in range(columns // 2)]
    fast, slow = scaling.fast or {"yarn": 32.0, "llama3": 4.0}[scaling.kind], scaling.slow or 1.0
    if scaling.kind == "llama3":
        unscaled_share = [(length * angle / (2 * math.pi) - slow) / (fast - slow) for angle in plain]
    else:
        positions = [
            columns * math.log(length / (often * 2 * math.pi)) / (2 * math.log(theta)) for often in (fast, slow)
        ]
        low, high = max(math.floor(positions[0]), 0), min(math.ceil(positions[1]), columns - 1)
        unscaled_share = [1 - (i - low) / (high - low) for i in range(columns // 2)]
    share = [min(max(left, 0.0), 1.0) for left in unscaled_share]
    return [angle * left + angle / factor * (1 - left) for angle, left in zip(plain, share, strict=True)]


@pytest.mark.parametrize("columns", [8, 64])
@pytest.mark.parametrize("scaling", [*(scaling for scaling, _ in CONFIGURED.values()), Scaling("ntk", 3.0)])
def test_frequencies_match_the_papers(scaling: Scaling, columns: int) -> None:
    expected = torch.tensor(formula(10_000.0, columns, scaling), dtype=torch.float64)
    actual = frequencies(10_000.0, columns, scaling, CPU)
    assert actual.dtype == torch.float64
    assert torch.allclose(actual, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("kind", ["ntk", "yarn", "llama3"])
def test_high_frequencies_stay_and_low_ones_are_divided(kind: Any) -> None:
    scaling = Scaling(kind, 8.0, None if kind == "ntk" else 2048)
    share = frequencies(10_000.0, COLUMNS, scaling, CPU) / frequencies(10_000.0, COLUMNS, Scaling(), CPU)
    assert float(share[0]) == 1
    assert float(share[-1]) == pytest.approx(1 / 8, rel=1e-12)
    assert (share.diff() <= 1e-15).all()


def test_factor_1_changes_nothing() -> None:
    plain = frequencies(10_000.0, COLUMNS, Scaling(), CPU)
    for scaling in (Scaling("linear", 1.0), Scaling("ntk", 1.0), Scaling("yarn", 1.0, 64), Scaling("llama3", 1.0, 64)):
        assert torch.allclose(frequencies(10_000.0, COLUMNS, scaling, CPU), plain, rtol=1e-15, atol=0)
        assert temperature(scaling) == 1
    assert frequencies(10_000.0, 2, Scaling("ntk", 4.0), CPU).tolist() == [1.0]


def test_linear_scaling_equals_interpolated_positions(shape: Shape) -> None:
    """Multiples of the factor are rotated like positions within the trained length."""
    x, position_ids = torch.randn(1, 2, 5, 6, dtype=torch.float64), torch.arange(5).unsqueeze(0)

    def rotate(position: Rotary, positions: Tensor) -> Tensor:
        return position.rotate(x, position.tables(positions, 6), "key")

    stretched = rotate(Rotary(shape, scaling=Scaling("linear", 4.0)), 4 * position_ids)
    assert torch.allclose(stretched, rotate(Rotary(shape), position_ids), rtol=0, atol=1e-14)


def test_yarn_multiplies_scores_by_the_squared_temperature(shape: Shape) -> None:
    position = Rotary(shape, scaling=Scaling("yarn", 16.0, 64))
    x = torch.randn(1, 2, 5, 6, dtype=torch.float64)
    actual = position.rotate(x, position.tables(torch.arange(5).unsqueeze(0), 6), "query")
    assert torch.allclose(actual.norm(dim=-1), x.norm(dim=-1) * (1 + 0.1 * math.log(16)), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        (
            Scaling(factor=2.0),
            r"scaling.factor is not used with scaling.kind none; valid: linear, ntk, yarn",
        ),
        (Scaling("linear"), r"linear requires scaling.factor"),
        (Scaling("yarn", 2.0), r"yarn requires scaling.length"),
        (Scaling("linear", 2.0, 64), r"scaling.length is not used .* linear; valid: yarn, llama3"),
        (Scaling("llama3", 2.0, 64, temperature=1.1), r"scaling.temperature is not used .* llama3; valid: yarn"),
        (Scaling("llama3", 2.0, 64, slow=4.0), r"scaling.fast \(4\) must be more than scaling.slow \(4\)"),
    ],
)
def test_unused_and_missing_options_are_rejected(scaling: Scaling, message: str, shape: Shape) -> None:
    with pytest.raises(ValueError, match=message):
        validate_scaling(scaling)
    with pytest.raises(ValueError, match=message):
        Rotary(shape, scaling=scaling)

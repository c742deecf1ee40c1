"""Complexity lab: crossovers, noise, sizes that are skipped, and declared costs that are wrong."""

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, final

import pytest
import torch
from tests.fixtures.problems import raises_problem
from torch import Tensor, nn

from paribus import Attention, AttentionTraits, Context, Cost, Load, Registry, Shape, State
from paribus.complexity.derivation import ClosedForm, Growth
from paribus.complexity.lab import Complexity, Profile, Settings, flops_crossover, measure, predicted_seconds
from paribus.complexity.measuring import _cuda_peak, current_device, peak_bytes
from paribus.complexity.sublayer import Size, candidates, node_of
from paribus.errors import SpecError
from paribus.registry import installed
from paribus.report.complexity_views import exponent_of, grids, records, time_crossover, to_json
from paribus.train.step_memory import LiveBytes


@final
class Polynomial(Attention):
    """Attention whose cost is a polynomial of n."""

    def __init__(self, shape: Shape, *, square: int = 0, plain: int = 0) -> None:
        super().__init__()
        self.square, self.plain = square, plain

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return x

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {}

    def cost(self, load: Load) -> Cost:
        return Cost(self.square * load.queries**2 + self.plain * load.queries)


@final
class Mean(Attention):
    """A linear map of the mean of all tokens, whose declared cost forgets the linear map."""

    traits: ClassVar[AttentionTraits] = {"causal": False, "residual": True}

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.map = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        mapped: Tensor = self.map(x)
        return mapped.mean(1, keepdim=True).expand_as(x)

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {}

    def cost(self, load: Load) -> Cost:
        return Cost(2 * load.queries)


def polynomial(square: int = 0, plain: int = 0) -> Polynomial:
    return Polynomial(Size(8, 8, 1).shape, square=square, plain=plain)


def test_the_crossover_is_the_first_length_with_fewer_flops() -> None:
    assert flops_crossover(polynomial(plain=100), polynomial(square=1)) == 101
    assert flops_crossover(polynomial(square=1, plain=1), polynomial(square=2)) == 2
    assert flops_crossover(polynomial(square=1), polynomial(square=2)) == 1
    assert flops_crossover(polynomial(square=1), polynomial(plain=100)) is None
    assert flops_crossover(polynomial(square=1), polynomial(square=1)) is None


def result_of(seconds: Sequence[float], reference: Sequence[float]) -> tuple[Complexity, Profile]:
    """Return a result with an attention and the reference, measured at 256, 512, … tokens."""
    lengths = [256 * 2**index for index in range(len(seconds))]
    settings = Settings(lengths=lengths, widths=[8], heads=1)

    def profile(label: str, times: Sequence[float]) -> Profile:
        return Profile(
            label=label,
            options={},
            form=ClosedForm(("n", "d", "h"), {}, {}, {}),
            sequential=Growth(0.0),
            path=Growth(0.0),
            flops={},
            counted={},
            windowed=False,
            crossover=None,
            seconds={size: [s, s, s] for size, s in zip(settings.by_length, times, strict=True)},
        )

    profiles = [profile("mha", reference), profile("other", seconds)]
    return Complexity(settings=settings, profiles=profiles, failures={}, twin={}, seconds=0.0), profiles[1]


def test_the_crossover_of_time_is_interpolated() -> None:
    crossover, text = time_crossover(*result_of([2, 4, 8], [1, 4 / 2**0.5, 16]))
    assert crossover == pytest.approx(512 * 2 ** (1 / 3))
    assert text == "from n ≈ 650"
    assert time_crossover(*result_of([1, 2, 4], [2, 4, 8])) == (256.0, "at n = 256 already")
    assert time_crossover(*result_of([2, 4, 8], [1, 2, 4])) == (None, "not up to n = 1024")


def test_the_exponent_is_the_slope_on_logarithmic_axes() -> None:
    result, profile = result_of([1, 4, 16], [1, 1, 1])
    measured = exponent_of(profile.seconds, result.settings.by_length)
    assert measured is not None
    assert measured.figure == pytest.approx(2.0)
    assert exponent_of(profile.seconds, result.settings.by_length[:2]) is None


def test_predicted_seconds_follow_the_last_growth() -> None:
    assert predicted_seconds([], 8) == 0.0
    assert predicted_seconds([(2, 1.0), (4, 4.0)], 8) == pytest.approx(16.0)


@pytest.fixture(scope="module")
def measured() -> Complexity:
    registry: Registry = installed().with_components(attention={"mean": Mean})
    settings = Settings(lengths=(16, 32, 64, 96), widths=(8, 16, 32), heads=2, rounds=2, backward=True)
    words = ["mean", "{name: restricted, window: 24}", "linformer"]
    return measure(registry, candidates(registry, words), settings, lambda text: None)


@pytest.mark.thorough
def test_a_declared_cost_that_torch_does_not_count_is_reported(measured: Complexity) -> None:
    mismatches = {profile.label: bool(profile.mismatch) for profile in measured.profiles}
    assert mismatches == {"mha": False, "mean": True, "restricted (window 24)": False, "linformer": False}
    assert [mark for mark, lines in grids(measured)[0].remarks if lines and mark == "!"]


@pytest.mark.thorough
def test_every_size_is_measured_or_listed_with_the_reason(measured: Complexity) -> None:
    for profile in measured.profiles:
        assert set(profile.seconds) | set(profile.skipped) == set(measured.settings.sizes)
    linformer, window = measured.profiles[3], measured.profiles[2]
    assert {size.length for size in linformer.skipped} == {16, 32}  # its rank is 64
    assert {size.length for size in window.skipped} == {16}
    rows: list[Any] = list(records(measured))
    assert all((row["seconds"] is None) != (row["skipped"] is None) for row in rows)


@pytest.mark.thorough
def test_memory_grows_with_the_length(measured: Complexity) -> None:
    exponent = exponent_of(measured.reference.memory, measured.settings.by_length)
    assert exponent is not None
    assert 0.6 < exponent.figure < 1.2  # the fused kernel stores no weights


@pytest.mark.thorough
def test_the_document_has_the_numbers_of_the_table(measured: Complexity) -> None:
    mean = to_json(measured)["attentions"][1]
    assert (mean["attention"], mean["sequential"], mean["path"]) == ("mean", "O(1)", "O(1)")
    assert mean["exponents"]["flops_in_n"]["figure"] == pytest.approx(1.0)
    assert len(mean["local_slopes"]["time_in_n"]) == 3


def test_an_unknown_attention_is_an_error() -> None:
    with raises_problem(SpecError, "unknown-component", "restricted"):
        candidates(installed(), ["restrictd"])


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", ["mha", "restricted", "block-sparse", "conv", "fourier"])
@pytest.mark.parametrize("backward", [False, True])
def test_memory_without_data_is_that_with_data(name: str, backward: bool) -> None:
    registry, size = installed(), Size(256, 32, 4)
    node = node_of(registry, candidates(registry, [name])[0], size)
    traced, run = (peak_bytes(registry, node, size, "cpu", backward=backward, with_data=data) for data in (False, True))
    assert traced == run > 0


@pytest.mark.parametrize("backward", [False, True])
def test_memory_on_a_gpu_counts_what_is_counted_on_a_cpu(backward: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, size, live = installed(), Size(256, 32, 4), LiveBytes()
    node = node_of(registry, candidates(registry, ["mha"])[0], size)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: live.now)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: live.peak)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: live.reset_peak())
    with live:
        measured = _cuda_peak(registry, node, size, "cpu", backward=backward)
    assert measured == peak_bytes(registry, node, size, "cpu", backward=backward, with_data=True)


def test_a_measured_gpu_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current = ["cuda:0"]

    @contextmanager
    def use(device: str) -> Any:
        current.append(device)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", use)
    with current_device("cuda:1"):
        assert current[-1] == "cuda:1"
    with current_device("cpu"):
        assert current == ["cuda:0"]

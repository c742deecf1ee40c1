"""Attention measures on weights with known values."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import Batch, Measure, Stream
from paribus_measure.attention_entropy import AttentionEntropy
from paribus_measure.effective_span import EffectiveSpan
from paribus_measure.sink_mass import SinkMass

N = 10
EVEN = torch.full((2, 3, N, N), 1 / N, dtype=torch.float64)
PAST = (torch.ones(N, N, dtype=torch.float64).tril() / torch.arange(1, N + 1).unsqueeze(1)).expand(2, 3, N, N)
MeasureModel = Callable[..., dict[str, Any]]


@pytest.fixture
def measure_model(fake_model: Any) -> MeasureModel:
    def measure_model(
        measure: Measure, *layers: Tensor, causal: bool, documents: Tensor | None = None
    ) -> dict[str, Any]:
        batch, _, _, length = layers[0].shape
        tokens = torch.zeros(batch, length, dtype=torch.long)
        shows = Batch({"body": Stream(tokens, documents)}, {}, torch.arange(batch))
        return dict(measure.measure(fake_model([shows], attention_of=lambda _: list(layers), causal=causal)))

    return measure_model


@pytest.mark.parametrize(("weights", "causal"), [(EVEN, False), (PAST, True)])
def test_equal_weights_have_the_largest_entropy(weights: Tensor, causal: bool, measure_model: MeasureModel) -> None:
    values = measure_model(AttentionEntropy(), weights, causal=causal)
    assert values == pytest.approx({"mean": 1.0, "lowest": 1.0, "highest": 1.0}, abs=1e-12)


def test_one_attended_token_has_no_entropy_and_heads_are_measured_separately(measure_model: MeasureModel) -> None:
    weights = EVEN.clone()
    weights[:, 1] = torch.eye(N, dtype=torch.float64)
    weights[:, 2] = 0.5 * (torch.eye(N) + torch.eye(N).roll(1, 0)).double()
    values = measure_model(AttentionEntropy(), weights, causal=False)
    half = math.log(2) / math.log(N)
    assert values == pytest.approx({"mean": (1 + 0 + half) / 3, "lowest": 0.0, "highest": 1.0}, abs=1e-12)


def test_equal_weights_give_the_first_token_its_share(measure_model: MeasureModel) -> None:
    values = measure_model(SinkMass(), EVEN, causal=False)
    assert values == pytest.approx({"mean": 1 / N, "lowest": 1 / N, "highest": 1 / N, "nowhere": 0.0}, abs=1e-12)
    values = measure_model(SinkMass(), PAST, causal=True)  # the first row sees only itself and is not counted
    assert values["mean"] == pytest.approx(sum(1 / rows for rows in range(2, N + 1)) / (N - 1), abs=1e-12)


def test_a_first_token_sink_has_all_weight_and_a_learned_sink_none(measure_model: MeasureModel) -> None:
    weights = torch.zeros_like(EVEN)
    weights[..., 0] = 1
    weights[:, 1] *= 0.25
    values = measure_model(SinkMass(), weights, causal=True)
    assert values == pytest.approx({"mean": 0.75, "lowest": 0.25, "highest": 1.0, "nowhere": 0.25}, abs=1e-12)


def test_weight_on_a_learned_sink_changes_no_span_and_no_entropy(measure_model: MeasureModel) -> None:
    for measure in (EffectiveSpan(), AttentionEntropy()):
        whole, part = (measure_model(measure, share * PAST, causal=True) for share in (1.0, 0.3))
        assert part == pytest.approx(whole, abs=1e-9)


def test_a_span_is_the_mean_distance(measure_model: MeasureModel) -> None:
    values = measure_model(EffectiveSpan(), PAST, causal=True)  # mean distance of row i to the rows up to itself: i / 2
    assert values["mean"] == pytest.approx(sum(row / 2 for row in range(1, N)) / (N - 1), abs=1e-9)
    values = measure_model(EffectiveSpan(), EVEN, causal=False)
    assert values["mean"] == pytest.approx((N**2 - 1) / (3 * N), abs=1e-9)
    weights = EVEN.clone()
    weights[:, 0] = torch.eye(N).roll(2, 1).double()  # two rows ahead, cyclically
    near = measure_model(EffectiveSpan(), weights, causal=False)["lowest"]
    assert near == pytest.approx((2 * (N - 2) + 2 * (N - 2)) / N, abs=1e-9)


def test_padding_is_not_counted_and_documents_are_separate(measure_model: MeasureModel) -> None:
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, -1, -1, -1]]).expand(2, -1)
    same = (documents[0, :, None] == documents[0, None, :]) & (documents[0] >= 0) & torch.ones(N, N).tril().bool()
    weights = (same.double() / same.sum(-1, keepdim=True).clamp(min=1)).double().expand(2, 3, N, N)
    values = measure_model(SinkMass(), weights, causal=True, documents=documents)
    assert values["mean"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 4 + 1 / 2 + 1 / 3) / 5, abs=1e-12)
    values = measure_model(AttentionEntropy(), weights, causal=True, documents=documents)
    assert values["mean"] == pytest.approx(1.0, abs=1e-12)


def test_layers_and_batches_are_weighted_equally(measure_model: MeasureModel, fake_model: Any) -> None:
    first, second = EVEN, torch.eye(N, dtype=torch.float64).expand(2, 3, N, N)
    assert measure_model(AttentionEntropy(), first, second, causal=False)["mean"] == pytest.approx(0.5, abs=1e-12)
    batches = [
        Batch({"body": Stream(torch.zeros(rows, N, dtype=torch.long))}, {}, torch.arange(rows)) for rows in (1, 2)
    ]
    model = fake_model(
        batches, attention_of=lambda batch: [(first if len(batch.index) == 1 else second)[: len(batch.index)]]
    )
    model.causal = False
    assert AttentionEntropy(examples=7).measure(model)["mean"] == pytest.approx(1 / 3, abs=1e-12)
    assert model.requests == [(7, 1)]


def test_tokens_that_see_only_themselves_are_not_counted(measure_model: MeasureModel) -> None:
    alone = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    for measure in (AttentionEntropy(), SinkMass(), EffectiveSpan()):
        values = measure_model(measure, alone, causal=True)
        assert set(values.values()) == {"no token sees two tokens"}

"""Cross-entropy in chunks: equal losses and gradients, and less memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from paribus import IGNORED
from paribus.datamodule.data import Data
from paribus.models.evaluate import compute_metrics, evaluation_mode
from paribus.models.lightning_module import Model
from paribus.parts import chunked_loss
from paribus.parts.batch import Batch
from paribus.parts.chunked_loss import map_in_chunks, summed_cross_entropy
from paribus.registry import Registry
from paribus.train.step_memory import LiveBytes
from paribus.train.trial import TrialContext, run_trial

Assemble = Callable[..., Model]
Shake = Callable[[Model], Model]
Feed = Callable[..., Data]

PRESETS = [
    ["gpt-tiny"],
    ["gpt-tiny", "embedding.tie=false", "data.documents=apart"],
    ["bert-tiny"],
    ["deberta-tiny"],
    ["spanbert-tiny"],
    ["albert-tiny"],
    ["t5-tiny"],
    ["transformer-tiny", "objective.smoothing=0.1"],
    ["xlnet-tiny"],
    ["rnnsearch-tiny"],
]


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let any loss be computed in chunks, and return the number of positions of each chunk."""
    sizes: list[int] = []
    compute = functional.cross_entropy

    def record(logits: Tensor, labels: Tensor, **options: Any) -> Tensor:
        sizes.append(labels.numel())
        return compute(logits, labels, **options)

    monkeypatch.setattr(chunked_loss, "MIN_CLASSES", 2)
    monkeypatch.setattr(chunked_loss, "CHUNK_LOGITS", {"cpu": 200})
    monkeypatch.setattr(functional, "cross_entropy", record)
    return sizes


def loss_and_gradients(model: Model, batch: Batch) -> tuple[Tensor, dict[str, Tensor | None]]:
    model.zero_grad()
    loss = model.loss(batch)
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("spec", PRESETS, ids=" ".join)
def test_chunks_have_the_loss_and_gradients_of_the_whole(
    spec: list[str], assemble: Assemble, shake: Shake, feed: Feed, request: pytest.FixtureRequest
) -> None:
    model, batch = shake(assemble(*spec)), feed(*spec).step(0)
    expected = loss_and_gradients(model, batch)
    chunks = request.getfixturevalue("chunks")
    actual = loss_and_gradients(model, batch)
    assert len(chunks) > 2
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


class LinearHead(nn.Module):
    """Head with two parameters."""

    def __init__(self, classes: int = 50, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.linear = nn.Linear(8, classes, dtype=dtype)

    def loss(self, hidden: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        return summed_cross_entropy(self.linear, hidden, labels, self.linear.out_features, smoothing=smoothing)


@pytest.fixture
def hidden() -> Tensor:
    return torch.randn(3, 7, 8, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def labels() -> Tensor:
    values = torch.randint(50, (3, 7))
    values[0, :4] = values[2] = IGNORED
    return values


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_gradients_equal_those_of_torch(hidden: Tensor, labels: Tensor, smoothing: float) -> None:
    head = LinearHead()
    inputs = [hidden, *head.parameters()]
    expected = functional.cross_entropy(
        head.linear(hidden).flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=smoothing
    )
    actual = head.loss(hidden, labels, smoothing)
    torch.testing.assert_close(actual, expected)
    for ours, theirs in zip(
        torch.autograd.grad(actual * 3, inputs), torch.autograd.grad(expected * 3, inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_weighted_labels_have_the_loss_and_gradients_of_torch(
    hidden: Tensor, labels: Tensor, chunks: list[int]
) -> None:
    head, weights = LinearHead(), torch.rand(3, 7, dtype=torch.float64)
    losses = functional.cross_entropy(head.linear(hidden).flatten(0, 1), labels.flatten(), reduction="none")
    expected = (losses * weights.flatten()).sum()
    actual = summed_cross_entropy(head.linear, hidden, labels, 50, weights=weights)
    assert len(chunks) > 2
    torch.testing.assert_close(actual, expected)
    inputs = [hidden, *head.parameters()]
    torch.testing.assert_close(torch.autograd.grad(actual, inputs), torch.autograd.grad(expected, inputs))
    with torch.no_grad():
        torch.testing.assert_close(summed_cross_entropy(head.linear, hidden, labels, 50, weights=weights), expected)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_z_loss_is_the_second_sum_of_one_pass(is_weighted: bool, hidden: Tensor, labels: Tensor) -> None:
    head, weights = LinearHead(), torch.rand(3, 7, dtype=torch.float64) if is_weighted else None
    logits, factors = head.linear(hidden).flatten(0, 1), (labels != IGNORED) * (1 if weights is None else weights)
    losses = functional.cross_entropy(logits, labels.flatten(), reduction="none")
    squares = logits.logsumexp(-1).square()
    expected = torch.stack([(values * factors.flatten()).sum() for values in (losses, squares)])
    scored: list[int] = []
    head.linear.register_forward_hook(lambda module, inputs, logits: scored.append(logits.numel() // 50))
    actual = summed_cross_entropy(head.linear, hidden, labels, 50, weights=weights, z=0.3)
    assert sum(scored) == labels.numel() + 1  # one position finds the parameters
    torch.testing.assert_close(actual, expected)
    inputs = [hidden, *head.parameters()]
    gradients = [torch.autograd.grad(2 * sums[0] + 0.6 * sums[1], inputs) for sums in (actual, expected)]
    torch.testing.assert_close(*gradients)
    with torch.no_grad():
        torch.testing.assert_close(
            summed_cross_entropy(head.linear, hidden, labels, 50, weights=weights, z=0.3), expected
        )


@pytest.mark.usefixtures("chunks")
def test_a_z_loss_with_another_weight_than_its_gradients_is_an_error(hidden: Tensor, labels: Tensor) -> None:
    loss, squares = summed_cross_entropy(LinearHead().linear, hidden, labels, 50, z=0.3)
    with pytest.raises(RuntimeError, match=r"first sum plus 0\.3 times the second"):
        (loss + squares).backward()


HEADS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "weight": lambda x, weight, other, bias: functional.linear(x, weight),
    "weight and bias": lambda x, weight, other, bias: functional.linear(x, weight, bias),
    "twice": lambda x, weight, other, bias: functional.linear(x, weight, bias) * functional.linear(x.tanh(), weight),
    "elsewhere too": lambda x, weight, other, bias: (
        functional.linear(x, weight) + functional.linear(x * weight.sum(), weight)
    ),
    "of a vector": lambda x, weight, other, bias: functional.linear(x, weight) + functional.linear(other[0], weight),
    "equal gradients": lambda x, weight, other, bias: x @ (weight + other).T + (bias + bias),
    "expanded gradients": lambda x, weight, other, bias: functional.linear(x, other) * weight.sum() + bias.sum(),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head", HEADS)
def test_gradients_of_any_head_equal_those_of_torch(
    head: str, dtype: torch.dtype, hidden: Tensor, labels: Tensor, request: pytest.FixtureRequest
) -> None:
    weight, other, bias = (torch.randn(*size, dtype=dtype, requires_grad=True) for size in ((50, 8), (50, 8), (50,)))
    hidden = hidden.detach().to(dtype).requires_grad_()
    gradients = []
    for is_chunked in (False, True):
        sizes = request.getfixturevalue("chunks") if is_chunked else []
        loss = summed_cross_entropy(lambda x: HEADS[head](x, weight, other, bias), hidden, labels, 50)
        gradients.append(torch.autograd.grad(loss, [hidden, weight, other, bias], materialize_grads=True))
    assert len(sizes) > 2
    largest = max(float(gradient.abs().max()) for gradient in gradients[0])
    tolerance = 1e-12 if dtype == torch.float64 else 2**-5 * largest
    torch.testing.assert_close(gradients[1], gradients[0], rtol=tolerance, atol=tolerance)


def test_ignored_labels_have_no_gradient(hidden: Tensor, labels: Tensor, chunks: list[int]) -> None:
    LinearHead().loss(hidden, labels).backward()
    assert len(chunks) > 2
    assert hidden.grad is not None
    assert not hidden.grad[labels == IGNORED].any()
    assert hidden.grad[labels != IGNORED].any(-1).all()


def test_hidden_states_may_be_frozen(hidden: Tensor, labels: Tensor, chunks: list[int]) -> None:
    head = LinearHead()
    head.loss(hidden.detach(), labels).backward()
    assert len(chunks) > 2
    assert head.linear.weight.grad is not None


def test_parameters_may_be_frozen(hidden: Tensor, labels: Tensor, chunks: list[int]) -> None:
    head = LinearHead().requires_grad_(False)
    head.loss(hidden, labels).backward()
    assert len(chunks) > 2
    assert hidden.grad is not None
    assert head.linear.weight.grad is None


@pytest.mark.usefixtures("chunks")
def test_a_second_backward_pass_is_an_error(hidden: Tensor, labels: Tensor) -> None:
    loss = LinearHead().loss(hidden, labels)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="must be computed again"):
        loss.backward()


def test_autocast_gives_gradients_in_the_precision_of_the_parameters(
    labels: Tensor, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    head, hidden = LinearHead(dtype=torch.float32), torch.randn(3, 7, 8, requires_grad=True)
    gradients = []
    for is_chunked in (False, True):
        if is_chunked:
            request.getfixturevalue("chunks")
        head.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = head.loss(hidden, labels)
        loss.backward()
        assert loss.dtype == torch.float32
        assert head.linear.weight.grad is not None
        gradients.append(head.linear.weight.grad.clone())
    torch.testing.assert_close(gradients[1], gradients[0], rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize("spec", PRESETS, ids=" ".join)
def test_evaluation_in_chunks_equals_that_of_the_whole(
    spec: list[str], assemble: Assemble, feed: Feed, request: pytest.FixtureRequest
) -> None:
    model, batch = assemble(*spec), feed(*spec).validation_batch(0)
    values = []
    for is_chunked in (False, True):
        sizes = request.getfixturevalue("chunks") if is_chunked else []
        with evaluation_mode(model):
            values.append(compute_metrics(model, [batch]))
    assert values[1] == pytest.approx(values[0], rel=1e-5)
    assert any(name.endswith(("accuracy", "exact")) for name in values[0])
    assert max(sizes) <= 200


def test_evaluation_computes_the_logits_once(assemble: Assemble, feed: Feed, chunks: list[int]) -> None:
    model, batch = assemble("gpt-tiny"), feed("gpt-tiny").validation_batch(0)
    with evaluation_mode(model):
        compute_metrics(model, [batch])
    assert sum(chunks) == batch.targets["clm"]["labels"].numel()
    assert len(chunks) > 1


def test_a_frozen_model_has_a_loss(hidden: Tensor, labels: Tensor, request: pytest.FixtureRequest) -> None:
    head = LinearHead().requires_grad_(False)
    whole = head.loss(hidden.detach(), labels)
    chunks = request.getfixturevalue("chunks")
    loss = head.loss(hidden.detach(), labels)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, whole)
    assert len(chunks) > 1


def test_no_gradients_are_computed_where_none_are_wanted(
    hidden: Tensor, labels: Tensor, chunks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.autograd, "grad", None)  # is not called
    with torch.no_grad():
        LinearHead().loss(hidden, labels)
    assert len(chunks) > 1


def test_one_gradient_of_a_head_lives_at_once(labels: Tensor, chunks: list[int]) -> None:
    head, hidden = nn.Linear(500, 50, bias=False), torch.randn(3, 7, 500, requires_grad=True)
    live = LiveBytes()
    for tensor in (head.weight, hidden):
        live.add(tensor)
    inputs = live.now
    with live:
        summed_cross_entropy(head, hidden, labels, head.out_features)
    assert len(chunks) > 2
    assert live.peak - inputs < 1.9 * head.weight.nbytes  # the sum, and the gradient of the hidden states


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("leading", [(30,), (5, 6), (2, 3, 5)])
def test_results_of_chunks_are_joined(leading: tuple[int, ...]) -> None:
    hidden, rows = torch.randn(*leading, 4, requires_grad=True), torch.randn(*leading, 3)
    sizes: list[int] = []

    def function(part: Tensor, part_rows: Tensor) -> tuple[Tensor, Tensor]:
        sizes.append(len(part))
        return part * 2, part_rows.argmax(-1)

    doubled, best = map_in_chunks(function, 50, hidden, rows)
    assert torch.equal(doubled, hidden * 2)
    assert torch.equal(best, rows.argmax(-1))
    assert not doubled.requires_grad
    assert max(sizes) == 4  # 200 logits
    (alone,) = map_in_chunks(lambda part: part.sum(-1), 50, hidden)
    torch.testing.assert_close(alone, hidden.detach().sum(-1))


def test_small_vocabularies_are_not_chunked(hidden: Tensor, labels: Tensor) -> None:
    assert "_Chunked" not in type(LinearHead().loss(hidden, labels).grad_fn).__name__


@pytest.mark.usefixtures("chunks")
def test_large_vocabularies_are_chunked(hidden: Tensor, labels: Tensor) -> None:
    assert "_Chunked" in type(LinearHead().loss(hidden, labels).grad_fn).__name__


@pytest.mark.thorough
@pytest.mark.usefixtures("one_thread", "chunks")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_chunks_have_the_same_losses_in_two_processes(
    strategy: str, tiny: Callable[..., dict[str, Any]], registry: Registry, tmp_path: Path
) -> None:
    losses = []
    for name, trainer in {"one": {}, "two": {"accelerator": "cpu", "devices": 2, "strategy": strategy}}.items():
        (tmp_path / name).mkdir()
        spec = tiny(seed=1, trainer={"max_steps": 3, **trainer}, dropout=0.0)
        losses.append(run_trial(spec, registry, TrialContext(name, tmp_path / name))["result"]["losses"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize(
    ("device", "classes", "count", "positions"),
    [
        ("cuda", 4095, 16_384, sys.maxsize),
        ("cuda", 50_304, 16_384, 8192),
        ("cuda", 50_304, 25_000, 8448),
        ("cuda", 50_304, 100, 128),
        ("cuda", 50_304, 0, 128),
        ("cuda", 1 << 23, 16_384, 64),
        ("cpu", 50_304, 16_384, 125),
        ("cpu", 32_000, 16_384, 196),
    ],
)
def test_chunks_on_a_gpu_are_equal_and_have_whole_tiles(device: str, classes: int, count: int, positions: int) -> None:
    assert chunked_loss._chunk_positions(classes, count, torch.device(device)) == positions

"""Training of a model with each component on one batch, until it is memorised."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import paribus
from paribus.models.averaged_weights import OptimizerAverages
from paribus.models.optimizer_schedule import build_optimizer
from paribus.registry import installed

pytestmark = pytest.mark.slow

TINY = ("dims.width=32", "dims.heads=4", "dims.layers=2", "dims.length=16", "dims.vocabulary=300")
UNIT_INPUTS = ("embedding.scale=true", "initialisation=xavier")  # for components without a norm
SLOTS = ("norm", "placement", "feedforward", "initialisation")
STEPS = 200


def parts() -> Iterator[Any]:
    index = installed(no_plugins=True).index
    for slot in SLOTS:
        for name in sorted({*index.names(slot)} - {"mup"}):  # it has options without a default
            yield pytest.param(slot, name, id=f"{slot}.{name}")


@pytest.fixture(scope="module")
def text() -> Tensor:
    """Return (4, 16) tokens with different starts, so that the past determines each token."""
    tokens = torch.randint(0, 32, (4, 16), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = torch.arange(4) + 40
    return tokens


@pytest.fixture(scope="module")
def final_loss(text: Tensor) -> Callable[..., float]:
    """Train for some steps at a constant rate and return the loss with the weights that a trial evaluates."""

    def learn(*overrides: str) -> float:
        model = paribus.assemble(paribus.spec("gpt-tiny", *TINY, *UNIT_INPUTS, *overrides))
        optimizer = build_optimizer(model.optimizer, model)

        def loss() -> Tensor:
            scores, _ = model(text[:, :-1])
            return functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())

        for _ in range(STEPS):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        assert all(parameter.grad is not None for parameter in model.parameters())
        with OptimizerAverages(model, model.optimizer, optimizer).applied():
            return loss().item()

    return learn


@pytest.mark.parametrize(("slot", "name"), list(parts()))
def test_every_component_learns_one_batch(slot: str, name: str, final_loss: Callable[..., float]) -> None:
    assert final_loss(f"{slot}={name}") < 0.05


@pytest.mark.parametrize(
    "name", ["delta", "delta-product", "gated-delta", "gated-linear", "kimi-delta", "mamba2", "retention"]
)
def test_every_recurrence_learns_one_batch(name: str, final_loss: Callable[..., float]) -> None:
    assert final_loss(f"attention={name}", "position=none") < 0.05


@pytest.mark.parametrize("attention", ["stick-breaking", "{name: moba, block_size: 4, top: 1}"])
def test_every_attention_that_chooses_keys_learns_one_batch(attention: str, final_loss: Callable[..., float]) -> None:
    assert final_loss(f"attention={attention}") < 0.05


@pytest.mark.parametrize("name", ["cope", "kerple"])
def test_every_learned_position_learns_one_batch(name: str, final_loss: Callable[..., float]) -> None:
    assert final_loss(f"position={name}") < 0.05


@pytest.mark.parametrize(
    "overrides",
    [
        ("feedforward=moe", "feedforward.top=1", "feedforward.softmax=all"),
        ("optimizer={name: muon, lr: 3e-3}",),
        ("placement={name: hyper, mixing: doubly-stochastic}",),
        ("placement={name: attention-residual, block: 2}",),
        ("placement=ngpt", "feedforward={name: glu, scales: true}"),
        ("dims.loops=2", "dims.loop_embedding=true"),
        ("feedforward={name: moe, experts: 8, expert: {name: glu, expand: 0.5}, router: sigmoid, shared: glu}",),
        ("embedding.ngrams={longest: 3, rows: 100}",),
        ("norm={name: rmsnorm, zero_centred: true}",),
        ("optimizer={name: soap, lr: 3e-3}",),
        ("optimizer={name: schedule-free, lr: 3e-3}",),
        ("initialisation={name: mup, base_width: 16, base_layers: 1}", "embedding.tie=false", "optimizer.lr=3e-3"),
        ("attention.scores.forget=true",),
        ("attention={name: gqa, share_kv: 2}",),
        ("placement={name: pre, gate: true}",),
        ("feedforward={name: glu, kernel: 4}",),
    ],
    ids=" ".join,
)
def test_a_model_with_one_changed_option_learns_one_batch(
    overrides: tuple[str, ...], final_loss: Callable[..., float]
) -> None:
    assert final_loss(*overrides) < 0.05


def test_a_vision_transformer_that_rotates_by_rows_and_columns_learns_one_batch() -> None:
    model = paribus.assemble(paribus.spec("vit-tiny", "position={name: rope, grid: true, theta: 100}"))
    optimizer = build_optimizer(model.optimizer, model)
    images = torch.randint(0, 256, (16, 256), generator=torch.Generator().manual_seed(0))

    def loss() -> Tensor:
        scores, _ = model(images)
        return functional.cross_entropy(scores[:, 0], torch.arange(16) % 8)

    for _ in range(60):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss() < 0.05

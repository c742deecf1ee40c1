"""Planted faults in real training: each withholds the verdict that the study without faults gets."""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, final

import numpy as np
import pytest
import torch
from torch import Tensor

from paribus import (
    Attend,
    Attention,
    AttentionTraits,
    Context,
    Cost,
    Heads,
    KeyedDraws,
    Load,
    Range,
    ScoreOptions,
    Shape,
    State,
    Visibility,
    softmax_cost,
)
from paribus.analysis.certificates import Certificate
from paribus.assembly import initialise
from paribus.parts.random_draws import order
from paribus.registry import Registry, installed

Pair = Callable[..., Certificate]


@final
class Forgetful(Attention):
    """Multi-head attention with an option that it reads and never uses, so that registration accepts it."""

    traits: ClassVar[AttentionTraits] = {
        "position_hooks": ["rotate", "bias"],
        "causal": True,
        "residual": True,
        "documents": True,
        "order": True,
    }

    def __init__(self, shape: Shape, *, window: Annotated[int, "rows that a row sees", Range(1)] = 4) -> None:
        super().__init__()
        self.shape = shape
        self.window = window
        self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
        self.attend = Attend(shape, Visibility(causal=shape.causal), ScoreOptions())

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return self.heads.merge(self.attend(self.heads, x, ctx))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {}

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.heads.kv_heads, self.attend.visibility, load)


@final
class Frozen(Attention):
    """Multi-head attention without gradients for its queries, as left over from debugging."""

    traits: ClassVar[AttentionTraits] = Forgetful.traits

    def __init__(self, shape: Shape, *, thawed: Annotated[bool, "train the queries after all"] = False) -> None:
        super().__init__()
        self.shape = shape
        self.heads = Heads(shape, kv_heads=shape.heads, bias=True)
        self.attend = Attend(shape, Visibility(causal=shape.causal), ScoreOptions())
        if not thawed:
            self.heads.q.requires_grad_(False)

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return self.heads.merge(self.attend(self.heads, x, ctx))

    def start(self, batch: int, length: int, like: Tensor) -> State:
        return {}

    def cost(self, load: Load) -> Cost:
        return softmax_cost(self.shape, self.heads.kv_heads, self.attend.visibility, load)


@pytest.fixture(scope="module", name="registry")
def _registry() -> Registry:
    return installed().with_components(attention={"forgetful": Forgetful, "frozen": Frozen})


def test_a_sound_swap_of_a_real_engine_gets_its_certificate(pair: Pair) -> None:
    certificate = pair({"attention": {"name": "gqa", "kv_heads": 2}})
    assert certificate.failures == ()
    assert certificate.side_effects == ("k, v reshaped",)
    assert certificate.confirmed == ("same batches", "outputs differ")
    assert certificate.equal_tensors == certificate.total_tensors - 4  # weights and biases of keys and values


def test_a_sound_change_of_the_training_gets_its_certificate(pair: Pair) -> None:
    certificate = pair({"optimizer.lr": 1e-3})
    assert certificate.failures == certificate.side_effects == ()
    assert certificate.confirmed == ("same batches", "training differs")
    assert certificate.equal_tensors == certificate.total_tensors


def test_a_leaked_seed_withholds_the_verdict(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    generators: dict[int, np.random.Generator] = {}

    def drawn_in_turn(seed: int, path: str, shape: tuple[int, ...]) -> Tensor:
        """Draw from one generator, so that a value depends on all earlier draws."""
        if path.startswith("embedding"):
            generators[seed] = np.random.default_rng(seed)
        return torch.from_numpy(generators[seed].standard_normal(shape, dtype=np.float32))

    monkeypatch.setattr(initialise, "standard_normal", drawn_in_turn)
    assert pair({"norm": {"name": "rmsnorm"}}).ok  # it draws as many numbers as the baseline
    certificate = pair({"attention": {"name": "gqa", "kv_heads": 2}})
    assert certificate.reason == "leaked seed"


def test_an_ignored_option_withholds_the_verdict(pair: Pair) -> None:
    certificate = pair({"attention": {"name": "forgetful", "window": 8}}, {"attention": {"name": "forgetful"}})
    assert certificate.reason == "ignored option; changed nothing"
    assert certificate.differing_paths == ("attention.window",)


@pytest.mark.thorough
def test_an_ignored_option_beside_a_void_swap_withholds_the_verdict(pair: Pair) -> None:
    certificate = pair({"attention": {"name": "forgetful", "window": 8}, "norm": {"name": "rmsnorm"}})
    assert certificate.reason == "ignored option; changed nothing"  # without it, it is what the baseline has
    failure, _ = certificate.failures
    assert failure == "ignored option: `attention.window` is 8 in variant, but other values have the same effect"
    assert pair({"attention": {"name": "restricted", "window": 8}, "norm": {"name": "rmsnorm", "eps": 1e-3}}).ok


def test_a_swap_that_changes_nothing_withholds_the_verdict(pair: Pair) -> None:
    assert pair({"attention": {"name": "restricted", "window": 16}}).reason == "changed nothing"
    assert pair({"attention": {"name": "restricted", "window": 4}}).ok


def test_data_that_depends_on_the_model_withholds_the_verdict(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    from paribus.datamodule import data

    calls = iter(range(100))
    monkeypatch.setattr(data, "order", lambda seed, epoch, count: order(seed + next(calls), epoch, count))
    assert "other examples" in pair({"attention": {"name": "mqa"}}).reason


@pytest.mark.thorough
def test_another_difference_than_the_one_studied_withholds_the_verdict(pair: Pair) -> None:
    both = {"attention": {"name": "mqa"}, "norm": {"name": "rmsnorm"}}
    assert pair(both).ok
    assert pair(both, changes={"attention": "mqa"}).reason == "another difference"


def test_a_frozen_parameter_that_the_baseline_trains_withholds_the_verdict(pair: Pair) -> None:
    certificate = pair(
        {"attention": {"name": "frozen"}, "dropout": 0.1}, {"attention": {"name": "frozen", "thawed": True}}
    )
    assert certificate.ok  # dropout is how it is trained: what follows from that is meant
    certificate = pair({"attention": {"name": "frozen"}, "norm": {"name": "rmsnorm"}})
    assert certificate.reason == "not trained"
    assert certificate.failures == ("not trained: no gradient ever reaches q, which the baseline trains",)


@pytest.mark.thorough
def test_a_parameter_frozen_in_both_is_a_side_effect(pair: Pair) -> None:
    certificate = pair(
        {"attention": {"name": "frozen"}, "norm": {"name": "rmsnorm"}}, {"attention": {"name": "frozen"}}
    )
    assert certificate.ok
    assert "no gradient in either trial reaches q" in certificate.side_effects


@pytest.mark.thorough
def test_a_void_swap_beside_another_withholds_the_verdict(pair: Pair) -> None:
    varied = {"attention": {"name": "restricted", "window": 16}, "norm": {"name": "rmsnorm"}}
    certificate = pair(varied)
    assert certificate.failures == (
        "changed nothing: `attention` has the same effect as the baseline's, and only the other changes remain",
    )


@pytest.mark.thorough
def test_a_buffer_that_depends_on_another_component_withholds_the_verdict(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A buffer belongs to its component, so the swap of another component must not change it."""
    calls = iter(range(100))

    def drawn(attention: Forgetful, keyed: KeyedDraws) -> None:
        attention.register_buffer("places", keyed("places", (2, 4)))

    def moved(attention: Forgetful, keyed: KeyedDraws) -> None:
        attention.register_buffer("places", keyed("places", (2, 4)) + next(calls))

    forgetful = {"attention": {"name": "forgetful"}}
    monkeypatch.setattr(Forgetful, "prepare", drawn)
    certificate = pair({"attention": {"name": "forgetful"}, "norm": {"name": "rmsnorm"}}, forgetful)
    assert certificate.ok
    assert certificate.equal_tensors == certificate.total_tensors - 4  # the biases of four norms are gone
    monkeypatch.setattr(Forgetful, "prepare", moved)
    certificate = pair({"attention": {"name": "forgetful"}, "norm": {"name": "rmsnorm"}}, forgetful)
    assert certificate.reason == "leaked seed"
    assert certificate.failures[0].endswith("agree: places")


@pytest.mark.thorough
def test_a_tensor_with_other_optimizer_options_withholds_the_verdict(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A swap that adds a matrix must not remove the weight decay of another."""
    adamw = installed().get("optimizer", "adamw")
    build = adamw.build

    def sorted_by_width(self: Any, tensors: Any) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = build(self, tensors)
        matrices, vectors = optimizer.param_groups
        narrow = [matrix for matrix in matrices["params"] if matrix.numel() < 16 * 16]
        wide = [matrix for matrix in matrices["params"] if matrix.numel() >= 16 * 16]
        demoted = wide[-1:] if narrow else []
        matrices["params"], vectors["params"] = (
            wide[: len(wide) - len(demoted)],
            [*vectors["params"], *narrow, *demoted],
        )
        return optimizer

    monkeypatch.setattr(adamw, "build", sorted_by_width)
    certificate = pair({"attention": {"name": "mqa"}})
    assert certificate.reason == "trained differently"
    monkeypatch.undo()
    assert pair({"optimizer": {"name": "adamw", "weight_decay": 0.5}}).ok  # that is how it is meant to be

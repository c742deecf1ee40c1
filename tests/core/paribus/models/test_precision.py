"""Training at every precision, with and without gradient clipping and gradient accumulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.plugins import MixedPrecision
from tests.fixtures.problems import raises_problem
from torch import nn

from paribus.assembly.components import make
from paribus.datamodule.data import Data
from paribus.errors import SpecError, StoreError
from paribus.models.lightning_module import Model
from paribus.models.optimizer_schedule import build_optimizer
from paribus.models.states import check_optimizer, pack_optimizer
from paribus.registry import Registry, installed
from paribus.slots.optimizer import Optimizer
from paribus.specs.resolve import resolved
from paribus.train.trial import TrialContext, run_trial
from paribus.train.trial_callback import InterruptedTrialError

Assemble = Callable[..., Model]
Feed = Callable[..., Data]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The '(train|val)_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The `srun` command is available"),  # where Slurm is installed
]

PRESETS = (
    "bert-tiny", "bigbird-tiny", "bytenet-tiny", "convs2s-tiny",
    "deberta-tiny", "electra-tiny", "encoder-tiny", "gpt-tiny", "gpt1-tiny", "gpt2-tiny",
    "gpt3-tiny", "llama-tiny", "lstm-lm-tiny", "luong-tiny", "mistral-tiny", "modernbert-tiny", "rnnsearch-tiny",
    "seq2seq-tiny", "t5-tiny", "transformer-tiny", "vit-tiny", "xlnet-tiny",
)  # fmt: skip
LARGER = {
    "vit-tiny": ("dims.length=17",),
    "modernbert-tiny": ("dims.layers=3",),
    "bytenet-tiny": ("attention=[{name: bottleneck-conv}, {name: bottleneck-conv, dilation: 2}]",),
}
SMALL_TRIAL = (
    "gpt-tiny", "trainer.max_steps=6", "dims.width=16", "dims.layers=1", "dims.heads=2", "dims.length=32",
    "data.batch=4", "data.validation=16",
)  # fmt: skip
PRECISIONS = ("32", "bf16-mixed", "bf16-true")


def train(model: Model, data: Data, **arguments: Any) -> Trainer:
    trainer = Trainer(
        **{
            "accelerator": "cpu",
            "max_steps": 2,
            "limit_val_batches": 0,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **arguments,
        }
    )
    trainer.fit(model.train(), data)
    return trainer


def is_finite(model: Model) -> bool:
    return all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def weights(model: Model) -> torch.Tensor:
    return torch.cat([parameter.detach().float().cpu().flatten() for parameter in model.parameters()])


def check_two_steps(assemble: Assemble, feed: Feed, preset: str, **arguments: Any) -> None:
    model, data = assemble(preset, *LARGER.get(preset, ())), feed(preset, *LARGER.get(preset, ()))
    initial_weights = weights(model)
    trainer = train(model, data, **arguments)
    assert trainer.global_step == 2
    assert is_finite(model)
    assert not torch.equal(weights(model), initial_weights)


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("preset", PRESETS)
def test_presets_train_at_every_precision(
    preset: str, precision: str, clip: float | None, accumulate: int, assemble: Assemble, feed: Feed
) -> None:
    check_two_steps(
        assemble, feed, preset, precision=precision, gradient_clip_val=clip, accumulate_grad_batches=accumulate
    )


@pytest.mark.parametrize("preset", ["gpt2-tiny", "rnnsearch-tiny", "vit-tiny"])
def test_mixed_precision_clips_gradients(preset: str, assemble: Assemble, feed: Feed) -> None:
    check_two_steps(assemble, feed, preset, precision="bf16-mixed", gradient_clip_val=1.0, accumulate_grad_batches=2)


@pytest.mark.parametrize("cell", ["gru", "gru-after", "lstm"])
def test_recurrent_cells_train_in_mixed_precision(cell: str, assemble: Assemble, feed: Feed) -> None:
    model, data = assemble("rnnsearch-tiny", f"topology.cell={cell}"), feed("rnnsearch-tiny")
    train(model, data, precision="bf16-mixed")
    assert is_finite(model)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("precision", [*PRECISIONS, "16-mixed"])
@pytest.mark.parametrize("preset", PRESETS)
def test_presets_train_at_every_precision_on_cuda(
    preset: str, precision: str, clip: float | None, accumulate: int, assemble: Assemble, feed: Feed
) -> None:
    arguments: dict[str, Any] = {"precision": precision}
    if precision == "16-mixed":  # at torch's first scale, the gradients of ELECTRA overflow, and no step is taken
        arguments = {"plugins": [MixedPrecision("16-mixed", "cuda", torch.amp.GradScaler("cuda", init_scale=1024.0))]}
    check_two_steps(
        assemble,
        feed,
        preset,
        accelerator="cuda",
        devices=1,
        gradient_clip_val=clip,
        accumulate_grad_batches=accumulate,
        **arguments,
    )


@pytest.mark.parametrize(
    ("accelerator", "precision"),
    [("cpu", "bf16-mixed"), pytest.param("cuda", "16-mixed", marks=pytest.mark.gpu)],
)
def test_clipping_bounds_the_unscaled_gradient(
    accelerator: str, precision: str, assemble: Assemble, feed: Feed
) -> None:
    """Plain SGD moves the weights by the learning rate times the clipped gradient."""
    options = ("optimizer=sgd", "optimizer.lr=1.0", "optimizer.weight_decay=0", "schedule=constant")
    model, data = assemble("gpt-tiny", *options), feed("gpt-tiny")
    initial_weights = weights(model)
    train(model, data, accelerator=accelerator, precision=precision, gradient_clip_val=1e-3, max_steps=1)
    assert (weights(model) - initial_weights).norm().item() == pytest.approx(1e-3, rel=0.02)


@pytest.mark.few(1)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_scale_of_gradients_is_restored_from_a_checkpoint(device: str, registry: Registry, tmp_path: Path) -> None:
    """The scale doubles after every second step, so a scaler that starts anew has another one."""
    tiny_spec = resolved(*SMALL_TRIAL, registry=registry)

    class Hooks:
        def __init__(self) -> None:
            self.scaler = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=2)

        def configure_trainer(self, spec: Any) -> list[dict[str, Any]]:
            precision = MixedPrecision("16-mixed", device, self.scaler)
            plugins = [precision, LightningEnvironment()]
            return [{"accelerator": device, "plugins": plugins, "deterministic": device == "cuda"}]

        def trial_started(self, **_: Any) -> None: ...

        def trial_finished(self, **_: Any) -> None: ...

    def run(folder: Path, **arguments: Any) -> tuple[float, Any]:
        hooks = Hooks()
        folder.mkdir(exist_ok=True)
        record = run_trial(tiny_spec, registry, TrialContext("x", folder, hooks=hooks, **arguments))
        return hooks.scaler.get_scale(), record["result"]

    steps = 0

    def count_steps(step: int, loss: float) -> None:
        nonlocal steps
        steps = step

    whole = run(tmp_path / "whole")
    with pytest.raises(InterruptedTrialError, match="checkpoint"):
        run(tmp_path / "resumed", should_stop=lambda: steps == 3, on_step=count_steps)
    assert whole[0] == 64.0
    assert whole[1]["certificate"]["skipped_steps"] == 0
    assert run(tmp_path / "resumed") == whole


def test_steps_that_overflow_in_float16_are_counted(registry: Registry, tmp_path: Path) -> None:
    """The scale is halved after each step that overflows, and such a step updates nothing."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=100)

    class Hooks:
        def configure_trainer(self, spec: Any) -> list[dict[str, Any]]:
            return [
                {"accelerator": "cpu", "plugins": [MixedPrecision("16-mixed", "cpu", scaler), LightningEnvironment()]}
            ]

        def trial_started(self, **_: Any) -> None: ...

        def trial_finished(self, **_: Any) -> None: ...

    record = run_trial(resolved(*SMALL_TRIAL, registry=registry), registry, TrialContext("x", tmp_path, hooks=Hooks()))
    skipped = record["result"]["certificate"]["skipped_steps"]
    assert 0 < skipped < record["result"]["steps"]
    assert scaler.get_scale() == 2.0 ** (22 - skipped)


# -- losses near those of float32 ---------------------------------------------------------------------------------

CURVES = {
    ("gpt-tiny", "optimizer.lr=5e-4"): 0.01,  # at its own 2e-3, the edge of stability, rounding moves it by 0.05
    ("bert-tiny",): 0.03,
    ("t5-tiny",): 0.03,
    ("vit-tiny",): 0.05,
}  # words of a spec -> nats


def losses(registry: Registry, folder: Path, *words: str) -> tuple[torch.Tensor, float]:
    """Return the loss of each step, and the last validation loss."""
    folder.mkdir()
    spec = resolved(*words, "trainer.max_steps=150", "data.evaluations=1", "seed=1", registry=registry)
    result = run_trial(spec, registry, TrialContext("x", folder))["result"]
    name = next(name for name in result["metrics"] if name.endswith("/loss"))
    return torch.tensor(result["losses"]), result["metrics"][name]


def check_curve(registry: Registry, folder: Path, preset: tuple[str, ...], *words: str, device: str = "cpu") -> None:
    common = (*preset, f"trainer.accelerator={device}")
    expected, expected_loss = losses(registry, folder / "float32", *common)
    curve, loss = losses(registry, folder / "other", *common, *words)
    assert not torch.equal(curve, expected)
    assert expected[0] - expected[-10:].mean() > 0.1  # it learns
    differences = (curve - expected).unfold(0, 30, 30).mean(1)  # of single steps, a large one may be chance
    assert differences.abs().max() < CURVES[preset]
    assert loss == pytest.approx(expected_loss, abs=CURVES[preset])


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("preset", CURVES, ids=" ".join)
def test_losses_stay_near_those_of_float32(
    preset: tuple[str, ...], precision: str, registry: Registry, tmp_path: Path
) -> None:
    check_curve(registry, tmp_path, preset, f"trainer.precision={precision}")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [["trainer.precision=bf16-mixed"], ["trainer.precision=bf16-true"], ["trainer.precision=16-mixed"],
     ["trainer.matmul_precision=high"]],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("preset", CURVES, ids=" ".join)
def test_losses_stay_near_those_of_float32_on_cuda(
    preset: tuple[str, ...], words: list[str], registry: Registry, tmp_path: Path
) -> None:
    check_curve(registry, tmp_path, preset, *words, device="cuda")


# -- updates in float32 -------------------------------------------------------------------------------------------

OPTIMIZERS = sorted(installed().index.entries["optimizer"])


def optimizer_of(name: str, model: nn.Module, registry: Registry) -> torch.optim.Optimizer:
    node = resolved("gpt-tiny", f"optimizer={{name: {name}}}", registry=registry)["optimizer"]
    return build_optimizer(make(registry, "optimizer", node, kind=Optimizer), model)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_half_precision_is_updated_as_float32_and_rounded(name: str, registry: Registry) -> None:
    torch.manual_seed(0)
    exact, half = nn.Linear(4, 3), nn.Linear(4, 3)
    half.load_state_dict(exact.state_dict())
    half.bfloat16()
    exact.load_state_dict({key: value.float() for key, value in half.state_dict().items()})  # both are rounded
    optimizers = [optimizer_of(name, model, registry) for model in (exact, half)]
    for _ in range(20):
        for parameter, rounded in zip(exact.parameters(), half.parameters(), strict=True):
            rounded.grad = torch.randn(parameter.shape, dtype=torch.bfloat16)
            parameter.grad = rounded.grad.float()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for parameter, rounded in zip(exact.parameters(), half.parameters(), strict=True):
        assert torch.equal(rounded, parameter.bfloat16())
        assert torch.equal(optimizers[1].state[rounded]["float32"], parameter)


def test_the_learning_rate_reaches_the_updates(registry: Registry) -> None:
    model = nn.Linear(2, 1, bias=False, dtype=torch.bfloat16)
    optimizer = optimizer_of("sgd", model, registry)
    optimizer.param_groups[0]["lr"] = 0.5  # as a schedule does
    before = optimizer.copies[model.weight].clone()  # type: ignore[attr-defined]  # Float32Updates has it
    model.weight.grad = torch.ones_like(model.weight)
    assert optimizer.step(lambda: 7.0) == 7.0
    torch.testing.assert_close(optimizer.state[model.weight]["float32"], before - 0.5)


def test_a_step_without_a_gradient_changes_nothing(registry: Registry) -> None:
    model = nn.Linear(2, 1, dtype=torch.bfloat16)
    weight, optimizer = model.weight.clone(), optimizer_of("adamw", model, registry)
    model.bias.grad = torch.ones_like(model.bias)
    optimizer.step()
    assert torch.equal(model.weight, weight)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [
        ("optimizer=adamw",),
        ("optimizer=adafactor",),
        ("optimizer=sgd",),
        ("initialisation={name: mup, base_width: 8}", "embedding.tie=false"),  # groups with learning rates of their own
    ],
)
def test_a_trial_in_half_precision_resumes_bitwise(words: tuple[str, ...], registry: Registry, tmp_path: Path) -> None:
    spec = resolved(*SMALL_TRIAL, "trainer.precision=bf16-true", *words, registry=registry)
    steps = 0

    def count_steps(step: int, loss: float) -> None:
        nonlocal steps
        steps = step

    def run(folder: Path, **arguments: Any) -> Any:
        folder.mkdir(exist_ok=True)
        return run_trial(spec, registry, TrialContext("x", folder, **arguments))["result"]

    whole = run(tmp_path / "whole")
    with pytest.raises(InterruptedTrialError, match="checkpoint"):
        run(tmp_path / "resumed", should_stop=lambda: steps == 3, on_step=count_steps)
    assert run(tmp_path / "resumed") == whole


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_dict_restores_what_half_precision_cannot_hold(name: str, registry: Registry, tmp_path: Path) -> None:
    torch.manual_seed(0)
    gradients = torch.randn(6, 3, 4, dtype=torch.bfloat16)
    model = nn.Linear(4, 3, bias=False, dtype=torch.bfloat16)

    def step(model: nn.Linear, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
        for gradient in gradients[first:last]:
            model.weight.grad = gradient.clone()
            optimizer.step()

    restored = nn.Linear(4, 3, bias=False, dtype=torch.bfloat16)
    optimizers = [optimizer_of(name, each, registry) for each in (model, restored)]
    step(model, optimizers[0], 0, 3)
    torch.save({"model": model.state_dict(), "optimizer": optimizers[0].state_dict()}, tmp_path / "state")
    saved = torch.load(tmp_path / "state")
    restored.load_state_dict(saved["model"])
    optimizers[1].load_state_dict(saved["optimizer"])
    step(model, optimizers[0], 3, 6)
    step(restored, optimizers[1], 3, 6)
    states = [optimizer.state_dict()["state"][0] for optimizer in optimizers]
    torch.testing.assert_close(states[1], states[0], rtol=0, atol=0)


def test_weights_that_change_between_steps_are_taken_over(registry: Registry) -> None:
    model = nn.Linear(2, 1, bias=False, dtype=torch.bfloat16)
    optimizer = optimizer_of("sgd", model, registry)
    optimizer.param_groups[0]["lr"] = 0.001
    model.weight.grad = torch.full_like(model.weight, 0.5)
    optimizer.step()
    exact = optimizer.state[model.weight]["float32"].clone()
    with torch.no_grad():
        model.weight[0, 0] = 3.0  # as when other weights are loaded
    optimizer.step()
    expected = torch.stack([torch.tensor(3.0), exact[0, 1]]) - 0.0005
    torch.testing.assert_close(optimizer.state[model.weight]["float32"][0], expected)


def test_a_checkpoint_of_another_optimizer_is_refused(registry: Registry, tmp_path: Path) -> None:
    model = nn.Linear(2, 1, dtype=torch.bfloat16)
    model.weight.grad, model.bias.grad = torch.ones_like(model.weight), torch.ones_like(model.bias)
    adamw, sgd = optimizer_of("adamw", model, registry), optimizer_of("sgd", model, registry)
    adamw.step()
    with raises_problem(StoreError, "does-not-fit", "torch.optim.adamw.AdamW", "torch.optim.sgd.SGD"):
        check_optimizer(sgd, model, pack_optimizer(adamw, model, {}), tmp_path)


# -- precision of products ----------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "expected"), [([], ("highest", False)), (["trainer.matmul_precision=high"], ("high", True))]
)
def test_a_trial_sets_the_precision_of_products_and_of_cudnn(
    words: list[str], expected: tuple[str, bool], registry: Registry, tmp_path: Path
) -> None:
    seen: list[tuple[str, bool]] = []

    class Hooks:
        def configure_trainer(self, spec: Any) -> list[dict[str, Any]]:
            return []

        def trial_started(self, **_: Any) -> None:
            seen.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))

        def trial_finished(self, **_: Any) -> None: ...

    torch.set_float32_matmul_precision("medium")
    try:
        spec = resolved("gpt-tiny", "trainer.max_steps=1", *words, registry=registry)
        run_trial(spec, registry, TrialContext("x", tmp_path, hooks=Hooks()))
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.backends.cudnn.allow_tf32  # torch's default
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == [expected]


def test_the_precision_of_products_is_part_of_a_spec(registry: Registry) -> None:
    assert resolved("gpt-tiny", "trainer.matmul_precision=highest", registry=registry) == resolved(
        "gpt-tiny", registry=registry
    )
    with raises_problem(SpecError, "wrong-type", "trainer.matmul_precision", "tf32"):
        resolved("gpt-tiny", "trainer.matmul_precision=tf32", registry=registry)

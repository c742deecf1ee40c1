"""Two training steps at every precision, with and without gradient clipping and gradient accumulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.plugins import MixedPrecision

from paribus.registry import Registry
from paribus.specs.resolve import resolved
from paribus.train.data import Data
from paribus.train.lightning_module import Model
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
    "bert-tiny", "bigbird-tiny", "deberta-tiny", "electra-tiny", "encoder-tiny", "gpt-tiny", "gpt1-tiny", "gpt2-tiny",
    "gpt3-tiny", "llama-tiny", "lstm-lm-tiny", "luong-tiny", "mistral-tiny", "modernbert-tiny", "rnnsearch-tiny",
    "seq2seq-tiny", "t5-tiny", "transformer-tiny", "vit-tiny", "xlnet-tiny",
)  # fmt: skip
LARGER = {"vit-tiny": ("dims.length=17",), "modernbert-tiny": ("dims.layers=3",)}
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
    check_two_steps(
        assemble,
        feed,
        preset,
        accelerator="cuda",
        devices=1,
        precision=precision,
        gradient_clip_val=clip,
        accumulate_grad_batches=accumulate,
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


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_scale_of_gradients_is_restored_from_a_checkpoint(device: str, registry: Registry, tmp_path: Path) -> None:
    """The scale doubles after every second step, so a scaler that starts anew has another one."""
    tiny_spec = resolved("gpt-tiny", "trainer.max_steps=6", registry=registry)

    class Hooks:
        def __init__(self) -> None:
            self.scaler = torch.amp.GradScaler(device, init_scale=8.0, growth_interval=2)

        def configure_trainer(self, spec: Any) -> list[dict[str, Any]]:
            precision = MixedPrecision("16-mixed", device, self.scaler)
            return [{"accelerator": device, "plugins": [precision, LightningEnvironment()]}]

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
    assert run(tmp_path / "resumed") == whole

"""Models and data in a plain Lightning Trainer, without the rest of paribus."""

from collections.abc import Callable, Iterator
from typing import Any, final

import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger
from tests.fixtures.problems import raises_problem
from torch import Tensor

from paribus.datamodule.data import Data
from paribus.errors import SpecError
from paribus.evidence.digests import batch_digest
from paribus.models.evaluate import evaluate
from paribus.models.lightning_module import Model
from paribus.parts.batch import Batch

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"
    ),  # Lightning's own
    pytest.mark.filterwarnings("ignore:The '(train|val)_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The `srun` command is available"),  # where Slurm is installed
]

Assemble = Callable[..., Model]
Shake = Callable[[Model], Model]
Feed = Callable[..., Data]
TINY = ("gpt-tiny", "encoder-tiny", "seq2seq-tiny", "bert-tiny")


@final
class Seen(Callback):
    """Callback that records the training batches and draws random numbers."""

    def __init__(self, *, disturb: bool = False) -> None:
        self.batches: list[str] = []
        self.disturb = disturb

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        self.batches.append(batch_digest(batch))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        if self.disturb:
            torch.rand(trainer.global_step + 3)


@final
class Notes(Logger):
    """Logger that records the training losses."""

    name = version = None

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.losses += [value for name, value in metrics.items() if name == "train/loss"]

    def log_hyperparams(self, *rest: Any, **named: Any) -> None: ...


def fit(model: Model, data: Any, *callbacks: Callback, **arguments: Any) -> Trainer:
    usual: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
    }
    trainer = Trainer(**{**usual, **arguments}, callbacks=list(callbacks))
    trainer.fit(model.train(), data)
    return trainer


def flat(model: Model) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("preset", TINY)
def test_a_model_fits_its_data(preset: str, assemble: Assemble, feed: Feed) -> None:
    model, data, recorder = assemble(preset), feed(preset), Seen()
    initial_weights = flat(model)
    trainer = fit(model, data, recorder, max_steps=3)
    assert trainer.global_step == 3
    assert (flat(model) != initial_weights).any()
    assert recorder.batches == [batch_digest(data.step(step)) for step in range(3)]
    assert {path.partition(".")[0] for path in model.state_dict()} <= {"embedding", "body", "encoder", "objectives"}


def test_an_optimizer_that_evaluates_other_weights_is_refused(assemble: Assemble, feed: Feed) -> None:
    """Lightning would validate and save the weights of its steps."""
    model = assemble("gpt-tiny", "optimizer=schedule-free")
    with raises_problem(SpecError, "does-not-fit", "optimizer", "paribus train"):
        fit(model, feed("gpt-tiny"), max_steps=1)


@pytest.mark.parametrize("preset", TINY)
def test_a_validation_loop_measures_what_evaluate_does(preset: str, assemble: Assemble, feed: Feed) -> None:
    model, data = assemble(preset), feed(preset)
    trainer = fit(model, data, max_steps=2, val_check_interval=2)
    logged_metrics = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("val/")}
    measured = evaluate(model, data)
    assert logged_metrics == pytest.approx({name: measured[name] for name in logged_metrics})
    assert {name.rpartition("/")[2] for name in measured.keys() - logged_metrics.keys()} <= {
        "perplexity",
        "bits-per-byte",
    }
    names = {
        "gpt-tiny": ["clm"],
        "encoder-tiny": ["mlm"],
        "seq2seq-tiny": ["span-corruption"],
        "bert-tiny": ["mlm", "nsp"],
    }
    assert logged_metrics.keys() == {
        f"val/{name}/{metric}" for name in names[preset] for metric in ("loss", "accuracy")
    }


@pytest.mark.parametrize("accumulate", [2, 4])
def test_a_step_in_several_micro_batches_is_the_same_step(
    accumulate: int, assemble: Assemble, shake: Shake, feed: Feed
) -> None:
    whole, accumulated = shake(assemble("bert-tiny")), shake(assemble("bert-tiny"))
    notes, accumulated_notes = Notes(), Notes()
    fit(whole, feed("bert-tiny"), max_steps=4, logger=notes)
    trainer = fit(
        accumulated, feed("bert-tiny"), max_steps=4, logger=accumulated_notes, accumulate_grad_batches=accumulate
    )
    assert trainer.global_step == 4
    torch.testing.assert_close(flat(accumulated), flat(whole), rtol=0, atol=1e-10)
    assert len(notes.losses) == 4
    assert accumulated_notes.losses == pytest.approx(notes.losses)


@final
class GradientCounter(Callback):
    """Count the parameters with a gradient before each forward pass."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        self.counts.append(sum(parameter.grad is not None for parameter in pl_module.parameters()))


@pytest.mark.parametrize("accumulated", [1, 2])
def test_gradients_live_until_their_step_only(accumulated: int, assemble: Assemble, feed: Feed) -> None:
    model, data, counter = assemble("gpt-tiny"), feed("gpt-tiny"), GradientCounter()
    model.loss(data.step(0)).backward()  # these must not be added to those of the first step
    fit(model, data, counter, max_steps=3, accumulate_grad_batches=accumulated)
    first, *others = (set(counter.counts[part::accumulated]) for part in range(accumulated))
    assert len(counter.counts) == 3 * accumulated
    assert first == {0}
    assert all(0 not in counts for counts in others)


def test_the_trainer_decides_on_micro_batches(assemble: Assemble, shake: Shake, feed: Feed) -> None:
    whole, accumulated = shake(assemble("gpt-tiny")), shake(assemble("gpt-tiny"))
    fit(whole, feed("gpt-tiny"), max_steps=3)
    fit(accumulated, feed("gpt-tiny", "trainer.accumulate_grad_batches=4"), max_steps=3)
    torch.testing.assert_close(flat(accumulated), flat(whole), rtol=0, atol=1e-12)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
def test_batches_of_a_custom_loader_are_whole_steps(assemble: Assemble, shake: Shake, feed: Feed) -> None:
    model, reference = (shake(assemble("gpt-tiny", "trainer.max_steps=2")) for _ in range(2))
    fit(model, feed("gpt-tiny").train_dataloader(), max_steps=2, accumulate_grad_batches=2)
    configured: Any = reference.configure_optimizers()
    for step in range(2):
        for half in range(2):  # the mean of two batches, as Lightning has it for any model
            (reference.loss(feed("gpt-tiny").step(2 * step + half)) / 2).backward()
        configured["optimizer"].step()
        configured["optimizer"].zero_grad()
        configured["lr_scheduler"]["scheduler"].step()
    torch.testing.assert_close(flat(model), flat(reference), rtol=0, atol=1e-12)


def test_each_epoch_has_different_batches(assemble: Assemble, feed: Feed) -> None:
    model, data, recorder = assemble("encoder-tiny"), feed("encoder-tiny", "data.batch=16"), Seen()
    fit(model, data, recorder, max_epochs=3)
    assert recorder.batches == [batch_digest(data.step(step)) for step in range(3 * data.steps_an_epoch)]
    assert len(set(recorder.batches)) == len(recorder.batches)


@pytest.mark.thorough
def test_each_epoch_of_worker_processes_has_different_batches(assemble: Assemble, feed: Feed) -> None:
    data, recorder = feed("encoder-tiny", "data.batch=16", "data.workers=2"), Seen()
    fit(assemble("encoder-tiny"), data, recorder, max_epochs=2, limit_val_batches=0)
    assert recorder.batches == [batch_digest(data.step(step)) for step in range(2 * data.steps_an_epoch)]


def test_dropout_depends_on_the_step_only(assemble: Assemble, feed: Feed) -> None:
    models = [assemble("gpt-tiny", "dropout=0.3") for _ in range(2)]
    for model, disturb in zip(models, (False, True), strict=True):
        fit(model, feed("gpt-tiny"), Seen(disturb=disturb), max_steps=3, limit_val_batches=0)
    assert torch.equal(flat(models[0]), flat(models[1]))
    repeat = assemble("gpt-tiny", "dropout=0.3")
    repeat.seed = 1
    fit(repeat, feed("gpt-tiny"), max_steps=3, limit_val_batches=0)
    assert not torch.equal(flat(models[0]), flat(repeat))


def test_logged_losses_are_means_over_the_steps_since_the_last_log(
    assemble: Assemble, shake: Shake, feed: Feed
) -> None:
    every_step, some = Notes(), Notes()
    usual: dict[str, Any] = {"max_steps": 6, "limit_val_batches": 0}
    fit(shake(assemble("gpt-tiny")), feed("gpt-tiny"), logger=every_step, **usual)
    fit(shake(assemble("gpt-tiny")), feed("gpt-tiny"), logger=some, log_every_n_steps=3, **usual)
    assert some.losses == pytest.approx([sum(every_step.losses[:3]) / 3, sum(every_step.losses[3:]) / 3])


@pytest.fixture
def groups() -> Iterator[None]:
    """Destroy the process group of a run with several processes before the next test."""
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_processes_train_like_one(
    accumulate: int, assemble: Assemble, shake: Shake, feed: Feed, groups: None
) -> None:
    alone, both = shake(assemble("bert-tiny")), shake(assemble("bert-tiny"))
    data = feed("bert-tiny")
    one = fit(alone, data, max_steps=4, val_check_interval=4)
    two = fit(
        both, feed("bert-tiny"), max_steps=4, val_check_interval=4 * accumulate,
        accumulate_grad_batches=accumulate, strategy="ddp_fork", devices=2,
    )  # fmt: skip
    torch.testing.assert_close(flat(both), flat(alone), rtol=0, atol=1e-10)
    for name, value in one.callback_metrics.items():
        if name.startswith("val/"):
            assert float(two.callback_metrics[name]) == pytest.approx(float(value))

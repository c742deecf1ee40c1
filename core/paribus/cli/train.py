"""`paribus train`: train one spec with one seed; an interrupted run resumes when it is started again."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from paribus.cli._spec_source import parse_source
from paribus.cli.console import Session, memory_warning, note, out, out_json, refuse_full, refuse_repeated, store_option
from paribus.errors import EXIT_FAILED, EXIT_OK

if TYPE_CHECKING:
    from paribus.registry import Registry
    from paribus.storage.store import Store, Trial

REFRESH_SECONDS: Final = 0.1


@click.command("train")
@click.argument("spec")
@click.argument("overrides", nargs=-1, callback=refuse_repeated)
@store_option
@click.option("--save", "target", type=click.Path(path_type=Path), help="Also save the model to this new folder.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_obj
def verb(
    session: Session, spec: str, overrides: tuple[str, ...], store: Path, target: Path | None, as_json: bool
) -> int:
    """Train one spec with one seed, and store its record.

    `paribus train gpt-tiny position=rope trainer.max_steps=200`

    SPEC is the name of a preset or a path. `from=` starts from a trial (its folder or identity) or a saved model.
    Without SPEC, the shape and tokenizer of that model are kept:
    `paribus train from=1f3a9c objective=sop optimizer.lr=5e-4`

    Training uses one thread, like a trial of a study, so that both give bitwise equal results, whatever
    OMP_NUM_THREADS is. With several devices (trainer.devices=2) each has a process with one thread.
    """
    from paribus.planning.api import fingerprint
    from paribus.planning.plan import single_trial
    from paribus.specs import resolved
    from paribus.storage.store import Store

    if target is not None:
        refuse_full(target)
    source, words = parse_source(spec, overrides, store)
    session.add_spec_plugins(source, words)
    index = session.index()
    resolved_spec = resolved(source, *words, registry=index)
    trial = single_trial(resolved_spec, index, lambda trial_spec: fingerprint(trial_spec, index))
    train_store = Store(store, "train")
    record = train_store.record(trial.identity)
    if record is None:
        record = _train(session, trial, train_store, session.command("train", spec, *overrides, store=store))
    else:
        note("this trial already has a record; nothing to do")
    done = record["result"]["state"] == "done"
    if target is not None and done:
        import paribus

        registry = session.registry()
        paribus.save(paribus.load(train_store.folder(trial.identity), registry=registry), target, registry=registry)
        note(f"the model is also saved in {target}")
    if as_json:
        out_json(record["result"])
    else:
        _show(record, train_store.folder(trial.identity))
    return EXIT_OK if done else EXIT_FAILED


def _encode_corpus(registry: Registry, trial: Trial) -> None:
    """Encode the corpus, and report the dropped documents."""
    from paribus.datamodule.encoding import dropped_summary
    from paribus.models.assemble import load_corpus
    from paribus.runner.worker import pin_threads

    pin_threads()
    text = load_corpus(trial.spec, registry)
    dropped = dropped_summary(text.dropped)
    if dropped:
        note(f"dropped from the corpus: {dropped}")
    if text.lost:
        note(f"! decoding does not restore {text.lost:.1%} of the text: compare bits per byte with this tokenizer only")
    if text.unknown >= 0.001:
        note(f"! {text.unknown:.1%} of the validation tokens are <unk>; scores do not count what they were")


def _train(session: Session, trial: Trial, store: Store, resume_command: str) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from paribus.models.distributed import needs_process_group
    from paribus.train.step_memory import memory_shortage

    folder = store.create_folder(trial)
    registry = session.registry()
    _encode_corpus(registry, trial)
    # Free memory of a GPU is read in a CUDA context, after which the processes of a trial cannot be forked.
    is_forked = needs_process_group(trial.spec["trainer"] or {})
    shortage = None if is_forked else memory_shortage(trial.spec, registry)
    if shortage is not None:
        note(f"! {memory_warning(*shortage)}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # No refresh thread: a process with threads cannot be forked for a trial on several devices.
    console = Console(stderr=True)
    bar = Progress(*columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal)
    with store.lock(trial.identity) as claim, bar if console.is_terminal else nullcontext():
        from paribus.inference.generate import translate_validation
        from paribus.runner.signals import StopRequest, catch_signals
        from paribus.specs.trainer_options import max_seconds
        from paribus.train.trial import DEFAULT_STEPS, TrialContext, run_trial
        from paribus.train.trial_callback import InterruptedTrialError

        trainer = trial.spec["trainer"] or {}
        steps = trainer.get("max_steps") or (DEFAULT_STEPS if max_seconds(trainer) is None else None)
        task = bar.add_task("training", total=steps)

        refreshed = 0.0

        def on_step(step: int, loss: float) -> None:
            nonlocal refreshed
            bar.update(task, completed=step, description=f"loss {loss:.3f}")
            if time.monotonic() - refreshed >= REFRESH_SECONDS:
                bar.refresh()
                refreshed = time.monotonic()

        with catch_signals(StopRequest()) as stop:
            context = TrialContext(
                trial.identity,
                folder,
                should_stop=lambda: stop.is_requested,
                on_step=on_step,
                on_message=note,
                hooks=registry.hook,
                files=claim.fenced_files(store.files),
                writer=translate_validation,
            )
            try:
                return run_trial(trial.spec, registry, context)
            except InterruptedTrialError:
                note(f"interrupted; a checkpoint was written. To resume: {resume_command}")
                raise click.exceptions.Exit(stop.exit_code) from None


def _trained(result: Mapping[str, Any]) -> str:
    """Format the number of parameters that the optimizer has, if some are frozen."""
    tensors, trained = result["certificate"]["tensors"], result["certificate"]["optimizer_options"]
    count = sum(math.prod(tensors[path]["shape"]) for path in trained if path in tensors)
    return f" ({count:,} trained)" if 0 < count < result["parameters"] else ""


def _flops(result: Mapping[str, Any]) -> str:
    """Format the FLOPs of the training, and in total with the model that it started from."""
    training_flops, total_flops = result.get("training_flops"), result.get("total_flops")
    if training_flops is None:
        return ""
    return f", {training_flops:.3g} FLOPs" + (
        "" if total_flops in (training_flops, None) else f" ({total_flops:.3g} with pretraining)"
    )


def warm_start_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tensors transferred from the saved model, and the loss change before the first step."""
    counts = [f"{len(report[kind])} {kind}" for kind in ("kept", "converted", "new", "dropped")]
    yield f"tensors of the saved model: {', '.join(counts)}"
    if not report["kept"] and not report["converted"]:
        yield "! no tensor of the saved model fits, so training started from scratch; compare the dims"
    for name, change in report["loss_changes"].items():
        start = "" if change["before"] is None else f"{change['before']:.4f} -> "
        yield f"{name} at step 0  {start}{change['after']:.4f}; from scratch {change['fresh']:.4f}"


def _show(record: dict[str, Any], folder: Path) -> None:
    result = record["result"]
    if result["state"] == "diverged":
        divergence = result["diverged"]
        out(f"diverged at step {divergence['step']}; the last finite loss was {divergence['last_loss']}")
    if "from" in result:
        for line in warm_start_lines(result["from"]):
            out(line)
    for name, value in result["metrics"].items():
        out(f"{name}  {value:.4f}")
    for name, reason in result.get("unmeasured", {}).items():
        out(f"{name}  not measured: {reason}")
    for name, value in result["unigram_baseline"].items():
        out(f"{name}  {value:.4f} unigram baseline")
    counts = f"{result['steps']} steps, {result['tokens']:,} tokens{_flops(result)}"
    out(f"{result['parameters']:,} parameters{_trained(result)}, {counts}")
    evaluated, available = result["data"].get("validation_examples") or (0, 0)
    if available:
        out(f"measured on {evaluated:,} of {available:,} validation examples (data.validation)")
    out(f"record and weights: {folder}")

"""`paribus train`: one spec, one seed, from the first step to a record; cut and called again, it goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from paribus.cli.console import STORE, Session, note, out, out_json, refuse_full
from paribus.errors import EXIT_FAILED, EXIT_OK, Problem, SpecError
from paribus.storage.saved_model import find_model

if TYPE_CHECKING:
    from paribus.specs.load import Source
    from paribus.storage.store import Store, Trial

REFRESH_SECONDS: Final = 0.1


@click.command("train")
@click.argument("spec")
@click.argument("overrides", nargs=-1)
@click.option("--store", type=click.Path(path_type=Path), default=STORE, show_default=True)
@click.option("--save", "target", type=click.Path(path_type=Path), help="A folder of its own for the model.")
@click.option("--json", "as_json", is_flag=True, help="The record's result.")
@click.pass_obj
def verb(
    session: Session, spec: str, overrides: tuple[str, ...], store: Path, target: Path | None, as_json: bool
) -> int:
    """Train SPEC, with OVERRIDES, and keep what it comes to.

    `paribus train gpt-tiny position=rope trainer.max_steps=200`

    `from=` names a trial by its folder or identity, or a saved model, to begin from. Without a SPEC it keeps the shape
    of that, and its tokenizer: `paribus train from=1f3a9c objective=sop optimizer.lr=5e-4`

    It takes one thread, as a trial of a study does, so that both come to the same bits; OMP_NUM_THREADS gives it more.
    On several devices (trainer.devices=2) there is a process for each, with one thread.
    """
    from paribus.planning.api import fingerprint
    from paribus.planning.plan import single_trial
    from paribus.specs import resolved
    from paribus.storage.store import Store

    if target is not None:
        refuse_full(target)
    index = session.index()
    source, words = begins(spec, overrides, store)
    plain = resolved(source, *words, registry=index)
    trial = single_trial(plain, index, lambda each: fingerprint(each, index))
    place = Store(store, "train")
    record = place.record(trial.identity)
    if record is None:
        record = _trained(session, trial, place, session.command("train", spec, *overrides, store=store))
    else:
        note("this trial has a record already: nothing to do")
    done = record["result"]["state"] == "done"
    if target is not None and done:
        import paribus

        paribus.save(paribus.load(place.folder(trial.identity), registry=session.registry()), target)
        note(f"the model is in {target} as well")
    if as_json:
        out_json(record["result"])
    else:
        _show(record, place.folder(trial.identity))
    return EXIT_OK if done else EXIT_FAILED


def begins(spec: str, overrides: Sequence[str], store: Path) -> tuple[Source, list[str]]:
    """What to resolve. Where the first word is no spec, that of the saved model is meant which `from=` names.

    A trial may be named by its identity, or by how that begins: it is looked for in `store`.
    """
    words = [_found(word, store) for word in ((spec, *overrides) if "=" in spec else overrides)]
    if "=" not in spec:
        return spec, words
    name = next((word.partition("=")[2] for word in words if word.startswith(("from=", "from.name="))), None)
    if name is None:
        what = f"`{spec}` is an override, and there is no SPEC before it"
        raise SpecError(Problem(code="missing", message=what, valid="a preset, a file, or from=RUN to go on from"))
    return {"from": name}, words


def _found(word: str, store: Path) -> str:
    """An override with the folder of the trial that it names by its identity."""
    key, _, value = word.partition("=")
    if key not in ("from", "from.name", "teacher", "teacher.name"):
        return word
    place = find_model(value, store)
    return word if str(place) == value else f"{key}={place}"


def _threads(trainer: Mapping[str, Any]) -> int:
    """Return how many threads the trial uses: one on several devices, since its processes are forked."""
    from paribus.train.distributed import process_count

    return 1 if process_count(trainer) > 1 else int(os.environ.get("OMP_NUM_THREADS") or 1)


def _encoded(session: Session, trial: Trial) -> None:
    """Encode the corpus, and report the documents that were left out."""
    import torch

    from paribus.train.assemble import load_corpus
    from paribus.train.encoding import dropped_summary

    torch.set_num_threads(_threads(trial.spec["trainer"] or {}))
    text = load_corpus(trial.spec, session.registry())
    found = dropped_summary(text.dropped)
    if found:
        note(f"left out of the corpus: {found}")
    if text.unknown >= 0.001:
        note(f"! {text.unknown:.1%} of the tokens held out are <unk>: what they were is lost, and no score counts it")


def _trained(session: Session, trial: Trial, store: Store, again: str) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    folder = store.create_folder(trial)
    _encoded(session, trial)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Without a refreshing thread: a process that has threads cannot be forked for a trial on several devices.
    bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
    with store.lock(trial.identity) as claim, bar:
        from paribus.inference.translate import translate_validation
        from paribus.runner.signals import StopRequest, catch_signals
        from paribus.specs.trainer_options import max_seconds
        from paribus.train.trial import DEFAULT_STEPS, TrialContext, run_trial
        from paribus.train.trial_callback import InterruptedTrialError

        trainer = trial.spec["trainer"] or {}
        steps = trainer.get("max_steps") or (DEFAULT_STEPS if max_seconds(trainer) is None else None)
        task = bar.add_task("training", total=steps)

        refreshed = 0.0

        def tell(step: int, loss: float) -> None:
            nonlocal refreshed
            bar.update(task, completed=step, description=f"loss {loss:.3f}")
            if time.monotonic() - refreshed >= REFRESH_SECONDS:
                bar.refresh()
                refreshed = time.monotonic()

        registry = session.registry()
        with catch_signals(StopRequest()) as stop:
            terms = TrialContext(
                trial.identity,
                folder,
                should_stop=lambda: stop.is_requested,
                on_step=tell,
                on_message=note,
                hooks=registry.hook,
                files=claim.fenced_files(store.files),
                writer=translate_validation,
            )
            try:
                return run_trial(trial.spec, registry, terms)
            except InterruptedTrialError:
                note(f"interrupted; its checkpoint is written. To go on: {again}")
                raise click.exceptions.Exit(stop.exit_code) from None


def _flops(result: Mapping[str, Any]) -> str:
    """The training's cost, and with what it began from, as far as that is known."""
    own, whole = result.get("training_flops"), result.get("total_flops")
    if own is None:
        return ""
    return f", {own:.3g} FLOPs" + ("" if whole in (own, None) else f" ({whole:.3g} with what it began from)")


def begun(report: Mapping[str, Any]) -> Iterator[str]:
    """What the trial had of the saved model that it began from, and the damage before its first step."""
    counts = [f"{len(report[kind])} {kind}" for kind in ("kept", "converted", "new", "dropped")]
    yield f"tensors of the saved model: {', '.join(counts)}"
    if not report["kept"] and not report["converted"]:
        yield "! nothing of the saved model fits this one, which began from scratch: are its dims the same?"
    for name, each in report["damage"].items():
        before = "" if each["before"] is None else f"{each['before']:.4f} -> "
        yield f"{name} at step 0  {before}{each['after']:.4f}; from scratch {each['fresh']:.4f}"


def _show(record: dict[str, Any], folder: Path) -> None:
    result = record["result"]
    if result["state"] == "diverged":
        at = result["diverged"]
        out(f"diverged at step {at['step']}; the last finite loss was {at['last']}")
    if "from" in result:
        for line in begun(result["from"]):
            out(line)
    for name, value in result["metrics"].items():
        out(f"{name}  {value:.4f}")
    for name, why in result.get("unmeasured", {}).items():
        out(f"{name}  none: {why}")
    for name, value in result["frequencies"].items():
        out(f"{name}  {value:.4f} by frequencies alone")
    out(f"{result['parameters']:,} parameters, {result['steps']} steps, {result['tokens']:,} tokens{_flops(result)}")
    out(f"record and weights: {folder}")

"""Replay of older records: whether the present code computes, bit for bit, what a record holds.

One trial of each variant is replayed: whole if it was short, else its first steps, and its last ones from its latest
checkpoint. If all is equal, the records of this variant count as records of the present code.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from paribus.errors import join_names
from paribus.planning.api import PlannedStudy
from paribus.planning.comparability import engine_of
from paribus.planning.older_records import DATA, ENGINE, OlderRecord, older_records
from paribus.runner.jobs import RunOptions
from paribus.runner.kept_records import keep_record, link_file
from paribus.runner.progress import TrialGroup, trial_group
from paribus.runner.result_differences import Document, environment_change, first_difference, program_difference
from paribus.specs.program_spec import PROGRAM, is_program
from paribus.storage.engine import engine_hash, is_proven_equal
from paribus.storage.lock import LOCK
from paribus.storage.store import CHECKPOINTS, FINISHED, Store, Trial
from paribus.train.trial_options import TrialOptions

MAX_NAMES: Final = 8  # in a note
STEPS: Final = 8  # replayed from the beginning of a long trial
SHORT_SECONDS: Final = 120.0  # a trial that trained no longer is replayed whole

REPLAY_PREFIX: Final = ".replay-"  # of the folders of replays, beside those of the trials

Run = Callable[[Sequence[Trial], Store, RunOptions], None]  # runs trials that have no record in a store


@final
@dataclass(frozen=True, kw_only=True)
class Replay:
    """Comparison of one older record with what the present code computes."""

    older: OlderRecord
    records: tuple[OlderRecord, ...]  # of the same variant and code, this one included
    steps: int = 0  # that were replayed; 0: the engine was proven before, or there was nothing to replay
    difference: str = ""  # the first one; empty if everything is equal
    environment: str = ""  # what differs between the machine of the record and this one

    @property
    def is_equal(self) -> bool:
        return not self.difference

    @property
    def label(self) -> str:
        """Variant, setting and stage."""
        return self.older.trial.label.rpartition(", seed")[0]

    @property
    def total_steps(self) -> int:
        return int(self.older.record["result"]["steps"])

    def to_json(self) -> dict[str, Any]:
        return {
            "variant": self.older.trial.variant,
            **({"setting": self.older.trial.setting} if self.older.trial.setting else {}),
            **({"stage": self.older.trial.stage} if self.older.trial.stage else {}),
            "seed": self.older.trial.seed,
            "changed": list(self.older.changed),
            "records": [older.trial.identity for older in self.records],
            "equal": self.is_equal,
            "difference": self.difference,
            "environment": self.environment,
            "steps": self.steps,
            "of": self.total_steps,
        }


def verify_records(planned: PlannedStudy, run: Run, *, whole: bool = False) -> list[Replay]:
    """Replay one older record of each variant, and keep the records of those that are equal.

    `whole` replays a long trial from its beginning to its end, instead of its first and last steps.
    """
    groups = list(_groups(stale_records(planned)))
    decided = {index: known for index, group in enumerate(groups) if (known := _without_replay(group))}
    to_run = {index: group[0] for index, group in enumerate(groups) if index not in decided}
    decided |= _run_replays(planned.store, groups, to_run, run, whole=whole)
    results: list[Replay] = []
    kept: dict[str, str] = {}  # identity of an older record -> that of the trial that has it now
    for index in range(len(groups)):
        result = _after_parents(planned, decided[index], kept)
        if result.is_equal:
            for older in result.records:
                keep_record(planned.store, older, replayed=result.older.record["identity"], steps=result.steps)
                kept[older.record["identity"]] = older.trial.identity
        results.append(result)
    return results


def stale_records(planned: PlannedStudy) -> list[OlderRecord]:
    """Return the latest older record of each planned trial that has no record of the present code."""
    store, trials = planned.store, planned.plan.trials
    records = {record["identity"]: record for record in store.records()}
    current = {trial.identity for trial in trials if trial.identity in records}
    older = [
        item
        for item in older_records(store, trials, trials, records, planned.index)
        if item.trial.identity not in current
    ]
    for trial in trials:  # of accelerators, whose engines are not proven by their epoch
        record = records.get(trial.identity)
        if record is None or is_program(record["spec"]):
            continue
        if engine_of(record["provenance"]) not in (None, engine_hash()):
            older.append(OlderRecord(trial, store.trial(trial.identity) or trial.document(), record, (ENGINE,)))
    latest: dict[str, OlderRecord] = {}
    for item in sorted(older, key=_preference):
        latest[item.trial.identity] = item
    return [latest[trial.identity] for trial in trials if trial.identity in latest]


def stale_notes(planned: PlannedStudy, command: str) -> Iterator[str]:
    """Yield a note on the older records of a study, with the command that replays them."""
    stale = [older for older in stale_records(planned) if DATA not in older.changed]
    if stale:
        changes = join_names(dict.fromkeys(name for older in stale for name in older.changed), MAX_NAMES)
        records = "1 record is" if len(stale) == 1 else f"{len(stale)} records are"
        yield f"{records} of other code, and would be made again; changed since: {changes}; to check them: {command}"


def _preference(older: OlderRecord) -> tuple[bool, float, str]:
    """Sort the best record last: of these data, and the latest; copies of one record by their code."""
    ended = older.record["provenance"].get("ended") or 0.0
    return DATA not in older.changed, float(ended), str(older.document["code"])


def _groups(older: Iterable[OlderRecord]) -> Iterator[tuple[OlderRecord, ...]]:
    """Yield the records that one replay decides for: those of a variant that the same code made, by stage."""
    groups: dict[tuple[TrialGroup, str, tuple[str, ...]], list[OlderRecord]] = {}
    for item in older:
        key = trial_group(item.trial), str(item.document["code"]), item.changed
        groups.setdefault(key, []).append(item)
    yield from (tuple(sorted(group, key=lambda item: item.trial.seed)) for group in groups.values())


def _without_replay(group: tuple[OlderRecord, ...]) -> Replay | None:
    """Return the result for records that need no replay, or None."""
    older = group[0]
    result = Replay(older=older, records=group)
    if DATA in older.changed:
        return replace(result, difference="the data has changed, so that another trial would run")
    provenance = older.record["provenance"]
    on_cpu = engine_of(provenance) is None
    if on_cpu and older.changed in ((), (ENGINE,)) and is_proven_equal(str(provenance.get("engine"))):
        return result
    if older.record["result"].get("time_budget"):
        return replace(result, difference="a trial with a budget in seconds has other steps each time")
    return None


def _run_replays(
    store: Store, groups: Sequence[tuple[OlderRecord, ...]], to_run: Mapping[int, OlderRecord], run: Run, *, whole: bool
) -> dict[int, Replay]:
    """Run the replays in a temporary folder beside the records, where other machines find it, too."""
    if not to_run:
        return {}
    results: dict[int, Replay] = {}
    with _replay_folder(store) as folder:
        beginnings, ends = Store(folder, "beginnings"), Store(folder, "ends")
        long = {index: older for index, older in to_run.items() if _is_long(older) and not whole}
        if long:
            options = RunOptions(rehearse=False, trial=TrialOptions(stop_at_step=STEPS))
            run([_trial_to_replay(store, older) for older in long.values()], beginnings, options)
        for index, older in long.items():
            results[index] = _compare_beginning(beginnings, older, groups[index])
        resumed = {index: older for index, older in long.items() if results[index].is_equal}
        for index, older in resumed.items():
            if not _link_checkpoints(store, ends, older):
                hint = "its checkpoints were deleted, and only `--whole` can replay its end"
                results[index] = replace(results[index], difference=f"the first {STEPS} steps are equal, but {hint}")
        rest = [older for index, older in to_run.items() if index not in long or results[index].is_equal]
        if rest:
            run([_trial_to_replay(store, older) for older in rest], ends, RunOptions(rehearse=False))
        for index, older in to_run.items():
            if index not in results or results[index].is_equal:
                compared = _compare_end(ends, older, groups[index])
                results[index] = replace(compared, steps=STEPS) if index in long and compared.is_equal else compared
    return results


@contextmanager
def _replay_folder(store: Store) -> Iterator[Path]:
    """Make a temporary folder that is locked while it is used; delete those whose processes were killed."""
    for folder in store.root.glob(f"{REPLAY_PREFIX}*"):
        lock = store.lock(folder.name)
        if (folder / LOCK).exists() and lock.try_acquire():
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()
    with tempfile.TemporaryDirectory(prefix=REPLAY_PREFIX, dir=store.root) as name, store.lock(Path(name).name):
        yield Path(name)


def _is_long(older: OlderRecord) -> bool:
    if is_program(older.trial.spec):  # which has no checkpoints of ours
        return False
    seconds = older.record["provenance"].get("training_seconds") or 0.0
    return float(seconds) > SHORT_SECONDS and int(older.record["result"]["steps"]) > STEPS


def _trial_to_replay(store: Store, older: OlderRecord) -> Trial:
    """Return the trial of a record with its old identity, and the weights that it began from."""
    spec = older.trial.spec
    if older.trial.parent_id:
        parent = str(older.record["spec"]["from"]["trial"])
        spec = {**spec, "from": {**spec["from"], "trial": parent, "name": str(store.folder(parent).absolute())}}
    return replace(older.trial, identity=older.record["identity"], spec=spec, parent_id="")


def _link_checkpoints(store: Store, ends: Store, older: OlderRecord) -> bool:
    """Link the checkpoints of a record for its replay, and return whether there are any."""
    source = store.folder(older.record["identity"]) / CHECKPOINTS
    files = sorted(source.glob("step-*.safetensors"))
    target = ends.folder(older.record["identity"]) / CHECKPOINTS
    for file in files:
        target.mkdir(parents=True, exist_ok=True)
        link_file(file, target / file.name)
    return bool(files)


def _compare_beginning(beginnings: Store, older: OlderRecord, group: tuple[OlderRecord, ...]) -> Replay:
    """Compare the first steps of a record with their replay, which ended with a checkpoint."""
    from paribus.assembly.devices import training_device
    from paribus.models.checkpoint import Checkpoint, environment_fingerprint, load_latest

    identity = older.record["identity"]
    result = Replay(older=older, records=group)
    fingerprint = environment_fingerprint(training_device(older.trial.spec))
    fingerprint["threads"] = "1"  # in the process of a trial
    loaded = load_latest(beginnings.folder(identity) / CHECKPOINTS, identity, fingerprint)
    if not isinstance(loaded, Checkpoint):
        return replace(result, difference=_failure(beginnings, identity))
    extra = loaded.extra
    certificate = {**extra["initial"], "batch_digests": extra["batch_digests"]}
    replayed = {"losses": extra["losses"].tolist(), "curve": extra["curve"], "certificate": certificate}
    recorded = _first_steps(older.record["result"], loaded.step)
    return replace(result, steps=loaded.step, difference=_describe(first_difference(recorded, replayed), older))


def _first_steps(recorded: Document, steps: int) -> dict[str, Any]:
    """Return the part of a result that is known after so many steps."""
    certificate = recorded["certificate"]
    digests = {key: digest for key, digest in certificate["batch_digests"].items() if int(key) <= steps}
    initial = {key: certificate[key] for key in ("tensors", "outputs", "validation") if key in certificate}
    curve = [point for point in recorded["curve"] if point["step"] <= steps]
    return {
        "losses": recorded["losses"][:steps],
        "curve": curve,
        "certificate": {**initial, "batch_digests": digests},
    }


def _compare_end(ends: Store, older: OlderRecord, group: tuple[OlderRecord, ...]) -> Replay:
    """Compare the result of a record with that of its replay."""
    identity = older.record["identity"]
    record = ends.record(identity)
    result = Replay(older=older, records=group)
    if record is None:
        return replace(result, difference=_failure(ends, identity))
    results = older.record["result"], record["result"]
    if is_program(record["spec"]):
        difference = program_difference(*results, record["spec"][PROGRAM]["metric"]["name"])
    else:
        difference = first_difference(*results)
    difference = _describe(difference, older)
    environment = environment_change(older.record["provenance"], record["provenance"]) if difference else ""
    return replace(result, steps=record["result"]["steps"], difference=difference, environment=environment)


def _describe(difference: str, older: OlderRecord) -> str:
    return f"differs first in {difference} (seed {older.trial.seed})" if difference else ""


def _failure(store: Store, identity: str) -> str:
    reason = str((store.failure(identity) or {}).get("reason") or "it left neither a record nor a reason")
    return f"the replay failed: {reason}"


def _after_parents(planned: PlannedStudy, result: Replay, kept: Mapping[str, str]) -> Replay:
    """Return a result, or a difference if the record begins from another trial that was not kept."""
    for older in result.records:
        parent = older.trial.parent_id
        if not result.is_equal or not parent:
            continue
        source = str(older.record["spec"]["from"]["trial"])
        if source != parent and kept.get(source) != parent:
            is_recorded = planned.store.state(parent) in FINISHED
            reason = "has another record now" if is_recorded else "was not kept"
            return replace(result, difference=f"the trial that it begins from {reason}")
    return result

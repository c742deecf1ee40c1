"""Damaged files: 1,000 flipped bits, truncations and zeroed tails of a record and of a checkpoint each."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from paribus.errors import EXIT_OK
from paribus.models.checkpoint import Checkpoint, environment_fingerprint, load_latest
from paribus.registry import Registry
from paribus.runner.signals import StopRequest
from paribus.runner.worker import WorkerRequest, run_request
from paribus.storage.atomic import DAMAGED_SUFFIX, canonical_json
from paribus.storage.saved_model import RECORD
from paribus.storage.store import CHECKPOINTS, PROGRESS, Store, Trial
from paribus.train.trial_options import TrialOptions

STEPS = 6
FLIPS = 1_000

MakeTrial = Callable[..., Trial]
Property = Callable[[str, object], None]


@pytest.fixture(scope="module")
def finished_trial(trial: MakeTrial) -> Trial:
    return trial(steps=STEPS)


def make_request(root: Path, trial: Trial) -> tuple[Store, WorkerRequest]:
    store = Store(root, "study")
    store.create_folder(trial)
    return store, WorkerRequest(
        store=str(root),
        study="study",
        identity=trial.identity,
        spec=trial.spec,
        options=TrialOptions(checkpoint_steps=2),
    )


@pytest.fixture(scope="module")
def finished(
    finished_trial: Trial, registry: Registry, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Store, WorkerRequest]:
    """Finished trial with its record, and checkpoints of its fourth and last step."""
    store, request = make_request(tmp_path_factory.mktemp("done"), finished_trial)
    assert run_request(request, registry, stop=StopRequest()) == EXIT_OK
    return store, request


def corrupted_copies(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """Yield a thousand damaged copies: with a flipped bit, truncated, or with a zeroed tail."""
    for number in range(FLIPS):
        position = rng.randrange(len(data))
        if number % 10 == 8:
            yield data[:position]
        elif number % 10 == 9 and any(data[position:]):
            yield data[:position] + bytes(len(data) - position)
        else:
            yield data[:position] + bytes([data[position] ^ 1 << rng.randrange(8)]) + data[position + 1 :]


@pytest.mark.faults
@pytest.mark.held("D14")
def test_every_damaged_record_is_detected_set_aside_and_reported(
    finished: tuple[Store, WorkerRequest], finished_trial: Trial, record_property: Property
) -> None:
    store, _ = finished
    path = store.folder(finished_trial.identity) / RECORD
    data = path.read_bytes()
    detected = 0
    for damaged_data in corrupted_copies(data, random.Random(1)):
        path.write_bytes(damaged_data)
        assert store.record(finished_trial.identity) is None
        assert not path.exists()
        (damaged_copy,) = path.parent.glob(f"{RECORD}.*{DAMAGED_SUFFIX}")
        assert f"set aside as {damaged_copy.name}" in store.messages.pop()
        assert damaged_copy.read_bytes() == damaged_data
        damaged_copy.unlink()
        detected += 1
    path.write_bytes(data)
    assert store.record(finished_trial.identity) is not None
    assert detected == FLIPS
    record_property("damaged files detected", detected)


@pytest.mark.held("D14")
@pytest.mark.parametrize(
    "edit",
    [
        lambda text: text.replace('"state":"done"', '"state":"done","state":"done"'),
        lambda text: text.replace('"schema":1', '"schema":NaN'),
        lambda text: text.replace('"steps":6', '"steps":7'),
        lambda text: text.replace('{"body"', '{"a":1,"body"'),
        lambda text: text + text,
        lambda text: "",
        lambda text: "\0" * len(text),
    ],
    ids=["twice", "nan", "edited", "unknown", "doubled", "empty", "zeros"],
)
def test_an_edited_record_is_ignored(
    finished: tuple[Store, WorkerRequest], finished_trial: Trial, tmp_path: Path, edit: Callable[[str], str]
) -> None:
    store, _ = finished
    text = (store.folder(finished_trial.identity) / RECORD).read_text()
    edited_store = Store(tmp_path, "study")
    path = edited_store.create_folder(finished_trial) / RECORD
    assert edit(text) != text
    path.write_text(edit(text))
    assert edited_store.record(finished_trial.identity) is None
    assert edited_store.state(finished_trial.identity) == "pending"
    assert list(edited_store.records()) == []
    assert "set aside as record.json." in edited_store.messages[0]


@pytest.mark.faults
@pytest.mark.held("D13")
def test_every_damaged_checkpoint_is_detected_and_the_previous_one_is_loaded(
    finished: tuple[Store, WorkerRequest], finished_trial: Trial, record_property: Property
) -> None:
    folder = finished[0].folder(finished_trial.identity) / CHECKPOINTS
    older, newest = sorted(folder.glob("step-*.safetensors"))
    data = newest.read_bytes()
    fingerprint = environment_fingerprint(torch.device("cpu"))
    detected = 0
    for damaged_data in corrupted_copies(data, random.Random(2)):
        newest.write_bytes(damaged_data)
        loaded = load_latest(folder, finished_trial.identity, fingerprint)
        assert isinstance(loaded, Checkpoint)
        assert loaded.path == older
        assert loaded.notes[-1] == f"going on from the checkpoint of step {loaded.step}"
        (damaged_copy,) = folder.glob(f"{newest.name}.*{DAMAGED_SUFFIX}")
        assert damaged_copy.name in loaded.notes[0]
        damaged_copy.unlink()
        detected += 1
    newest.write_bytes(data)
    assert detected == FLIPS
    record_property("damaged files detected", detected)


@pytest.mark.few(1)
@pytest.mark.held("D13", "D14")
@pytest.mark.parametrize("damage", ["older", "all", "pickle"])
def test_a_trial_with_damaged_files_logs_them_and_has_the_same_record(
    finished: tuple[Store, WorkerRequest], finished_trial: Trial, registry: Registry, tmp_path: Path, damage: str
) -> None:
    expected = finished[0].record(finished_trial.identity)
    assert expected is not None
    store, request = make_request(tmp_path, finished_trial)
    assert run_request(request, registry, stop=StopRequest()) == EXIT_OK
    folder, marker = store.folder(finished_trial.identity), tmp_path / "marker"
    (folder / RECORD).write_text("{")

    class Malicious:
        def __reduce__(self) -> tuple[Any, ...]:
            return marker.touch, ()

    for path in sorted((folder / CHECKPOINTS).glob("step-*.safetensors"))[1 if damage == "older" else 0 :]:
        path.write_bytes(pickle.dumps(Malicious()) if damage == "pickle" else path.read_bytes()[:-1])
    assert run_request(request, registry, stop=StopRequest()) == EXIT_OK
    resumed_record = store.record(finished_trial.identity)
    assert resumed_record is not None
    assert canonical_json(resumed_record["result"]) == canonical_json(expected["result"])
    notes = [json.loads(line).get("message", "") for line in (folder / PROGRESS).read_text().splitlines()]
    expected_note = "going on from the checkpoint of step" if damage == "older" else "it begins again at step 0"
    assert any(expected_note in note for note in notes), notes
    assert not marker.exists()

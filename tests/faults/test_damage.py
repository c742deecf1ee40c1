"""What was written and is no longer what it was: 1,000 flipped bits and cuts of a record and of a checkpoint each."""

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
from paribus.registry import Registry
from paribus.runner.signals import StopRequest
from paribus.runner.worker import WorkerRequest, run_request
from paribus.storage.atomic import DAMAGED_SUFFIX, canonical_json
from paribus.storage.saved_model import RECORD
from paribus.storage.store import PROGRESS, Store, Trial
from paribus.train.checkpoint import Checkpoint, environment_fingerprint, load_latest
from paribus.train.trial import CHECKPOINTS
from paribus.train.trial_options import TrialOptions

STEPS = 6
FLIPS = 1_000

MakeTrial = Callable[..., Trial]
Property = Callable[[str, object], None]


@pytest.fixture(scope="module")
def one(trial: MakeTrial) -> Trial:
    return trial(steps=STEPS)


def ordered(root: Path, trial: Trial) -> tuple[Store, WorkerRequest]:
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
def done(one: Trial, registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, WorkerRequest]:
    """A trial that has ended well: its record, and checkpoints of its fourth and its last step."""
    store, order = ordered(tmp_path_factory.mktemp("done"), one)
    assert run_request(order, registry, stop=StopRequest()) == EXIT_OK
    return store, order


def spoilt(data: bytes, luck: random.Random) -> Iterator[bytes]:
    """A thousand times the same bytes with one bit flipped, or cut, or with an end of zeros."""
    for number in range(FLIPS):
        at = luck.randrange(len(data))
        if number % 10 == 8:
            yield data[:at]
        elif number % 10 == 9 and any(data[at:]):
            yield data[:at] + bytes(len(data) - at)
        else:
            yield data[:at] + bytes([data[at] ^ 1 << luck.randrange(8)]) + data[at + 1 :]


@pytest.mark.faults
@pytest.mark.held("D17")
def test_a_thousand_times_a_spoilt_record_is_found_set_aside_and_named(
    done: tuple[Store, WorkerRequest], one: Trial, record_property: Property
) -> None:
    store, _ = done
    path = store.folder(one.identity) / RECORD
    data = path.read_bytes()
    found = 0
    for bad in spoilt(data, random.Random(1)):
        path.write_bytes(bad)
        assert store.record(one.identity) is None
        assert not path.exists()
        (aside,) = path.parent.glob(f"{RECORD}.*{DAMAGED_SUFFIX}")
        assert f"set aside as {aside.name}" in store.messages.pop()
        assert aside.read_bytes() == bad
        aside.unlink()
        found += 1
    path.write_bytes(data)
    assert store.record(one.identity) is not None
    assert found == FLIPS
    record_property("flipped, cut and zeroed files that were found, of as many", found)


@pytest.mark.held("D17")
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
def test_a_record_that_somebody_edited_is_none(
    done: tuple[Store, WorkerRequest], one: Trial, tmp_path: Path, edit: Callable[[str], str]
) -> None:
    store, _ = done
    text = (store.folder(one.identity) / RECORD).read_text()
    other = Store(tmp_path, "study")
    path = other.create_folder(one) / RECORD
    assert edit(text) != text
    path.write_text(edit(text))
    assert other.record(one.identity) is None
    assert other.state(one.identity) == "pending"
    assert list(other.records()) == []
    assert "set aside as record.json." in other.messages[0]


@pytest.mark.faults
@pytest.mark.held("D16")
def test_a_thousand_times_a_spoilt_checkpoint_is_found_and_the_one_before_is_taken(
    done: tuple[Store, WorkerRequest], one: Trial, record_property: Property
) -> None:
    folder = done[0].folder(one.identity) / CHECKPOINTS
    older, newest = sorted(folder.glob("step-*.safetensors"))
    data = newest.read_bytes()
    here = environment_fingerprint(torch.device("cpu"))
    found = 0
    for bad in spoilt(data, random.Random(2)):
        newest.write_bytes(bad)
        loaded = load_latest(folder, one.identity, here)
        assert isinstance(loaded, Checkpoint)
        assert loaded.path == older
        assert loaded.notes[-1] == f"going on from the checkpoint of step {loaded.step}"
        (aside,) = folder.glob(f"{newest.name}.*{DAMAGED_SUFFIX}")
        assert aside.name in loaded.notes[0]
        aside.unlink()
        found += 1
    newest.write_bytes(data)
    assert found == FLIPS
    record_property("flipped, cut and zeroed files that were found, of as many", found)


@pytest.mark.held("D16", "D17")
@pytest.mark.parametrize("how", ["older", "all", "pickle"])
def test_a_trial_with_spoilt_files_says_so_and_comes_to_the_same_record(
    done: tuple[Store, WorkerRequest], one: Trial, registry: Registry, tmp_path: Path, how: str
) -> None:
    expected = done[0].record(one.identity)
    assert expected is not None
    store, order = ordered(tmp_path, one)
    assert run_request(order, registry, stop=StopRequest()) == EXIT_OK
    folder, marker = store.folder(one.identity), tmp_path / "marker"
    (folder / RECORD).write_text("{")

    class Malicious:
        def __reduce__(self) -> tuple[Any, ...]:
            return marker.touch, ()

    for path in sorted((folder / CHECKPOINTS).glob("step-*.safetensors"))[1 if how == "older" else 0 :]:
        path.write_bytes(pickle.dumps(Malicious()) if how == "pickle" else path.read_bytes()[:-1])
    assert run_request(order, registry, stop=StopRequest()) == EXIT_OK
    found = store.record(one.identity)
    assert found is not None
    assert canonical_json(found["result"]) == canonical_json(expected["result"])
    said = [json.loads(line).get("note", "") for line in (folder / PROGRESS).read_text().splitlines()]
    told = "going on from the checkpoint of step" if how == "older" else "it begins again at step 0"
    assert any(told in note for note in said), said
    assert not marker.exists()

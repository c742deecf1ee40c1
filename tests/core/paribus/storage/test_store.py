"""States of trials in a store; damaged and foreign records are ignored."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.problems import raises_problem
from tests.fixtures.records import stored_record

from paribus.errors import StoreError
from paribus.storage.atomic import write_json
from paribus.storage.saved_model import RECORD
from paribus.storage.store import LOOKS, Store, Trial

TRIAL = Trial("a" * 24, "attention=mqa", 0, {"seed": 0}, {"attention": "mqa"}, "code", "corpus")


def recorded(store: Store, state: str = "done", identity: str = TRIAL.identity) -> Path:
    folder = store.create_folder(TRIAL)
    write_json(folder / RECORD, stored_record(identity, state))
    return folder


def test_a_trial_without_a_folder_is_pending(tmp_path: Path) -> None:
    assert Store(tmp_path, "s").state(TRIAL.identity) == "pending"
    assert list(tmp_path.iterdir()) == []


def test_a_trial_with_only_a_folder_is_pending(tmp_path: Path) -> None:
    store = Store(tmp_path, "s")
    store.create_folder(TRIAL)
    assert store.state(TRIAL.identity) == "pending"
    assert store.trial(TRIAL.identity) == TRIAL.document()


@pytest.mark.parametrize("state", ["done", "diverged"])
def test_the_state_of_a_trial_is_that_of_its_record(tmp_path: Path, state: str) -> None:
    store = Store(tmp_path, "s")
    recorded(store, state)
    assert store.state(TRIAL.identity) == state
    assert [record["identity"] for record in store.records()] == [TRIAL.identity]


def test_a_record_replaces_a_failure(tmp_path: Path) -> None:
    store = Store(tmp_path, "s")
    store.create_folder(TRIAL)
    store.write_failure(TRIAL.identity, "timeout", "it took more than 5 s")
    assert store.state(TRIAL.identity) == "timeout"
    recorded(store)
    assert store.state(TRIAL.identity) == "done"


def test_a_trial_whose_lock_is_held_is_running(tmp_path: Path) -> None:
    store = Store(tmp_path, "s")
    store.create_folder(TRIAL)
    with store.lock(TRIAL.identity):
        assert store.state(TRIAL.identity) == "running"
    assert store.state(TRIAL.identity) == "pending"


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_record_is_set_aside_and_its_trial_runs_again(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path, "s")
    path = recorded(store) / RECORD
    data = path.read_bytes()
    flipped = bytes([*data[:40], data[40] ^ 1, *data[41:]])
    path.write_bytes({"cut": data[:-30], "flip": flipped, "empty": b""}[damage])
    assert store.state(TRIAL.identity) == "pending"
    assert not path.exists()
    assert len(list(path.parent.glob("*.bad"))) == 1
    assert "set aside" in store.messages[0]


@pytest.mark.parametrize("name", [RECORD, "trial.json", "failure.json", "lock", ""])
def test_a_symbolic_link_in_a_store_is_refused_and_never_followed(tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    store = Store(tmp_path, "s")
    recorded(Store(outside, "s"))
    store.write_failure(store.create_folder(TRIAL).name, "timeout", "it took more than 5 s")
    (outside / "s" / TRIAL.identity / "lock").touch()
    (outside / "s" / TRIAL.identity / "failure.json").write_text("damaged")
    (outside / "s" / TRIAL.identity / RECORD).write_text("damaged")
    link, target = store.root / TRIAL.identity / name, outside / "s" / TRIAL.identity / name
    shutil.rmtree(link, ignore_errors=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    outside_files = contents(outside)
    calls: list[Callable[[], object]] = [
        lambda: store.state(TRIAL.identity),
        lambda: store.failure(TRIAL.identity),
        lambda: store.trial(TRIAL.identity),
        lambda: store.create_folder(TRIAL),
        lambda: store.lock(TRIAL.identity).acquire(),
        lambda: store.write_failure(TRIAL.identity, "failed", "x"),
    ]
    messages = []
    for call in calls:
        try:
            call()
        except StoreError as error:
            messages.append(str(error))
    assert messages
    assert all(str(link) in message for message in messages)
    assert all("symbolic link" in message or "cannot lock" in message for message in messages)
    assert contents(outside) == outside_files


@pytest.mark.parametrize("name", [RECORD, "trial.json", "failure.json"])
def test_a_read_only_store_reports_damage_and_changes_nothing(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path, "s")
    folder = recorded(store)
    store.write_failure(TRIAL.identity, "timeout", "it took more than 5 s")
    (folder / name).write_text("damaged")
    files = contents(tmp_path)
    reader = Store(tmp_path, "s", read_only=True)
    for _ in range(2):
        reader.record(TRIAL.identity)
        reader.failure(TRIAL.identity)
        reader.trial(TRIAL.identity)
        reader.state(TRIAL.identity)
    assert contents(tmp_path) == files
    (message,) = reader.messages
    assert "`paribus run` sets it aside" in message


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return contents and inode of every file below a folder, by path."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_ino) for path in files}


def test_the_record_of_another_trial_is_ignored(tmp_path: Path) -> None:
    store = Store(tmp_path, "s")
    recorded(store, identity="b" * 24)
    assert store.record(TRIAL.identity) is None
    assert "belongs to another trial" in store.messages[0]


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "s").write_text("a file where the folder should be")
    with raises_problem(StoreError, "cannot-write", "Not a directory"):
        Store(tmp_path, "s").create_folder(TRIAL)


def test_looks_are_stored_once_and_in_order(tmp_path: Path) -> None:
    store = Store(tmp_path, "s")
    assert list(store.looks("a")) == []
    recorded(store)
    for comparison, seeds in (("a", (0, 1)), ("a", (0, 1, 2)), ("a", (0, 1)), ("b", (0, 1))):
        store.add_look(comparison, seeds)
    with (store.root / LOOKS).open("a") as file:
        file.write('{"comparison": "a", "see\n[1, 2]\n{"comparison": "a", "seeds": ["x"]}\n')
    assert list(store.looks("a")) == [(0, 1), (0, 1, 2)]
    assert list(store.looks("b")) == [(0, 1)]
    assert [record["identity"] for record in store.records()] == [TRIAL.identity]


def test_a_missing_store_has_no_looks_and_raises_no_error(tmp_path: Path) -> None:
    store = Store(tmp_path, "never-made")
    assert not store.add_look("a", (0, 1))
    assert list(store.looks("a")) == []
    assert not store.root.exists()

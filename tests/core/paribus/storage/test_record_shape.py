"""Records of a wrong shape are set aside with the value that is wrong; nothing that reads them fails."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.records import record_of, varied_spec

from paribus.storage.atomic import write_json
from paribus.storage.record_shape import SHAPE, shape_faults
from paribus.storage.saved_model import RECORD
from paribus.storage.store import Store, Trial

WRONG: tuple[Any, ...] = (None, True, -5, 1.5, "text", [1], [{}], {"a": []})
RECORD_OF_A_TRIAL = record_of(varied_spec({}, 0), 0, "done", 2.0)


def _changed(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    record = copy.deepcopy(RECORD_OF_A_TRIAL)
    node = record
    for key in path[:-1]:
        node = node.setdefault(key, {})
    node[path[-1]] = value
    return record


def _wrong_values() -> Iterator[tuple[tuple[str, ...], Any]]:
    for path, kind in SHAPE.items():
        yield from ((path, value) for value in WRONG if not kind.holds(value))


def test_records_of_trials_have_the_shape() -> None:
    assert list(shape_faults(RECORD_OF_A_TRIAL)) == []
    assert list(shape_faults(record_of(varied_spec({}, 0), 0, "diverged", 2.0))) == []


def test_each_wrong_value_is_named() -> None:
    for path, value in _wrong_values():
        assert any(f"`{'.'.join(path)}`" in fault for fault in shape_faults(_changed(path, value))), (path, value)


def test_each_missing_key_that_is_required_is_named() -> None:
    for path, kind in SHAPE.items():
        record = copy.deepcopy(RECORD_OF_A_TRIAL)
        node = record
        for key in path[:-1]:
            node = node.get(key, {})
        node.pop(path[-1], None)
        assert any(f"no `{'.'.join(path)}`" in fault for fault in shape_faults(record)) == kind.is_required, path


@pytest.mark.parametrize("path", [("result",), ("result", "steps"), ("result", "metrics"), ("provenance", "machine")])
def test_a_record_of_a_wrong_shape_is_set_aside(tmp_path: Path, path: tuple[str, ...]) -> None:
    store, trial = Store(tmp_path, "s"), Trial("a" * 24, "baseline", 0, {"seed": 0}, {}, "code", "corpus")
    write_json(store.create_folder(trial) / RECORD, {**_changed(path, -5), "identity": trial.identity})
    assert store.record(trial.identity) is None
    (message,) = store.messages
    assert ".".join(path) in message
    assert "-5" in message

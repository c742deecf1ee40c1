from __future__ import annotations

import errno
import itertools
import json
import math
import os
import random
import signal
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem

from paribus.errors import EXIT_STORE, StoreError
from paribus.storage.atomic import (
    FILES,
    DamagedError,
    Files,
    Json,
    append_line,
    canonical_json,
    damaged_error,
    digest,
    digest_json,
    make_folder,
    parse_json,
    parse_number,
    quarantine,
    read_bytes,
    read_json,
    remove_temporary_files,
    write_bytes,
    write_json,
)

OLD: dict[str, Json] = {"loss": [3.5, 0.25, 1e-300, -0.0], "name": "é\u202e", "steps": 7, "best": float("nan")}
NEW: dict[str, Json] = {"loss": [1.0], "steps": 8}
READ_OLD = {**OLD, "best": "nan"}
CALLS = ["create", "write", "fsync", "close", "rename", "fsync_dir"]

words = st.text(max_size=4)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words
trees = st.recursive(
    leaves, lambda tree: st.lists(tree, max_size=3) | st.dictionaries(words, tree, max_size=3), max_leaves=8
)


def failing_at(k: int, code: int) -> tuple[Files, list[str]]:
    """Return system calls whose k-th call fails, and the list of calls so far."""
    created: list[str] = []

    def before(name: str) -> None:
        created.append(name)
        if len(created) == k + 1:
            raise OSError(code, os.strerror(code))

    return FILES.with_callback(before), created


def half_writing(code: int) -> Files:
    """Return system calls that write half of the first data, and then fail."""
    calls: list[int] = []

    def write(descriptor: int, data: memoryview) -> int:
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(code, os.strerror(code))
        return os.write(descriptor, data[: len(data) // 2])

    return replace(FILES, write=write)


def faults(code: int) -> Iterator[tuple[Files, list[str]]]:
    """Yield system calls that fail at each call in turn; the last ones do not fail."""
    for k in itertools.count():
        files, created = failing_at(k, code)
        yield files, created
        if len(created) <= k:
            return


def killed_at(k: int, work: Callable[[Files], object]) -> bool:
    """Run `work` in a forked child that is killed before its k-th system call; return whether it was killed."""

    def before(_: str) -> None:
        nonlocal k
        if k == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        k -= 1

    child = os.fork()
    if child == 0:
        try:
            work(FILES.with_callback(before))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def resealed(body: Json, schema: Json) -> bytes:
    """Return a document with a correct hash and an invalid body or schema."""
    document: dict[str, Json] = {"body": body, "schema": schema}
    return canonical_json({**document, "sha256": digest_json(document)}) + b"\n"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- writing ---


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EMFILE])
def test_a_failing_call_leaves_the_old_or_new_file_and_no_temporary_file(tmp_path: Path, code: int) -> None:
    path = tmp_path / "record.json"
    for index, (files, created) in enumerate(faults(code)):
        write_json(path, OLD)
        if index < len(CALLS):
            with raises_problem(StoreError, "cannot-write", "record.json", os.strerror(code)) as caught:
                write_json(path, NEW, files=files)
            assert caught.value.exit_code == EXIT_STORE
        else:
            write_json(path, NEW, files=files)
            assert created == CALLS
        assert read_json(path) == (READ_OLD if index <= CALLS.index("rename") else NEW)
        assert names(tmp_path) == ["record.json"]


def test_a_leftover_temporary_file_breaks_no_later_write_and_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "record.json"

    def before(name: str) -> None:
        if name in ("rename", "unlink"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with raises_problem(StoreError, "cannot-write", "Input/output error"):
        write_json(path, OLD, files=FILES.with_callback(before))
    assert len(names(tmp_path)) == 1
    write_json(path, NEW)
    remove_temporary_files(tmp_path)
    assert names(tmp_path) == ["record.json"]


def test_removing_temporary_files_keeps_other_files_and_ignores_disk_errors(tmp_path: Path) -> None:
    for name in (".paribus-1-ab.tmp", ".paribus-lock", "other.tmp"):
        (tmp_path / name).touch()
    remove_temporary_files(tmp_path, files=failing_at(0, errno.EROFS)[0])
    assert len(names(tmp_path)) == 3
    remove_temporary_files(tmp_path)
    assert names(tmp_path) == [".paribus-lock", "other.tmp"]
    remove_temporary_files(tmp_path / "missing")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # 3.12 warns where torch has threads; we use none
def test_a_kill_before_any_call_leaves_the_old_or_new_file(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    k, content = 0, []
    killed = True
    while killed:
        write_json(path, OLD)
        killed = killed_at(k, lambda files: write_json(path, NEW, files=files))
        content.append(read_json(path))
        write_json(path, NEW)
        remove_temporary_files(tmp_path)
        assert names(tmp_path) == ["record.json"]
        k += 1
    assert content == [READ_OLD] * 5 + [NEW] * 2  # the rename is the fifth of six calls; the last child was not killed


def test_a_disk_that_fills_up_during_a_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_json(path, OLD)
    with raises_problem(StoreError, "cannot-write", "No space left", "record.json", "1,000"):
        write_bytes(path, b"x" * 600, b"y" * 400, files=half_writing(errno.ENOSPC))
    assert read_json(path) == READ_OLD
    assert names(tmp_path) == ["record.json"]


def test_partial_writes_are_continued(tmp_path: Path) -> None:
    trickle = replace(FILES, write=lambda descriptor, data: os.write(descriptor, data[:7]))
    write_bytes(tmp_path / "file", b"", bytes(range(256)), b"", memoryview(b"end"), files=trickle)
    assert read_bytes(tmp_path / "file") == bytes(range(256)) + b"end"


def test_an_interrupt_leaves_no_temporary_file_and_is_raised_again(tmp_path: Path) -> None:
    def before(name: str) -> None:
        if name == "fsync":
            raise KeyboardInterrupt("twice")

    with pytest.raises(KeyboardInterrupt, match="twice"):
        write_bytes(tmp_path / "file", b"data", files=FILES.with_callback(before))
    assert names(tmp_path) == []


def test_a_missing_folder_is_reported_and_not_created(tmp_path: Path) -> None:
    with raises_problem(StoreError, "cannot-write", "gone/record.json", "No such file"):
        write_json(tmp_path / "gone" / "record.json", OLD)
    assert names(tmp_path) == []


def test_a_folder_at_the_path_of_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "record.json" / "inside").mkdir(parents=True)
    with raises_problem(StoreError, "cannot-write", "Is a directory"):
        write_json(tmp_path / "record.json", OLD)
    assert names(tmp_path) == ["record.json"]


def test_file_permissions_follow_the_umask(tmp_path: Path) -> None:
    previous_umask = os.umask(0o027)
    try:
        write_bytes(tmp_path / "file", b"data")
    finally:
        os.umask(previous_umask)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


@pytest.mark.parametrize(("code", "works"), [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, False)])
def test_a_file_system_without_folder_fsync_is_supported_and_an_io_error_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, works: bool
) -> None:
    flush = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    if works:
        write_bytes(tmp_path / "file", b"data")
    else:
        with raises_problem(StoreError, "cannot-write", "Input/output error"):
            write_bytes(tmp_path / "file", b"data")
    assert read_bytes(tmp_path / "file") == b"data"


def test_make_folder_creates_parents_and_may_be_repeated(tmp_path: Path) -> None:
    files, created = failing_at(99, errno.EIO)
    make_folder(tmp_path / "a" / "b", files=files)
    make_folder(tmp_path / "a" / "b")
    assert created == ["mkdir", "fsync_dir", "fsync_dir"] * 2
    assert (tmp_path / "a" / "b").is_dir()


def test_a_folder_can_be_created_after_any_failed_call(tmp_path: Path) -> None:
    for index, (files, created) in enumerate(faults(errno.EROFS)):
        folder = tmp_path / str(index) / "b"
        if index < 6:
            with raises_problem(StoreError, "cannot-write", "Read-only file system"):
                make_folder(folder, files=files)
            make_folder(folder)
        else:
            make_folder(folder, files=files)
            assert created == ["mkdir", "fsync_dir", "fsync_dir"] * 2
        write_bytes(folder / "file", b"data")


def test_a_folder_created_by_another_process_is_accepted(tmp_path: Path) -> None:
    def slow(folder: Path) -> None:
        folder.mkdir()
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    make_folder(tmp_path / "a" / "b", files=replace(FILES, mkdir=slow))
    assert (tmp_path / "a" / "b").is_dir()


def test_a_file_at_the_path_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with raises_problem(StoreError, "cannot-write", "Not a directory"):
        make_folder(tmp_path / "a")


# --- reading ---


@given(st.dictionaries(words, trees, max_size=3))
@settings(max_examples=25)
def test_documents_round_trip(tmp_path_factory: pytest.TempPathFactory, document: dict[str, Json]) -> None:
    path = tmp_path_factory.getbasetemp() / "document.json"
    write_json(path, document, files=replace(FILES, fsync=lambda _: None, fsync_dir=lambda _: None))
    content = read_json(path)
    assert content == document
    assert canonical_json(content) == canonical_json(document)
    assert digest_json(content) == digest_json(document)


def test_every_one_of_300_flipped_bits_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_json(path, OLD)
    data = path.read_bytes()
    for bit in random.Random(0).sample(range(8 * len(data)), 300):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with raises_problem(DamagedError, "damaged", "record.json"):
            read_json(path)


def test_every_sampled_truncation_and_zeroed_tail_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_json(path, OLD)
    data = path.read_bytes()
    for length in {0, len(data) - 1, *random.Random(0).sample(range(len(data)), 100)}:
        for rest in (b"", bytes(len(data) - length)):
            path.write_bytes(data[:length] + rest)
            with raises_problem(DamagedError, "damaged", "record.json"):
                read_json(path)


def test_an_edited_or_reformatted_document_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_json(path, OLD)
    text = path.read_text()
    path.write_text(text.replace('"steps":7', '"steps":8'))
    with raises_problem(DamagedError, "damaged", "hash"):
        read_json(path)
    path.write_text(json.dumps(json.loads(text), indent=1))
    with raises_problem(DamagedError, "damaged", "encoding"):
        read_json(path)
    path.write_text(text)
    assert read_json(path) == READ_OLD


INVALID_DOCUMENTS = {
    "nothing": b"",
    "NaN": b'{"body":{},"schema":1,"sha256":NaN}',
    "a key twice": b'{"body":{},"schema":1,"schema":1,"sha256":""}',
    "a missing key": b'{"body":{},"schema":1}',
    "another key": b'{"body":{},"schema":1,"sha256":"","more":0}',
    "a list": b"[]",
    "another hash": b'{"body":{},"schema":1,"sha256":""}',
    "a list as its body": resealed([], 1),
    "a schema in quotes": resealed({}, "1"),
    "spaces": resealed({}, 1).replace(b":", b": "),
    "an end at 100,000 brackets": b'{"body":{"a":' + b"[" * 100_000,
    "600 brackets": b'{"body":{"a":' + b"[" * 600 + b"]" * 600 + b'},"schema":1,"sha256":""}',
    "a number too large": resealed({"a": math.inf}, 1).replace(b'"inf"', b"1e999"),
    "bytes that are not UTF-8": b"\xff\xfe{}",
    "a byte order mark": b'\xef\xbb\xbf{"body":{}}',
}


@pytest.mark.parametrize("data", INVALID_DOCUMENTS.values(), ids=INVALID_DOCUMENTS)
def test_an_invalid_document_is_rejected_as_damaged(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "record.json").write_bytes(data)
    with raises_problem(DamagedError, "damaged", "record.json"):
        read_json(tmp_path / "record.json")


def test_an_unknown_schema_is_reported_and_not_as_damage(tmp_path: Path) -> None:
    write_json(tmp_path / "record.json", OLD, schema=2)
    assert read_json(tmp_path / "record.json", schema=2) == READ_OLD
    with raises_problem(StoreError, "unknown-schema", "record.json", "2", "1") as caught:
        read_json(tmp_path / "record.json")
    assert not isinstance(caught.value, DamagedError)


def test_only_a_disk_error_counts_an_unreadable_file_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with raises_problem(StoreError, "cannot-read", "No such file", "none.json") as caught:
        read_json(tmp_path / "none.json")
    assert not isinstance(caught.value, DamagedError)
    with raises_problem(DamagedError, "cannot-read", "Is a directory"):
        read_bytes(tmp_path)

    def broken(_: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "read_bytes", broken)
    with raises_problem(DamagedError, "cannot-read", "Input/output error"):
        read_bytes(tmp_path / "file")


def test_control_characters_of_a_damaged_path_are_escaped(tmp_path: Path) -> None:
    assert "\x1b" not in str(damaged_error(tmp_path / "a\x1b[2J", "why"))


def test_quarantine_renames_a_file_and_overwrites_none(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    aside = []
    for data in (b"one", b"two"):
        path.write_bytes(data)
        aside.append(quarantine(path))
    assert [place.read_bytes() for place in aside] == [b"one", b"two"]
    assert all(place.name.startswith("record.json.") and place.name.endswith(".bad") for place in aside)
    assert len(names(tmp_path)) == 2
    with raises_problem(StoreError, "cannot-write", "record.json", "No such file"):
        quarantine(path)


def test_a_failed_quarantine_keeps_exactly_one_copy(tmp_path: Path) -> None:
    for index, (files, _) in enumerate(faults(errno.EIO)):
        folder = tmp_path / str(index)
        folder.mkdir()
        (folder / "file").write_bytes(b"bad")
        if index < 2:
            with raises_problem(StoreError, "cannot-write", "Input/output error"):
                quarantine(folder / "file", files=files)
        assert [place.read_bytes() for place in folder.iterdir()] == [b"bad"]


# --- JSON and hashes ---


def test_canonical_json_does_not_depend_on_key_order_or_sequence_type() -> None:
    assert (
        canonical_json({"b": (1, 2.0), "a": None})
        == canonical_json({"a": None, "b": [1, 2.0]})
        == b'{"a":null,"b":[1,2.0]}'
    )
    assert digest_json({"a": 1}) == digest(b'{"a":', b"1}") == digest(memoryview(b'{"a":1}'))
    assert digest(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@given(st.floats())
def test_floats_round_trip_and_non_finite_ones_are_strings(value: float) -> None:
    spelt = canonical_json({"value": value})
    content = parse_number(json.loads(spelt)["value"])
    assert content == value or (math.isnan(content) and math.isnan(value))
    assert math.copysign(1, content) == math.copysign(1, value) or math.isnan(value)
    assert not any(word in spelt for word in (b"NaN", b":Inf", b":-Inf"))


@pytest.mark.parametrize("value", ["1", "infinity", None, True, [], {}])
def test_parse_number_rejects_other_values(value: Json) -> None:
    with pytest.raises(ValueError, match="not a number"):
        parse_number(value)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"a": {1: 2}}, r"document\.a: a key must be a string, but is 1"),
        ({"a": [0, {1, 2}]}, r"document\.a\[1\]: JSON has no set"),
        ({"a": b"bytes"}, r"document\.a: JSON has no bytes"),
        (math, "document: JSON has no module"),
    ],
)
def test_canonical_json_rejects_values_that_json_does_not_have(document: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        canonical_json(document)


@pytest.mark.parametrize(
    ("data", "words"), [(b"[Infinity]", "Infinity is not JSON"), (b'{"a":1,"a":2}', "key 'a'"), (b"[" * 10**5, "deep")]
)
def test_parse_json_rejects_non_standard_json(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_json(data)


# --- logs ---


def test_append_line_appends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "curve.log"
    assert append_line(path, "one")
    assert append_line(path, "two\nlines \ud800")
    assert path.read_text() == "one\ntwo\\nlines \\ud800\n"


def test_append_line_returns_false_on_any_failure(tmp_path: Path) -> None:
    answers = []
    for files, _ in faults(errno.ENOSPC):
        answers.append(append_line(tmp_path / "curve.log", "line", files=files))
    assert answers == [False, False, False, True]
    assert not append_line(tmp_path / "none" / "curve.log", "line")
    assert not append_line(tmp_path, "line")


def test_a_truncated_line_does_not_damage_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "curve.log"
    assert not append_line(path, "first line", files=replace(FILES, write=lambda d, data: os.write(d, data[:4])))
    assert append_line(path, "second")
    assert path.read_text() == "firs\nsecond\n"


def test_two_processes_append_to_one_log_without_overwriting(tmp_path: Path) -> None:
    first_descriptor, second_descriptor = FILES.extend(tmp_path / "log"), FILES.extend(tmp_path / "log")
    for descriptor, line in (
        (first_descriptor, b"one\n"),
        (second_descriptor, b"two\n"),
        (first_descriptor, b"three\n"),
    ):
        FILES.write(descriptor, memoryview(line))
    FILES.close(first_descriptor)
    FILES.close(second_descriptor)
    assert (tmp_path / "log").read_text() == "one\ntwo\nthree\n"


def test_writing_does_not_advance_the_global_random_generator(tmp_path: Path) -> None:
    random.seed(0)
    expected = random.random()
    random.seed(0)
    write_bytes(tmp_path / "file", b"data")
    assert random.random() == expected

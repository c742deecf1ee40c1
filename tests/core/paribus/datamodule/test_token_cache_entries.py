"""Entries of the token store: small ones are checked whole, large ones by sampled blocks and a stamp."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fixtures.problems import raises_problem

from paribus import StoreError
from paribus.datamodule import token_cache_entries
from paribus.datamodule.token_cache_entries import Column, read_entry, write_entry
from paribus.storage.atomic import DamagedError, digest


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a large entry of more than ten blocks, of which only a sample is read."""
    monkeypatch.setattr(token_cache_entries, "FULL_CHECK_BYTES", 1000)
    monkeypatch.setattr(token_cache_entries, "BLOCK", 256)
    monkeypatch.setattr(token_cache_entries, "SAMPLED_BLOCKS", 2)
    values = np.arange(1001, dtype=np.uint16)
    columns = [Column("<u2", 1001, lambda: iter((values[:300], values[300:300], values[300:])))]
    columns += [Column("<i8", 3, lambda: iter((np.arange(3),)))]
    write_entry(tmp_path, b"state", {"train": columns}, {"said": 1})
    return tmp_path


def flip(entry: Path, offset: int) -> None:
    (path,) = entry.glob("*.tokens")
    data = path.read_bytes()
    path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])


def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that collects the sizes of the blocks hashed from now on."""
    hashed_sizes: list[int] = []

    def noted(data: Any) -> str:
        hashed_sizes.append(len(data))
        return digest(data)

    monkeypatch.setattr(token_cache_entries, "digest", noted)
    return hashed_sizes


def test_arrays_are_stored_at_the_documented_offsets(entry: Path) -> None:
    meta, data = read_entry(entry)
    assert (meta["said"], data[: meta["state"]].tobytes()) == (1, b"state")
    (ids, numbers) = (
        data[start : start + size * np.dtype(kind).itemsize].view(kind) for kind, start, size in meta["sides"]["train"]
    )
    assert ids.tolist() == list(range(1001))
    assert numbers.tolist() == [0, 1, 2]
    assert len(data) == sum(map(len, [b"state", bytes(3), ids.tobytes(), bytes(6), numbers.tobytes()]))


def test_a_verified_large_entry_is_checked_by_sampled_blocks(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed_sizes = reads(monkeypatch)
    read_entry(entry)
    assert 2 <= len(hashed_sizes) <= 4
    assert sum(hashed_sizes) < 1100


def test_sampled_blocks_cover_the_whole_file_over_many_openings(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block_numbers = {number for _ in range(60) for number in token_cache_entries._sampled_blocks(8)}
    assert block_numbers == set(range(8))


@pytest.mark.parametrize("offset", [0, 1000, 2000])
def test_a_flipped_bit_is_detected_at_once(entry: Path, offset: int) -> None:
    read_entry(entry)
    flip(entry, offset)
    with raises_problem(DamagedError, "damaged", f"{offset // 256 * 256:,}"):
        read_entry(entry)


def test_a_flipped_bit_with_a_restored_mtime_is_detected_at_once(entry: Path) -> None:
    (path,) = entry.glob("*.tokens")
    original_stat = path.stat()
    flip(entry, 1000)
    os.utime(path, ns=(original_stat.st_atime_ns, original_stat.st_mtime_ns))
    with raises_problem(DamagedError, "damaged", "hash"):
        read_entry(entry)


def test_silent_corruption_is_detected_when_the_stamp_expires(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = token_cache_entries._file_state
    (path,) = entry.glob("*.tokens")
    original_state = looked(path)
    flip(entry, 1000)
    monkeypatch.setattr(token_cache_entries, "_file_state", lambda path: original_state)
    monkeypatch.setattr(token_cache_entries, "_sampled_blocks", lambda count: [0])
    read_entry(entry)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + token_cache_entries.STAMP_SECONDS)
    with raises_problem(DamagedError, "damaged", "hash"):
        read_entry(entry)


def test_a_full_check_renews_the_stamp(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (entry / token_cache_entries.STAMP).unlink()
    hashed_sizes = reads(monkeypatch)
    read_entry(entry)
    assert len(hashed_sizes) == 8
    hashed_sizes.clear()
    read_entry(entry)
    assert len(hashed_sizes) <= 4


def test_a_read_only_cache_is_checked_whole_each_time(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (entry / token_cache_entries.STAMP).unlink()

    def refuse(*arguments: object) -> None:
        raise StoreError("read-only")

    monkeypatch.setattr(token_cache_entries, "write_json", refuse)
    hashed_sizes = reads(monkeypatch)
    read_entry(entry)
    read_entry(entry)
    assert len(hashed_sizes) == 16


def test_a_small_entry_has_no_stamp_and_is_checked_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_entry(tmp_path, b"state", {}, {})
    hashed_sizes = reads(monkeypatch)
    read_entry(tmp_path)
    assert hashed_sizes == [8]
    assert not (tmp_path / token_cache_entries.STAMP).exists()

"""Worker pool: order of results, errors, and cases without work."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from paribus.datamodule.worker_pool import WorkerPool, may_fork
from paribus.errors import DataError, StoreError

pytestmark = pytest.mark.usefixtures("one_thread")


def squared(number: int, item: int) -> tuple[int, int]:
    if item == 13:
        raise DataError("thirteen")
    if item == 14:
        raise KeyError("fourteen")
    if item == 15:
        os._exit(9)
    return item * item, os.getpid()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_results_come_in_the_order_of_the_items(size: int) -> None:
    with WorkerPool(squared, size) as pool:
        results = list(pool.map(enumerate(range(12)), lambda number, item: (-1, 0) if item % 5 == 3 else None))
    assert [value for value, _ in results] == [-1 if item % 5 == 3 else item * item for item in range(12)]
    workers = {process for value, process in results if value >= 0}
    assert (workers == {os.getpid()}) == (size == 1)
    assert len(workers) <= size


def test_a_single_item_is_processed_in_this_process() -> None:
    with WorkerPool(squared, 4) as pool:
        assert list(pool.map([(0, 3)])) == [(9, os.getpid())]


def test_no_more_items_are_read_ahead_than_there_are_workers() -> None:
    items_read: list[int] = []

    def items() -> Iterator[tuple[int, int]]:
        for number in range(12):
            items_read.append(number)
            yield number, number

    with WorkerPool(squared, 2) as pool:
        for place, _ in enumerate(pool.map(items())):
            assert len(items_read) <= place + 4


@pytest.mark.parametrize(
    ("item", "kind", "words"),
    [
        (13, DataError, "thirteen"),
        (14, RuntimeError, "KeyError: 'fourteen'"),
        (15, StoreError, "lost-process"),
    ],
)
def test_errors_of_workers_are_raised_in_the_parent(item: int, kind: type[Exception], words: str) -> None:
    with WorkerPool(squared, 2) as pool, pytest.raises(kind, match=words):
        list(pool.map(enumerate([1, 2, item, 3])))


def test_a_process_with_threads_is_not_forked() -> None:
    wait = threading.Event()
    thread = threading.Thread(target=wait.wait)
    assert may_fork()
    thread.start()
    try:
        assert not may_fork()
        with WorkerPool(squared, 3) as pool:
            assert {process for _, process in pool.map(enumerate(range(4)))} == {os.getpid()}
    finally:
        wait.set()
        thread.join()


def test_a_process_that_uses_cuda_is_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert may_fork()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert not may_fork()


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from paribus.datamodule.worker_pool import WorkerPool\n"
        "def work(number, item):\n"
        "    Path(sys.argv[1], str(os.getpid())).touch()\n"
        "    return number\n"
        "pool = WorkerPool(work, 2)\n"
        "results = pool.map(enumerate(range(6)))\n"
        "print(next(results), next(results))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, capture_output=True)
    workers = [int(path.name) for path in tmp_path.iterdir()]
    assert workers
    deadline = time.monotonic() + 10
    while any(is_running(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

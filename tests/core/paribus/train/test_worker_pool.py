"""Work by several processes: its order, its errors, and when nobody is asked."""

import os
import threading
from collections.abc import Iterator

import pytest

from paribus.errors import DataError, StoreError
from paribus.train.worker_pool import Crew, may_fork

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
def test_results_come_in_the_order_of_the_work(size: int) -> None:
    with Crew(squared, size) as crew:
        found = list(crew.map(enumerate(range(12)), lambda number, item: (-1, 0) if item % 5 == 3 else None))
    assert [value for value, _ in found] == [-1 if item % 5 == 3 else item * item for item in range(12)]
    workers = {process for value, process in found if value >= 0}
    assert (workers == {os.getpid()}) == (size == 1)
    assert len(workers) <= size


def test_one_piece_of_work_is_done_here() -> None:
    with Crew(squared, 4) as crew:
        assert list(crew.map([(0, 3)])) == [(9, os.getpid())]


def test_no_more_is_read_ahead_than_there_are_hands() -> None:
    asked: list[int] = []

    def items() -> Iterator[tuple[int, int]]:
        for number in range(12):
            asked.append(number)
            yield number, number

    with Crew(squared, 2) as crew:
        for place, _ in enumerate(crew.map(items())):
            assert len(asked) <= place + 4


@pytest.mark.parametrize(
    ("item", "kind", "words"),
    [
        (13, DataError, "thirteen"),
        (14, RuntimeError, "KeyError: 'fourteen'"),
        (15, StoreError, r"exit code 9\).*again"),
    ],
)
def test_what_goes_wrong_elsewhere_is_told_here(item: int, kind: type[Exception], words: str) -> None:
    with Crew(squared, 2) as crew, pytest.raises(kind, match=words):
        list(crew.map(enumerate([1, 2, item, 3])))


def test_beside_other_threads_nothing_is_copied() -> None:
    wait = threading.Event()
    thread = threading.Thread(target=wait.wait)
    assert may_fork()
    thread.start()
    try:
        assert not may_fork()
        with Crew(squared, 3) as crew:
            assert {process for _, process in crew.map(enumerate(range(4)))} == {os.getpid()}
    finally:
        wait.set()
        thread.join()

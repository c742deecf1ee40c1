"""Pool of forked worker processes (`concurrent.futures`) that returns results in the order of the items."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, final

from paribus.errors import ParibusError, Problem, StoreError

Item = TypeVar("Item")
Result = TypeVar("Result")

RANK_MONITOR: Final = "rank-monitor"  # name of a thread that holds no lock, so that its process can be forked

_TOKENIZERS_PARALLELISM: Final = "TOKENIZERS_PARALLELISM"
_PARENT_CHECK_SECONDS: Final = 1.0

_work: Callable[[int, Any], Any] | None = None  # of a worker process, set by its initializer


def may_fork() -> bool:
    """Return True if this process can fork safely: a lock that another thread holds would stay locked in the copy.

    Torch's threads count where it may have started any: a forked process that calls torch would wait for them. A
    forked process cannot use CUDA once this one has.
    """
    torch = sys.modules.get("torch")
    return (
        "fork" in multiprocessing.get_all_start_methods()
        and sum(thread.name != RANK_MONITOR for thread in threading.enumerate()) == 1
        and not multiprocessing.current_process().daemon
        and (torch is None or (torch.get_num_threads() == 1 and not torch.cuda.is_initialized()))
    )


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@final
class WorkerPool(Generic[Item, Result]):
    """Pool of up to `size` forked processes that call `work`.

    A single item runs in the calling process, and so do all items if forking is unsafe.
    """

    def __init__(self, work: Callable[[int, Item], Result], size: int) -> None:
        self.work = work
        self.size = size if size > 1 and may_fork() else 1
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._executor is not None:
            for process in list((self._executor._processes or {}).values()):
                process.terminate()  # an error or an interruption does not wait for the items in progress
            self._executor.shutdown(cancel_futures=True)

    def map(
        self,
        items: Iterable[tuple[int, Item]],
        existing: Callable[[int, Item], Result | None] = lambda number, item: None,
    ) -> Iterator[Result]:
        """Yield the result of each numbered item, or its existing result. At most `size` results are pending."""
        pending: deque[Result | Future[Result]] = deque()
        iterator = iter(items)
        current = next(iterator, None)
        while current is not None:
            following = next(iterator, None)
            result = existing(*current)
            if result is not None:
                pending.append(result)
            elif self.size == 1 or (self._executor is None and following is None):
                pending.append(self.work(*current))
            else:
                while sum(isinstance(entry, Future) for entry in pending) >= self.size:
                    yield _result(pending.popleft())
                pending.append(self._submit(*current))
            while pending and not isinstance(pending[0], Future):
                yield _result(pending.popleft())
            current = following
        while pending:
            yield _result(pending.popleft())

    def _submit(self, number: int, item: Item) -> Future[Result]:
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                self.size,
                mp_context=multiprocessing.get_context("fork"),
                initializer=_initialize,
                initargs=(self.work, os.getpid()),
            )
        with warnings.catch_warnings(), _no_tokenizer_threads():
            # Python 3.12 also warns of threads that wait in the pool of a library; `may_fork` has checked.
            warnings.simplefilter("ignore", DeprecationWarning)
            return self._executor.submit(_call, number, item)


def _result(entry: Result | Future[Result]) -> Result:
    if not isinstance(entry, Future):
        return entry
    try:
        return entry.result()
    except BrokenProcessPool as error:
        message = "a process that encodes a part of the corpus ended unexpectedly: it may have run out of memory"
        valid = "run it again: finished parts are kept"
        raise StoreError(Problem(code="lost-process", path="corpus", message=message, valid=valid)) from error


@contextmanager
def _no_tokenizer_threads() -> Iterator[None]:
    """Disable the threads of the library `tokenizers` in forked processes; otherwise it prints a warning there."""
    previous = os.environ.get(_TOKENIZERS_PARALLELISM)
    os.environ[_TOKENIZERS_PARALLELISM] = "false"
    try:
        yield
    finally:
        if previous is None:
            del os.environ[_TOKENIZERS_PARALLELISM]
        else:
            os.environ[_TOKENIZERS_PARALLELISM] = previous


# -- in a worker process ------------------------------------------------------------------------------------------


def _initialize(work: Callable[[int, Any], Any], parent: int) -> None:
    global _work  # noqa: PLW0603  # a forked process has its own, and the work is too large to be sent with each item
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()


def _exit_with_parent(parent: int) -> None:
    """End this process after its parent: workers of a killed parent would wait for items forever."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_SECONDS)
    os._exit(1)


def _call(number: int, item: Any) -> Any:
    assert _work is not None, "`_initialize` sets it"
    try:
        return _work(number, item)
    except ParibusError:
        raise
    except Exception as error:  # not every error can be sent to the parent
        raise RuntimeError(f"{type(error).__name__}: {error}") from None

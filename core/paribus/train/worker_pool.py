"""Work done by several processes at once, whose results come in the order of the work."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Generic, Self, TypeVar, final

from paribus.errors import ParibusError, Problem, StoreError

Item = TypeVar("Item")
Result = TypeVar("Result")

_THREADS = "TOKENIZERS_PARALLELISM"
_ORPHANED = 1.0  # seconds after which a process looks whether its parent still lives


def may_fork() -> bool:
    """Whether a copy of this process can work: a thread that holds a lock is not copied, and the lock is.

    Torch's own threads count where it may have started any: a copy that calls torch would wait for them.
    """
    torch = sys.modules.get("torch")
    return (
        "fork" in multiprocessing.get_all_start_methods()
        and threading.active_count() == 1
        and not multiprocessing.current_process().daemon
        and (torch is None or torch.get_num_threads() == 1)
    )


def cores() -> int:
    """How many processes this one may keep busy."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@final
class Crew(Generic[Item, Result]):
    """Up to `size` processes that call `work`; this one does it itself where there is one piece, or no other may."""

    def __init__(self, work: Callable[[int, Item], Result], size: int) -> None:
        self.work = work
        self.size = size if size > 1 and may_fork() else 1
        self._hands: list[_Hand[Item, Result]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hand in self._hands:
            hand.end()

    def map(
        self, items: Iterable[tuple[int, Item]], done: Callable[[int, Item], Result | None] = lambda number, item: None
    ) -> Iterator[Result]:
        """The result of each numbered item, or what `done` has of it already. As many are held as there are hands."""
        waiting: deque[Result | _Hand[Item, Result]] = deque()
        ahead = iter(items)
        piece = next(ahead, None)
        while piece is not None:
            following = next(ahead, None)
            found = done(*piece)
            if found is not None:
                waiting.append(found)
            elif self.size == 1 or (not self._hands and following is None):  # no copy is made for one piece
                waiting.append(self.work(*piece))
            else:
                hand = self._free(waiting)
                while hand is None:
                    yield self._result(waiting.popleft())
                    hand = self._free(waiting)
                hand.give(piece)
                waiting.append(hand)
            while waiting and not isinstance(waiting[0], _Hand):
                yield self._result(waiting.popleft())
            piece = following
        while waiting:
            yield self._result(waiting.popleft())

    def _result(self, waited: Result | _Hand[Item, Result]) -> Result:
        return waited.take() if isinstance(waited, _Hand) else waited

    def _free(self, waiting: deque[Result | _Hand[Item, Result]]) -> _Hand[Item, Result] | None:
        for hand in self._hands:
            if hand not in waiting:
                return hand
        if len(self._hands) < self.size:
            self._hands.append(_Hand(self.work))
            return self._hands[-1]
        return None


@final
class _Hand(Generic[Item, Result]):
    """One process, and the pipe to it."""

    def __init__(self, work: Callable[[int, Item], Result]) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(work, theirs, os.getpid()), daemon=True)
        with warnings.catch_warnings(), _no_threads_of_tokenizers():
            # Python 3.12 warns of every thread, those too that wait in a library's pool; `may_fork` has looked.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()

    def give(self, piece: tuple[int, Item]) -> None:
        self._pipe.send(piece)

    def take(self) -> Result:
        try:
            good, value = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            self._process.join(1)
            raise _lost(self._process.exitcode) from error
        if not good:
            raise value
        result: Result = value
        return result

    def end(self) -> None:
        self._pipe.close()
        self._process.terminate()
        self._process.join()


@contextmanager
def _no_threads_of_tokenizers() -> Iterator[None]:
    """The library `tokenizers` has threads, which no copy has, and says so on stderr unless it was told not to."""
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before


def _serve(work: Callable[[int, Item], Result], pipe: Connection, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this one ends it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        while not pipe.poll(_ORPHANED):
            if os.getppid() != parent:
                return
        try:
            number, item = pipe.recv()
        except EOFError:
            return
        try:
            answer: tuple[bool, object] = (True, work(number, item))
        except ParibusError as error:
            answer = (False, error)
        except Exception as error:  # it is the parent's to tell, and not every error can be sent
            answer = (False, RuntimeError(f"{type(error).__name__}: {error}"))
        pipe.send(answer)


def _lost(code: int | None) -> StoreError:
    what = f"a process that encoded a part of the corpus ended by itself (exit code {code}): it may have had no memory"
    return StoreError(
        Problem(code="lost-process", path="corpus", message=what, valid="run it again: what is done is kept")
    )

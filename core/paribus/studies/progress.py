"""How far a trial is: its process adds lines to a file, and the supervisor reads what was added.

Nothing depends on it: a full disk costs the display its numbers, and the trial nothing.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, final

from paribus.durable import FILES, Files, append_line

EVERY: Final = 0.5  # seconds between lines
MOST_BYTES: Final = 1 << 20  # read at a time


class Told(NamedTuple):
    """A line of the file: a step with its loss, or a note."""

    step: int = 0
    loss: float | None = None
    note: str = ""


@final
class Telling:
    """The trial's side."""

    def __init__(
        self, path: Path, steps: int, listen: Callable[[Told], None] = lambda told: None, *, files: Files = FILES
    ) -> None:
        """`listen` is told the same, for whoever is in the same process."""
        self._path = path
        self._steps = steps
        self._listen = listen
        self._files = files
        self._last = -math.inf

    def step(self, step: int, loss: float) -> None:
        """Called every step; writes now and then, and at the end."""
        now = time.monotonic()
        if now - self._last >= EVERY or step >= self._steps:
            self._last = now
            self._tell(Told(step, loss if math.isfinite(loss) else None))

    def note(self, text: str) -> None:
        self._tell(Told(note=text))

    def _tell(self, told: Told) -> None:
        line = {"note": told.note} if told.note else {"step": told.step, "loss": told.loss}
        append_line(self._path, json.dumps(line), files=self._files)
        self._listen(told)


@final
class Tail:
    """The supervisor's side: what was added to the file since it last asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = self._size()

    def read(self) -> Iterator[Told]:
        """The new lines; one that is cut or no line of ours is passed over."""
        if self._size() <= self._at:
            return
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read(MOST_BYTES)
        except OSError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines():
            try:
                told = Told(**json.loads(line))
            except (ValueError, TypeError, RecursionError):
                continue
            if isinstance(told.step, int) and isinstance(told.note, str):
                yield told

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except OSError:
            return 0

"""What a plugin could change for everybody while it is imported: taken down before, and put back afterwards."""

from __future__ import annotations

import locale
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple


class Surroundings(NamedTuple):
    """The working folder, the locale, the mask for new files, and what signals do."""

    folder: str | None
    locale: str
    mask: int
    handlers: Mapping[signal.Signals, Any]

    @classmethod
    def taken(cls) -> Surroundings:
        folder = None
        with suppress(OSError):  # it was removed
            folder = os.getcwd()  # noqa: PTH109  # Path.cwd() is the same
        mask = os.umask(0o077)
        os.umask(mask)
        handlers = {each: held for each in _ours() if (held := signal.getsignal(each)) is not None}
        return cls(folder, locale.setlocale(locale.LC_ALL), mask, handlers)

    def restore(self) -> None:
        if self.folder is not None:
            with suppress(OSError):
                os.chdir(self.folder)
        with suppress(locale.Error):
            locale.setlocale(locale.LC_ALL, self.locale)
        os.umask(self.mask)
        for each, held in self.handlers.items():
            if signal.getsignal(each) is not held:
                signal.signal(each, held)


def _ours() -> set[signal.Signals]:
    """The signals that a process may decide about."""
    return {each for each in signal.Signals if each not in (signal.SIGKILL, signal.SIGSTOP)}

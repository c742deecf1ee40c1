"""What a job of submitit's does on the machine where it runs: the trial's process, and files that say how it is."""

from __future__ import annotations

import json
import signal as signals
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

from paribus import Job, JobEnded, JobEnvironment, JobProcess

STATE: Final = "state.json"
REQUEUED: Final = "requeued"
LOOK: Final = 0.5  # seconds between looks at whether it is to stop
GRACE: Final = 75.0  # seconds for a checkpoint; Slurm warns 90 seconds before


@final
class Submitted:
    """Called by submitit in the job. `checkpoint` is what it calls before it queues the job again."""

    def __init__(self, job: Job, home: JobEnvironment, folder: str) -> None:
        self.job = job
        self.home = home
        self.folder = folder

    def __call__(self) -> None:
        process = self._process = JobProcess(self.job, self.home)
        self._heed()
        self._say("running")
        sent = 0
        while (ended := process.wait(LOOK)) is None:
            asked = self._asked()
            if asked != sent:
                process.send(asked)
                sent = asked
        self._say("ended", ended)

    def checkpoint(self) -> Any:
        """The trial writes its checkpoint and ends; the next time it goes on from there."""
        import submitit

        self._process.send(signals.SIGTERM)
        ended = self._process.wait(GRACE)
        if ended is not None and ended.code not in (INTERRUPTED, None):
            self._say("ended", ended)  # it came to its end meanwhile: there is nothing to go on with
            return None
        self._say(REQUEUED, ended)
        return submitit.helpers.DelayedSubmission(Submitted(self.job, self.home, self.folder))

    def _heed(self) -> None:
        """What submitit does at its own signal is done at USR1 too; at TERM, a checkpoint is written before the end.

        Whether a job that got TERM is queued again is Slurm's to say: it may be that somebody cancelled it.
        """
        with suppress(ValueError):  # in a thread, as in submitit's executor `debug`
            preempted = signals.getsignal(signals.SIGUSR2)
            if callable(preempted):
                signals.signal(signals.SIGUSR1, preempted)
            signals.signal(signals.SIGTERM, lambda number, frame: self._process.send(signals.SIGTERM))

    def _asked(self) -> int:
        with suppress(OSError, ValueError):
            return int((Path(self.folder) / "stop").read_text())
        return 0

    def _say(self, how: str, ended: JobEnded | None = None) -> None:
        state: dict[str, Any] = {"how": how, "where": self._process.where}
        if ended is not None:
            state |= {"code": ended.code, "signal": ended.signal, "last": ended.last}
        path = Path(self.folder) / STATE
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(state))
        beside.replace(path)


INTERRUPTED: Final = 143


def read(folder: Path) -> dict[str, Any] | None:
    """How the job of this folder is; None as long as it has not begun."""
    with suppress(OSError, ValueError):
        state: dict[str, Any] = json.loads((folder / STATE).read_bytes())
        return state
    return None

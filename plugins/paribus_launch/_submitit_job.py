"""Body of a submitit job: starts the trial's process and writes its state to a file."""

from __future__ import annotations

import json
import signal as signals
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

from paribus import Job, JobEnded, JobEnvironment, JobProcess

STATE_FILE: Final = "state.json"
REQUEUED: Final = "requeued"
TERMINATED: Final = "terminated"  # by a signal of Slurm, which may requeue the job
POLL_SECONDS: Final = 0.5  # seconds between checks for a requested signal
CHECKPOINT_SECONDS: Final = 75.0  # seconds for a checkpoint; Slurm sends its signal 90 seconds before the end


@final
class SubmititJob:
    """Callable that submitit runs in the job. submitit calls `checkpoint` before it requeues the job."""

    def __init__(self, job: Job, home: JobEnvironment, folder: str) -> None:
        self.job = job
        self.home = home
        self.folder = folder
        self._terminated = False

    def __call__(self) -> None:
        process = self._process = JobProcess(self.job, self.home)
        self._install_handlers()
        self._write_state("running")
        sent_signal = 0
        while (result := process.wait(POLL_SECONDS)) is None:
            requested_signal = self._requested_signal()
            if requested_signal != sent_signal:
                process.send(requested_signal)
                sent_signal = requested_signal
        interrupted = result.code in (INTERRUPTED, None) and not sent_signal
        self._write_state(TERMINATED if self._terminated and interrupted else "ended", result)

    def checkpoint(self) -> Any:
        """Make the trial write its checkpoint and end; the requeued job resumes from there."""
        import submitit

        self._process.send(signals.SIGTERM)
        result = self._process.wait(CHECKPOINT_SECONDS)
        if result is not None and result.code not in (INTERRUPTED, None):
            self._write_state("ended", result)  # the trial has ended, so there is nothing to resume
            return None
        self._write_state(REQUEUED, result)
        return submitit.helpers.DelayedSubmission(SubmititJob(self.job, self.home, self.folder))

    def _install_handlers(self) -> None:
        """Handle USR1 like submitit's own signal, and let TERM write a checkpoint before the end.

        Slurm decides whether a job that got TERM is requeued, because a user may have cancelled it.
        """
        with suppress(ValueError):  # not in the main thread, as with submitit's executor `debug`
            preemption_handler = signals.getsignal(signals.SIGUSR2)
            if callable(preemption_handler):
                signals.signal(signals.SIGUSR1, preemption_handler)
            signals.signal(signals.SIGTERM, self._on_terminate)

    def _on_terminate(self, number: int, frame: Any) -> None:
        self._terminated = True
        self._process.send(signals.SIGTERM)

    def _requested_signal(self) -> int:
        with suppress(OSError, ValueError):
            return int((Path(self.folder) / "stop").read_text(encoding="utf-8"))
        return 0

    def _write_state(self, status: str, result: JobEnded | None = None) -> None:
        state: dict[str, Any] = {"status": status, "location": self._process.location}
        if result is not None:
            state |= {"code": result.code, "signal": result.signal, "last": result.last_line}
        path = Path(self.folder) / STATE_FILE
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(state), encoding="utf-8")
        temporary.replace(path)


INTERRUPTED: Final = 143


def read_state(folder: Path) -> dict[str, Any] | None:
    """Return the state of the job in this folder, None before it starts."""
    with suppress(OSError, ValueError):
        state: dict[str, Any] = json.loads((folder / STATE_FILE).read_bytes())
        return state
    return None

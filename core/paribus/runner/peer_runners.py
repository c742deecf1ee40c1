"""What other runners of the same study do: whom to leave alone, and whose trials to take over."""

from __future__ import annotations

from typing import Final, final

from paribus.errors import Problem
from paribus.storage.lease import LeaseMonitor
from paribus.storage.store import Store, Trial

LOCKED_SECONDS: Final = 5.0  # how long to wait for trials that others run, once nothing else is left


@final
class PeerRunners:
    """The claims that other processes have on trials of this store."""

    def __init__(self, store: Store, watch: LeaseMonitor) -> None:
        self.store = store
        self.watch = watch
        self.gone: dict[str, str] = {}  # of trials whose holder has died elsewhere: its last token

    def elsewhere(self, trial: Trial) -> bool:
        """Whether another machine runs it, so that a process here would only find that out."""
        return not self.free(trial) and self.store.lock(trial.identity).is_remote()

    def free(self, trial: Trial) -> bool:
        """Whether nobody runs it, or only somebody who is dead."""
        claim = self.store.lock(trial.identity)
        if claim.is_free():
            self.gone.pop(trial.identity, None)
            return True
        if claim.is_remote():
            state, token = self.watch.judge(claim.lease)
            if state == "expired":
                self.gone[trial.identity] = token
                return True
        return False

    def alive(self, trial: Trial) -> bool:
        """Whether its holder is known to live."""
        claim = self.store.lock(trial.identity)
        return not claim.is_remote() or self.watch.judge(claim.lease)[0] == "alive"

    def held(self, trial: Trial) -> Problem:
        claim = self.store.lock(trial.identity)
        what = f"trial {trial.label}, is run by {claim.owner() or 'another process'}"
        return Problem(code="locked", location=str(claim.path), message=what, valid="wait for it, or end that process")

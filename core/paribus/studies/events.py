"""What happens while trials run, for whoever shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

from paribus.studies.store import State, Trial

Kind = Literal["rehearsed", "started", "progress", "ended", "more", "note"]


@final
@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened; `trial` is None where it concerns all of them.

    rehearsed: a variant took its first step, of `trial`'s spec; where it could not, `state` and `text` say why
    started:   the trial's process runs; `attempt` counts from 1
    progress:  `step` of `steps`, with its `loss`
    ended:     the trial came to `state`; why, if not done, is in `text`
    more:      trials that are known since, as `text` says
    note:      `text` is for the user
    """

    kind: Kind
    trial: Trial | None = None
    attempt: int = 1
    step: int = 0
    steps: int = 0
    loss: float | None = None
    state: State | None = None
    text: str = ""
    more: tuple[Trial, ...] = ()


OnEvent = Callable[[Event], None]


def unwatched(event: Event) -> None:
    """For runs that nobody watches."""

"""The slot `schedule`: the learning rate over a run."""

from __future__ import annotations

from abc import ABC, abstractmethod

from paribus.slots.component import Component


class Schedule(Component, ABC):
    """Says by what the optimizer's learning rate is multiplied at each step."""

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """For step `step` (from 0) of a run of `steps`; a function of these alone, so that a run can be resumed."""

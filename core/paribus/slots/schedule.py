"""Slot `schedule`: learning rate schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from paribus.slots.component import Component, Traits


class ScheduleTraits(Traits, total=False):
    """Traits of a schedule."""

    idle_steps: bool  # the factor of the first or last step may be 0, which wastes the step; default: False


class Schedule(Component, ABC):
    """Learning rate schedule: the factor of the optimizer's learning rate at each step."""

    traits: ClassVar[ScheduleTraits] = {}

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """Return the factor at step `step` (from 0) of `steps`: from 0 to 1, which is the optimizer's learning rate.

        It must depend on these only, so that a run can be resumed.
        """

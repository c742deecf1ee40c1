"""Slot `schedule`: learning rate schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod

from paribus.slots.component import Component


class Schedule(Component, ABC):
    """Learning rate schedule: the factor of the optimizer's learning rate at each step."""

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """Return the factor at step `step` (from 0) of `steps`. It must depend on these only, so that a run can be
        resumed.
        """

"""Options of a trial that do not change its result; importable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final


@final
@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """Options of a trial, passed from the options of a run to the training loop as JSON."""

    checkpoint_seconds: float = 30.0
    checkpoint_steps: int | None = None  # checkpoint every so many steps instead; for tests
    contended: bool = False  # other trials share the machine, so that measured speeds are rough
    loggers: tuple[Mapping[str, Any], ...] = ()  # Lightning loggers, by name and options

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> TrialOptions:
        return cls(**{**document, "loggers": tuple(document["loggers"])})

"""Optimizers, and schedules of their learning rate."""

from __future__ import annotations

from collections.abc import Mapping

from paribus import Optimizer, Schedule, hookimpl, offered
from paribus_optim.adamw import AdamW as adamw
from paribus_optim.constant import Constant as constant
from paribus_optim.inverse_sqrt import InverseSqrt as inverse_sqrt
from paribus_optim.warmup_cosine import WarmupCosine as warmup_cosine


@hookimpl
def optimizer() -> Mapping[str, type[Optimizer]]:
    return offered(globals(), Optimizer)


@hookimpl
def schedule() -> Mapping[str, type[Schedule]]:
    return offered(globals(), Schedule)

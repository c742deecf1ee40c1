"""Launchers: local processes, Ray and Slurm."""

from __future__ import annotations

from collections.abc import Mapping

from paribus import Launcher, hookimpl, registered
from paribus_launch.local import Local as local
from paribus_launch.ray import Ray as ray
from paribus_launch.slurm import Slurm as slurm


@hookimpl
def launcher() -> Mapping[str, type[Launcher]]:
    return registered(globals(), Launcher)

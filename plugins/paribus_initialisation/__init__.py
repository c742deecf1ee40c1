"""Initialisation components: from standard normal draws to initial weights."""

from __future__ import annotations

from collections.abc import Mapping

from paribus import Initialisation, hookimpl, registered
from paribus_initialisation.by_role import ByRole as by_role
from paribus_initialisation.gated_linear_unit import GatedLinearUnit as gated
from paribus_initialisation.gpt2 import Gpt2 as gpt2
from paribus_initialisation.maximal_update import MaximalUpdate as mup
from paribus_initialisation.normal import Normal as normal
from paribus_initialisation.t5 import T5 as t5
from paribus_initialisation.truncated import Truncated as truncated
from paribus_initialisation.unit import Unit as unit
from paribus_initialisation.xavier import Xavier as xavier


@hookimpl
def initialisation() -> Mapping[str, type[Initialisation]]:
    return registered(globals(), Initialisation)

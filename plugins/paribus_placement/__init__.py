"""Placements: how norms, sublayers and the residual stream are wired."""

from __future__ import annotations

from collections.abc import Mapping

from paribus import Placement, hookimpl, offered
from paribus_placement.post_norm import PostNorm as post
from paribus_placement.pre_norm import PreNorm as pre


@hookimpl
def placement() -> Mapping[str, type[Placement]]:
    return offered(globals(), Placement)

"""When a study may stop early: `stop: when-decided`, and the numbers of seeds at which it looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from paribus.errors import listed
from paribus.specs.tree import shown
from paribus.specs.values import Checking

WHEN: Final = "when-decided"
WRITTEN: Final = f"{WHEN}, or {{when: decided, looks: [3, 5, 8]}}"
FIRST: Final = (3, 5, 8, 12, 18, 27, 40, 60, 90, 135, 200)  # each about half as many again
NEAR: Final = 0.75  # of all seeds: a look beyond it would save less than it costs
ONE_TABLE: Final = ("one-at-a-time", "grid", "list", "leave-one-out")  # designs whose every claim is variant - baseline


def looks_of(checking: Checking, given: Mapping[str, Any], design: str, seeds: Sequence[int]) -> tuple[int, ...]:
    """The numbers of seeds at which verdicts are taken, the last of which is all; none where nothing stops early."""
    asked = given.get("stop")
    if asked is None:
        return ()
    if given.get("tune") is not None:
        what = "a look is at all tables together, and that of what is tuned has no trials before its tuning has ended"
        checking.wrong("not-together", ("stop",), what, "`stop` in a study without `tune`")
    if design not in ONE_TABLE:
        what = f"the design `{design}` holds variants against one another too, so it needs all seeds of each"
        checking.wrong("not-together", ("stop",), what, listed(ONE_TABLE))
    if isinstance(asked, Mapping):
        for key in asked:
            if key not in ("when", "looks"):
                checking.unknown(key, ("stop", key), ("when", "looks"))
        if asked.get("when", "decided") not in ("decided", WHEN):
            checking.wrong("wrong-type", ("stop", "when"), f"this is {shown(asked['when'])}", "decided")
        if "looks" in asked:
            return _given(checking, asked["looks"], len(seeds))
    elif asked != WHEN:
        checking.wrong("wrong-type", ("stop",), f"this is {shown(asked)}", WRITTEN)
        return ()
    return _usual(checking, len(seeds))


def _usual(checking: Checking, seeds: int) -> tuple[int, ...]:
    """3, 5, 8 … and all."""
    early = tuple(look for look in FIRST if look <= NEAR * seeds)
    if not early:
        what = f"with {seeds} seeds there is no look before the last, so nothing could stop early"
        checking.wrong("not-read", ("stop",), what, "seeds: 4, or more")
    return (*early, seeds)


def _given(checking: Checking, looks: Any, seeds: int) -> tuple[int, ...]:
    whole = isinstance(looks, list) and all(isinstance(look, int) and not isinstance(look, bool) for look in looks)
    valid = f"numbers of seeds that grow, from 2 to {seeds}, which is all: [3, {seeds}]"
    if not whole or len(looks) < 2 or looks[0] < 2 or any(after <= before for before, after in pairwise(looks)):
        checking.wrong("wrong-type", ("stop", "looks"), f"this is {shown(looks)}", valid)
        return ()
    if looks[-1] != seeds:
        what = f"the last look is at {looks[-1]} seeds, and the study has {seeds}"
        checking.wrong("wrong-type", ("stop", "looks"), what, valid)
    return tuple(looks)

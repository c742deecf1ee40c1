"""Every preset of a size to train here can be asked: to write, to fill a gap, or it says that it does neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

import paribus
from paribus.errors import ParibusError
from paribus.registry import installed
from paribus.train.model import Model

NEITHER: Final = {"no-image", "cannot-write", "cannot-fill"}
TINY: Final = sorted(name for name in installed().index.presets if name.endswith("-tiny"))


def said(ask: Callable[[], Any]) -> str:
    """Nothing, or the code of what was told instead."""
    try:
        ask()
    except ParibusError as error:
        return error.problems[0].code
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_it_writes_or_fills_or_says_why_not_and_shows_what_it_weighs(name: str) -> None:
    model: Model = paribus.assemble(paribus.spec(name))
    crosses = any(part.cross for part in model.topology.parts)
    languages = (model.text.languages if model.text is not None else ()) if crosses else ()
    spoken: dict[str, Any] = dict(zip(("language", "source_language"), languages, strict=False))
    writes = said(lambda: paribus.generate(model, ["The first", "A"], tokens=4, beam=2, n=2, **spoken))
    fills = said(lambda: paribus.fill(model, "The <mask> is"))
    assert {writes, fills} - {""} <= NEITHER
    source = "One" if crosses else None
    shows = said(lambda: paribus.attend(model, "The", source=source, **spoken).map())
    assert shows in ("", "no-weights", "no-image")
    if next(part.causal for part in model.topology.parts if part.path == "body"):
        assert writes == ""

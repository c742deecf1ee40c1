"""Every tiny preset generates text, fill_error masks, or refuses with a documented error code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch

import paribus
from paribus.errors import ParibusError
from paribus.models.lightning_module import Model
from paribus.registry import installed

NEITHER: Final = {"not-an-image", "cannot-write", "cannot-fill"}
TINY: Final = sorted(name for name in installed().index.presets if name.endswith("-tiny"))


def error_code(ask: Callable[[], Any]) -> str:
    """Return the error code of a call, or an empty string."""
    try:
        ask()
    except ParibusError as error:
        return error.problems[0].code
    return ""


def assert_weights_of_scores(model: Model, **options: Any) -> None:
    """Assert that each layer's weights are the softmax of its scores, or that a reason is given why it has none."""
    maps = paribus.attend(model, "The", scores=True, **options)
    maps.map()
    for weights, scores, reason in zip(maps.layers, maps.scores, maps.reasons, strict=True):
        assert (scores is None) == bool(reason)
        if scores is not None and weights is not None and scores.is_softmax:
            torch.testing.assert_close(scores.softmax(), weights, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_preset_generates_fills_or_refuses_and_returns_attention_maps(name: str) -> None:
    model: Model = paribus.assemble(paribus.spec(name))
    has_cross_attention = any(part.cross for part in model.topology.parts)
    languages = (model.text.languages if model.text is not None else ()) if has_cross_attention else ()
    language_options: dict[str, Any] = dict(zip(("language", "source_language"), languages, strict=False))
    generate_error = error_code(
        lambda: paribus.generate(model, ["The first", "A"], tokens=4, beam=2, n=2, **language_options)
    )
    fill_error = error_code(lambda: paribus.fill(model, "The <mask> is"))
    assert {generate_error, fill_error} - {""} <= NEITHER
    source = "One" if has_cross_attention else None
    attend_error = error_code(lambda: assert_weights_of_scores(model, source=source, **language_options))
    assert attend_error in ("", "missing-weights", "not-an-image")
    if next(part.causal for part in model.topology.parts if part.path == "body"):
        assert generate_error == ""

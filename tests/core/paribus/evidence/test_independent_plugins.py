"""Mistakes of an author who had not read the checks, in trials of six steps without `conform`."""

from pathlib import Path
from typing import Any, Final, cast

import pytest
import yaml

from paribus.errors import SpecError
from paribus.registry import LazyRegistry, Registry, index
from paribus.specs import resolved
from paribus.train.trial import TrialContext, run_trial

FOLDER = Path(__file__).parent / "independent_plugins"
FEW: Final = 30  # one of so many runs each time
TABLE: list[dict[str, Any]] = yaml.safe_load((FOLDER / "table.yaml").read_text(encoding="utf-8"))


def _spec(row: dict[str, Any], registry: Registry) -> dict[str, Any]:
    slot, name = row["component"].split(".")
    sizes = ("dims.width=16", "dims.layers=2", "dims.heads=4", "data.batch=8", "data.validation=16")
    words = (f"{slot}={name}", *row.get("overrides", ()), *sizes, "trainer.max_steps=6", "trainer.accelerator=cpu")
    options = (("dropout=0.1", "corpus=copy"), ("dropout=0.1", "corpus=python-docs"), ())
    for more in options[1 - row["preset"].startswith("gpt") :]:
        try:
            return resolved(row["preset"], *words, *more, registry=registry)
        except SpecError:
            continue  # the component takes no dropout
    return resolved(row["preset"], *words, registry=registry)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=[pytest.mark.slow if number % FEW else pytest.mark.thorough], id=row["plugin"])
        for number, row in enumerate(TABLE)
    ],
)
def test_the_mistake_of_a_plugin_is_found_as_recorded(row: dict[str, Any], tmp_path: Path) -> None:
    registry = cast(Registry, LazyRegistry(index(plugins=[FOLDER / f"{row['plugin']}.py"])))
    messages: list[str] = []
    context = TrialContext("x", tmp_path, on_message=messages.append)
    properties = run_trial(_spec(row, registry), registry, context)["result"]["certificate"]["properties"]
    assert "unchecked" not in properties
    if "found" in row:
        assert row["found"] in properties
        assert any(row["found"] in message for message in messages)
    else:
        assert properties == {}

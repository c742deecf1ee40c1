"""A resolved spec from before an option existed: it is completed with the default of the option."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from paribus.hookspecs import SLOTS
from paribus.registry import Index, index
from paribus.specs import resolved
from paribus.specs.components import with_new_options

PRESETS = sorted(name for name in index().presets if name.endswith("-tiny"))


def optional(slot: str, node: Any, components: Index) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each option that has its default, with the mapping that holds it."""
    for item in node if isinstance(node, list) else [node]:
        for option in components.find(slot, item["name"]).options:
            default = list(option.default) if isinstance(option.default, tuple) else option.default
            if not option.required and option.kind.name != "slot" and item.get(option.name, ...) == default:
                yield item, option.name
            if option.kind.name == "group" and isinstance(item.get(option.name), dict):
                for field in option.kind.options:
                    if item[option.name].get(field.name, ...) == field.default:
                        yield item[option.name], field.name


@pytest.mark.parametrize("preset", PRESETS)
def test_options_that_a_spec_lacks_have_their_defaults(preset: str) -> None:
    components = index()
    spec = resolved(preset)
    older = copy.deepcopy(spec)
    removed = [place for slot in SLOTS if older.get(slot) for place in optional(slot, older[slot], components)]
    for item, name in removed:
        item.pop(name, None)
    for key, name in (("data", "bucket"), ("dims", "groups")):
        if older[key][name] in (0, None):
            del older[key][name]
    assert len(removed) > 5
    assert older != spec
    assert with_new_options(older, components) == spec
    assert with_new_options(spec, components) == spec


def test_other_values_are_left_as_they_are() -> None:
    spec = resolved("gpt-tiny", "attention={name: gqa, kv_heads: 2, scores: {sinks: true}}", "norm.eps=1e-3")
    assert with_new_options(spec, index()) == spec
    strange = {**spec, "norm": {"name": "gone", "size": 3}}
    assert with_new_options(strange, index()) == strange

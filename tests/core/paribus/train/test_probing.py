"""Options that are set beside other changes are put back one by one, and what then stays the same was ignored."""

from typing import Any

import pytest
import torch

from paribus.registry import Registry
from paribus.specs.resolve import resolved
from paribus.train.probing import ignored, settings
from paribus.train.tokens import Encoded

SMALL = {"preset": "encoder-tiny", "dims": {"width": 16, "layers": 1, "heads": 4, "length": 16}}


def spec(components: Registry, **changes: Any) -> dict[str, Any]:
    return dict(resolved({**SMALL, **changes}, registry=components))


def test_an_option_is_found_wherever_a_study_named_it(components: Registry) -> None:
    attention = {"name": "gqa", "kv_heads": 1, "scores": {"qk_norm": True}}
    whole = spec(components, attention=attention, optimizer={"name": "adamw", "lr": 0.1})
    ways: dict[str, Any] = {"attention": attention, "dims.width": 16, "optimizer.lr": 0.1}
    found = {each.path: (each.value, each.other) for each in settings(whole, ways, components.index)}
    assert found.keys() == {"attention.kv_heads", "attention.scores.qk_norm"}
    assert found["attention.scores.qk_norm"] == (True, False)
    dotted = {"attention": "gqa", "attention.kv_heads": 1, "norm": "rmsnorm"}
    assert [each.path for each in settings(whole, dotted, components.index)] == ["attention.kv_heads"]


def test_of_one_change_alone_nothing_is_asked(components: Registry) -> None:
    unread: Any = None  # nothing is encoded, nothing is built
    assert ignored(spec(components, attention="mqa"), {"attention": "mqa"}, components, unread) == []


@pytest.mark.parametrize(
    "attention",
    [
        {"name": "gqa", "kv_heads": 1},
        {"name": "mha", "scores": {"qk_norm": True}},
        {"name": "restricted", "window": 3},
    ],
)
def test_what_has_a_say_is_not_ignored_and_asking_draws_nothing(
    components: Registry, text: Encoded, attention: dict[str, Any]
) -> None:
    whole = spec(components, attention=attention, norm="rmsnorm", data={"batch": 4, "validation": 8})
    before = torch.get_rng_state()
    assert ignored(whole, {"attention": attention, "norm": "rmsnorm"}, components, text) == []
    assert torch.equal(before, torch.get_rng_state())


def test_what_a_component_would_have_chosen_by_itself_is_not_ignored(components: Registry) -> None:
    """`inner: null` is a width of the component's own choice, and may be the very one that was set."""
    feedforward = {"name": "glu", "inner": 32}
    whole = spec(components, feedforward=feedforward, norm="rmsnorm")
    assert list(settings(whole, {"feedforward": feedforward, "norm": "rmsnorm"}, components.index)) == []

"""Specs that the rules reject would not work: models built without the rules show why."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from paribus import Stream
from paribus.registry import installed
from paribus.specs.load import load
from paribus.specs.resolve import check
from paribus.testing.matrix import Matrix
from paribus.testing.small_model import TOLERANCE, SmallModel, max_difference, replace_tokens, tokens

MATRIX = Matrix(installed())
TOKENS = tokens(1, 7)
PLAIN = {"attention": "mha", "position": "none", "placement": "pre", "norm": "layernorm", "feedforward": "mlp"}
ATTENTIONS = {name: MATRIX.index.entries["attention"][name].traits for name in MATRIX.index.entries["attention"]}
POSITIONS = {name: MATRIX.index.entries["position"][name].traits for name in MATRIX.index.entries["position"]}


def spec_of(topology: str, **choices: str) -> Mapping[str, Any]:
    return check(load(MATRIX.spec({"topology": topology, **PLAIN, **choices}), (), MATRIX.index), MATRIX.index)


def attention_node(name: str) -> Any:
    topology = "encoder" if ATTENTIONS[name].get("bidirectional", True) else "decoder"
    return spec_of(topology, attention=name)["attention"]


def rejected_positions() -> list[tuple[str, str]]:
    """Return each (attention, position) that the rules reject in a decoder because of the position."""
    row = {"topology": "decoder", **PLAIN}
    pairs = [(attention, position) for attention in ATTENTIONS for position in POSITIONS]
    return [
        (attention, position)
        for attention, position in pairs
        if any(
            problem.path == "position"
            for problem in MATRIX.kind_problems({**row, "attention": attention, "position": position})
        )
        and ATTENTIONS[attention]["causal"]
    ]


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize(
    ("attention", "position"), [pair for pair in rejected_positions() if not ATTENTIONS[pair[0]]["weights"]]
)
def test_rejected_position_would_be_ignored(attention: str, position: str) -> None:
    plain_spec = spec_of("decoder", attention=attention)
    spec = {**plain_spec, "position": spec_of("decoder", position=position)["position"]}
    expected = SmallModel(plain_spec, MATRIX.registry).hidden(TOKENS)
    assert torch.equal(SmallModel(spec, MATRIX.registry).hidden(TOKENS), expected)


@pytest.mark.parametrize(
    ("attention", "position"),
    [
        pair
        for pair in rejected_positions()
        if ATTENTIONS[pair[0]]["weights"] and "rotate" in POSITIONS[pair[1]]["hooks"]
    ],
)
def test_rejected_rotation_would_not_depend_on_distance_only(attention: str, position: str) -> None:
    spec = {
        **spec_of("decoder", attention=attention),
        "position": spec_of("decoder", position=position)["position"],
    }
    model, indices = SmallModel(spec, MATRIX.registry), torch.arange(7).unsqueeze(0)
    shifted = model.hidden(Stream(TOKENS, positions=indices + 3))
    assert max_difference(shifted, model.hidden(Stream(TOKENS, positions=indices))) > 1e-3
    valid_model = SmallModel(spec_of("decoder", position=position), MATRIX.registry)
    shifted = valid_model.hidden(Stream(TOKENS, positions=indices + 3))
    assert max_difference(shifted, valid_model.hidden(Stream(TOKENS, positions=indices))) <= TOLERANCE


@pytest.mark.parametrize(
    "attention",
    [name for name, traits in ATTENTIONS.items() if not traits["causal"] and traits.get("bidirectional", True)],
)
def test_rejected_bidirectional_attention_would_read_future_tokens(attention: str) -> None:
    spec = {**spec_of("decoder"), "attention": attention_node(attention)}
    model, changed = SmallModel(spec, MATRIX.registry), TOKENS.clone()
    changed[0, -1] = 20
    assert max_difference(model.hidden(changed)[:, :-1], model.hidden(TOKENS)[:, :-1]) > 1e-3


@pytest.mark.parametrize(
    "attention",
    # In stick-breaking attention, a query leaves out the key of its own place, which a memory does not have.
    [name for name, traits in ATTENTIONS.items() if not traits.get("cross") and name != "stick-breaking"],
)
def test_rejected_cross_attention_would_fail_or_misread_the_source(
    attention: str,
) -> None:
    spec = {
        **spec_of("encoder-decoder"),
        "parts": {"decoder": {"cross": {"attention": attention_node(attention), "position": {"name": "none"}}}},
    }
    try:
        model = SmallModel(spec, MATRIX.registry)
        source = tokens(1, 12, "source")
        plain = model.hidden(TOKENS, source=source)
    except (KeyError, RuntimeError):  # the attention expects a decoding state, or as many keys as queries
        return
    if max_difference(model.hidden(TOKENS, source=replace_tokens(source)), plain) <= TOLERANCE:
        return
    documents, indices = torch.zeros_like(source), torch.arange(12).unsqueeze(0)
    body = Stream(TOKENS, torch.zeros_like(TOKENS))
    expected = model.hidden(body, source=Stream(source, documents, indices))
    assert max_difference(model.hidden(body, source=Stream(source, documents, indices + 7)), expected) > 1e-3

"""What `check` refuses would not have run as its name says: built none the less, it shows why."""

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
ROWS = tokens(1, 7)
PLAIN = {"attention": "mha", "position": "none", "placement": "pre", "norm": "layernorm", "feedforward": "mlp"}
ATTENTIONS = {name: MATRIX.index.entries["attention"][name].traits for name in MATRIX.index.entries["attention"]}
POSITIONS = {name: MATRIX.index.entries["position"][name].traits for name in MATRIX.index.entries["position"]}


def spec_of(topology: str, **choices: str) -> Mapping[str, Any]:
    return check(load(MATRIX.spec({"topology": topology, **PLAIN, **choices}), (), MATRIX.index), MATRIX.index)


def attention_node(name: str) -> Any:
    return spec_of("encoder", attention=name)["attention"]


def unfit() -> list[tuple[str, str]]:
    """Every attention with every position that it never asks for, where rows see the past: xpos may stand there."""
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


@pytest.mark.parametrize(("attention", "position"), [pair for pair in unfit() if not ATTENTIONS[pair[0]]["weights"]])
def test_a_position_that_nobody_asks_would_be_ignored(attention: str, position: str) -> None:
    without = spec_of("decoder", attention=attention)
    with_it = {**without, "position": spec_of("decoder", position=position)["position"]}
    wanted = SmallModel(without, MATRIX.registry).hidden(ROWS)
    assert torch.equal(SmallModel(with_it, MATRIX.registry).hidden(ROWS), wanted)


@pytest.mark.parametrize(
    ("attention", "position"),
    [pair for pair in unfit() if ATTENTIONS[pair[0]]["weights"] and "rotate" in POSITIONS[pair[1]]["hooks"]],
)
def test_a_rotation_where_no_product_is_taken_would_no_longer_be_of_distances(attention: str, position: str) -> None:
    whole = {
        **spec_of("decoder", attention=attention),
        "position": spec_of("decoder", position=position)["position"],
    }
    made, ramp = SmallModel(whole, MATRIX.registry), torch.arange(7).unsqueeze(0)
    moved = made.hidden(Stream(ROWS, positions=ramp + 3))
    assert max_difference(moved, made.hidden(Stream(ROWS, positions=ramp))) > 1e-3
    fitting = SmallModel(spec_of("decoder", position=position), MATRIX.registry)
    moved = fitting.hidden(Stream(ROWS, positions=ramp + 3))
    assert max_difference(moved, fitting.hidden(Stream(ROWS, positions=ramp))) <= TOLERANCE


@pytest.mark.parametrize("attention", [name for name, traits in ATTENTIONS.items() if not traits["causal"]])
def test_an_attention_that_cannot_hide_the_future_would_show_it(attention: str) -> None:
    whole = {**spec_of("decoder"), "attention": attention_node(attention)}
    made, changed = SmallModel(whole, MATRIX.registry), ROWS.clone()
    changed[0, -1] = 20
    assert max_difference(made.hidden(changed)[:, :-1], made.hidden(ROWS)[:, :-1]) > 1e-3


@pytest.mark.parametrize("attention", [name for name, traits in ATTENTIONS.items() if not traits.get("cross")])
def test_an_attention_that_cannot_cross_would_fail_or_ignore_the_source_or_measure_distances_to_it(
    attention: str,
) -> None:
    whole = {
        **spec_of("encoder-decoder"),
        "parts": {"decoder": {"cross": {"attention": attention_node(attention), "position": {"name": "none"}}}},
    }
    try:
        made = SmallModel(whole, MATRIX.registry)
        source = tokens(1, 12, "source")
        plain = made.hidden(ROWS, source=source)
    except KeyError:  # it looks for what it kept of rows so far
        return
    if max_difference(made.hidden(ROWS, source=replace_tokens(source)), plain) <= TOLERANCE:
        return
    documents, ramp = torch.zeros_like(source), torch.arange(12).unsqueeze(0)
    body = Stream(ROWS, torch.zeros_like(ROWS))
    near = made.hidden(body, source=Stream(source, documents, ramp))
    assert max_difference(made.hidden(body, source=Stream(source, documents, ramp + 7)), near) > 1e-3

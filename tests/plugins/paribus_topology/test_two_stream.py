"""Two-stream topology: visibility and start of queries."""

from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import SpecError, Stream
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.testing.small_model import SmallModel, tokens

SMALL = "dims={width: 16, layers: 2, heads: 4, length: 16, vocabulary: 64}"
PLAIN = ("position.segments=false",)
BERT = ("position=learned", "embedding={segments: 2, normed: true}")
LENGTH = 6
ORDER = torch.tensor([[0, 4, 0, 2, 0, 6], [0, 0, 6, 2, 4, 0]])
ASKED = torch.tensor([[1, 3, 5], [2, 3, 4]])


@pytest.fixture(scope="module")
def components() -> Registry:
    return installed(no_plugins=True)


@pytest.fixture(params=[PLAIN, BERT], ids=["relative", "absolute"])
def model(request: pytest.FixtureRequest, components: Registry) -> SmallModel:
    return SmallModel(resolved("xlnet-tiny", SMALL, *request.param, registry=components), components)


def run(model: SmallModel, tokens: Tensor, **changes: Any) -> Tensor:
    with torch.no_grad():
        return model.hidden(Stream(tokens, order=ORDER, query_positions=ASKED)._replace(**changes))


def changed_positions(left: Tensor, right: Tensor) -> list[list[bool]]:
    result: list[list[bool]] = ((left - right).abs().amax(-1) > 1e-12).tolist()
    return result


def test_queries_see_earlier_tokens_in_the_order_but_not_their_own(model: SmallModel) -> None:
    layout = tokens(2, LENGTH)
    original = run(model, layout)
    assert original.shape == (2, LENGTH + 3, 16)
    for t in range(LENGTH):
        changed = layout.clone()
        changed[:, t] = 39 - (layout[:, t] == 39).long()
        of_content = (ORDER[:, t : t + 1] <= ORDER).tolist()
        of_asking = (ORDER.gather(1, ASKED) - 1 >= ORDER[:, t : t + 1]).tolist()
        expected = [[*content, *query_latents] for content, query_latents in zip(of_content, of_asking, strict=True)]
        assert changed_positions(run(model, changed), original) == expected


def test_queries_do_not_change_content_states(model: SmallModel) -> None:
    layout = tokens(2, LENGTH)
    alone = run(model, layout, query_positions=None)
    torch.testing.assert_close(run(model, layout)[:, :LENGTH], alone, rtol=0, atol=1e-12)
    fewer = run(model, layout, query_positions=ASKED[:, 1:2])
    torch.testing.assert_close(fewer[:, LENGTH], run(model, layout)[:, LENGTH + 1], rtol=0, atol=1e-12)


def test_queries_depend_on_their_position(model: SmallModel) -> None:
    query_latents = run(
        model,
        tokens(2, LENGTH),
        order=torch.tensor([[0, 0, 0, 2, 2, 2]] * 2),
        query_positions=torch.tensor([[3, 4, 5]] * 2),
    )
    assert changed_positions(query_latents[:, LENGTH + 1 :], query_latents[:, LENGTH:-1]) == [[True, True]] * 2


def test_queries_start_as_one_vector_without_token_or_segment(model: SmallModel) -> None:
    layout, kinds = tokens(2, LENGTH), torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)
    hidden = run(model, layout, segments=kinds, query_positions=ASKED[:, 1:2])
    swapped = kinds.clone().scatter_(1, ASKED[:, 1:2], 0)
    torch.testing.assert_close(
        run(model, layout, segments=swapped, query_positions=ASKED[:, 1:2])[:, LENGTH],
        hidden[:, LENGTH],
        rtol=0,
        atol=1e-12,
    )
    with torch.no_grad():
        model.topology.get_parameter("query.vector").add_(1.0)  # not constant, because a norm would remove a constant
        model.topology.get_parameter("query.vector")[0].add_(1.0)
    assert (
        changed_positions(run(model, layout, segments=kinds, query_positions=ASKED[:, 1:2]), hidden)
        == [[False] * LENGTH + [True]] * 2
    )


@pytest.mark.parametrize("overrides", [PLAIN, BERT], ids=["relative", "absolute"])
def test_without_queries_a_two_stream_model_is_an_encoder(overrides: tuple[str, ...], components: Registry) -> None:
    spec = resolved("xlnet-tiny", SMALL, *overrides, registry=components)
    encoder = resolved({**spec, "topology": "encoder"}, "objective=mlm", registry=components)
    models = [SmallModel(item, components) for item in (spec, encoder)]
    assert torch.equal(*(item.hidden(tokens(2, LENGTH)) for item in models))


def test_invalid_combinations_are_rejected(components: Registry) -> None:
    for overrides, message in (
        (["objective=mlm"], r"error\[does-not-fit\] objective.*second-stream"),
        (["topology=encoder"], r"error\[does-not-fit\].*second-stream"),
        (["attention=linear", "position=learned"], r"error\[does-not-fit\].*linear"),
        (["attention=[mha, lstm]", "position=learned"], r"error\[does-not-fit\].*lstm"),
        (["position=xpos"], r"error\[does-not-fit\].*xpos"),
    ):
        with pytest.raises(SpecError, match=message):
            resolved("xlnet-tiny", *overrides, registry=components)
    assert resolved("xlnet-tiny", "evaluate=mlm", registry=components)["topology"]["name"] == "two-stream"

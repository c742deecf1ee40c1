"""What rows say, and behind it rows that ask."""

from typing import Any

import pytest
import torch
from torch import Tensor

from paribus import SpecError, Stream
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.testing.small_model import Specimen, tokens

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
def made(request: pytest.FixtureRequest, components: Registry) -> Specimen:
    return Specimen(resolved("xlnet-tiny", SMALL, *request.param, registry=components), components)


def ran(made: Specimen, rows: Tensor, **changes: Any) -> Tensor:
    with torch.no_grad():
        return made.hidden(Stream(rows, order=ORDER, query_positions=ASKED)._replace(**changes))


def moved(one: Tensor, two: Tensor) -> list[list[bool]]:
    found: list[list[bool]] = ((one - two).abs().amax(-1) > 1e-12).tolist()
    return found


def test_queries_see_earlier_tokens_in_the_order_but_not_their_own(made: Specimen) -> None:
    rows = tokens(2, LENGTH)
    before = ran(made, rows)
    assert before.shape == (2, LENGTH + 3, 16)
    for t in range(LENGTH):
        changed = rows.clone()
        changed[:, t] = 39 - (rows[:, t] == 39).long()
        of_content = (ORDER[:, t : t + 1] <= ORDER).tolist()
        of_asking = (ORDER.gather(1, ASKED) - 1 >= ORDER[:, t : t + 1]).tolist()
        expected = [[*content, *asking] for content, asking in zip(of_content, of_asking, strict=True)]
        assert moved(ran(made, changed), before) == expected


def test_queries_do_not_change_content_states(made: Specimen) -> None:
    rows = tokens(2, LENGTH)
    alone = ran(made, rows, query_positions=None)
    torch.testing.assert_close(ran(made, rows)[:, :LENGTH], alone, rtol=0, atol=1e-12)
    fewer = ran(made, rows, query_positions=ASKED[:, 1:2])
    torch.testing.assert_close(fewer[:, LENGTH], ran(made, rows)[:, LENGTH + 1], rtol=0, atol=1e-12)


def test_queries_depend_on_their_position(made: Specimen) -> None:
    asking = ran(
        made,
        tokens(2, LENGTH),
        order=torch.tensor([[0, 0, 0, 2, 2, 2]] * 2),
        query_positions=torch.tensor([[3, 4, 5]] * 2),
    )
    assert moved(asking[:, LENGTH + 1 :], asking[:, LENGTH:-1]) == [[True, True]] * 2


def test_queries_start_as_one_vector_without_token_or_segment(made: Specimen) -> None:
    rows, kinds = tokens(2, LENGTH), torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)
    hidden = ran(made, rows, segments=kinds, query_positions=ASKED[:, 1:2])
    swapped = kinds.clone().scatter_(1, ASKED[:, 1:2], 0)
    torch.testing.assert_close(
        ran(made, rows, segments=swapped, query_positions=ASKED[:, 1:2])[:, LENGTH],
        hidden[:, LENGTH],
        rtol=0,
        atol=1e-12,
    )
    with torch.no_grad():
        made.topology.get_parameter("query.vector").add_(1.0)  # a norm behind it takes none of this away
        made.topology.get_parameter("query.vector")[0].add_(1.0)
    assert (
        moved(ran(made, rows, segments=kinds, query_positions=ASKED[:, 1:2]), hidden) == [[False] * LENGTH + [True]] * 2
    )


@pytest.mark.parametrize("overrides", [PLAIN, BERT], ids=["relative", "absolute"])
def test_without_queries_it_is_an_encoder(overrides: tuple[str, ...], components: Registry) -> None:
    spec = resolved("xlnet-tiny", SMALL, *overrides, registry=components)
    encoder = resolved({**spec, "topology": "encoder"}, "objective=mlm", registry=components)
    made = [Specimen(each, components) for each in (spec, encoder)]
    assert torch.equal(*(each.hidden(tokens(2, LENGTH)) for each in made))


def test_invalid_combinations_are_rejected(components: Registry) -> None:
    for overrides, said in (
        (["objective=mlm"], "has a `second-stream`, which no objective asks"),
        (["topology=encoder"], "needs a `second-stream`, which the topology `encoder` has not"),
        (["attention=linear", "position=learned"], "`linear` lets none ask behind its keys"),
        (["attention=[mha, lstm]", "position=learned"], "`lstm` lets none ask behind its keys"),
        (["position=xpos"], "more than that"),
    ):
        with pytest.raises(SpecError, match=said):
            resolved("xlnet-tiny", *overrides, registry=components)
    assert resolved("xlnet-tiny", "evaluate=mlm", registry=components)["topology"]["name"] == "two-stream"

"""How wide a feed-forward is inside."""

import pytest

from paribus_feedforward.inner_width import inner_width


@pytest.mark.parametrize(("expand", "width", "expected"), [(4.0, 6, 24), (8 / 3, 10, 27), (0.01, 10, 1)])
def test_it_is_the_nearest_whole_number_of_widths_and_at_least_1(expand: float, width: int, expected: int) -> None:
    assert inner_width(width, expand, 4.0, None) == expected


@pytest.mark.parametrize("expand", [4.0, None])
def test_one_that_is_given_decides(expand: float | None) -> None:
    assert inner_width(6, expand, 4.0, 17) == 17


def test_two_that_are_given_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got both `inner` \(17\) and `expand` \(2\)"):
        inner_width(6, 2.0, 4.0, 17)


def test_none_that_is_given_is_refused() -> None:
    with pytest.raises(ValueError, match=r"both null.* expand: 4"):
        inner_width(6, None, 4.0, None)

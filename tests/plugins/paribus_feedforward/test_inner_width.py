"""Inner width of feed-forwards."""

import pytest

from paribus_feedforward.inner_width import inner_width


@pytest.mark.parametrize(("expand", "width", "expected"), [(4.0, 6, 24), (8 / 3, 10, 27), (0.01, 10, 1)])
def test_expand_is_rounded_to_at_least_1(expand: float, width: int, expected: int) -> None:
    assert inner_width(width, expand, 4.0, None) == expected


@pytest.mark.parametrize("expand", [4.0, None])
def test_either_option_sets_the_width(expand: float | None) -> None:
    assert inner_width(6, expand, 4.0, 17) == 17


def test_both_options_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"got both `inner` \(17\) and `expand` \(2\)"):
        inner_width(6, 2.0, 4.0, 17)


def test_neither_option_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"both null.* expand: 4"):
        inner_width(6, None, 4.0, None)

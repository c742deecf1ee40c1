"""`raises_problem` accepts an error only with the code and each value."""

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import DataError, Problem, SpecError

ERROR = SpecError(
    Problem(code="unknown-key", message='unknown key "widht"'),
    Problem(code="out-of-range", path="dims.width", message="got 17", valid="≥ 1"),
)


def test_a_problem_with_the_code_and_the_values_is_accepted() -> None:
    with raises_problem(SpecError, "out-of-range", "dims.width", 17, "≥ 1") as raised:
        raise ERROR
    assert raised.value is ERROR


@pytest.mark.parametrize(
    ("code", "value"), [("wrong-type", 17), ("out-of-range", 7), ("out-of-range", "widht"), ("unknown-key", 17)]
)
def test_another_code_part_of_a_value_and_a_value_of_another_problem_are_refused(code: str, value: object) -> None:
    with pytest.raises(AssertionError, match="xpected"), raises_problem(SpecError, code, value):
        raise ERROR


def test_another_error_is_not_caught() -> None:
    with pytest.raises(SpecError, match="out-of-range"), raises_problem(DataError, "out-of-range"):
        raise ERROR

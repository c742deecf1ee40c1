"""Special tokens of objectives, and the error for a missing one."""

from tests.fixtures.problems import raises_problem

from paribus import SpecError, Vocabulary
from paribus_objective import special_tokens


def test_a_special_token_is_found_by_its_name() -> None:
    assert special_tokens.require(Vocabulary(9, {"mask": 7}), "mask", "mlm") == 7


def test_a_missing_special_token_is_refused_with_the_known_ones() -> None:
    with raises_problem(SpecError, "missing-special-token", "tokenizer", "mask"):
        special_tokens.require(Vocabulary(9, {"pad": 0, "eos": 1}), "mask", "masking")
    with raises_problem(SpecError, "missing-special-token", "tokenizer"):
        special_tokens.require(Vocabulary(9, {}), "mask", "masking")

"""Scores of single answers in a record."""

import json

import pytest

from paribus.storage.answers import decode_scores, encode_scores


@pytest.mark.parametrize("scores", [[1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0], [0.0] * 9, [0.25, 0.0, 0.5]])
def test_scores_are_read_as_they_were_written(scores: list[float]) -> None:
    assert decode_scores(json.loads(json.dumps(encode_scores(scores, "q")))) == scores


def test_right_and_wrong_answers_take_a_bit_each() -> None:
    assert len(json.dumps(encode_scores([1.0, 0.0] * 250, "0" * 16))) < 160

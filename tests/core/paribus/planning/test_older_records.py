"""What has changed since a record was made: each part is named, and none is missed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.planning.older_records import changed_parts
from paribus.storage.store import Trial

TRIAL = Trial("identity", "mqa", 0, {}, {}, "code", "corpus", components={"attention.mqa": "a", "norm.layernorm": "n"})


def test_nothing_has_changed_since_the_same_code_and_data() -> None:
    assert changed_parts(TRIAL.document(), TRIAL) == ()


@pytest.mark.parametrize(
    ("edits", "changed"),
    [
        ({"corpus": "other"}, ("the data",)),
        ({"code": "other", "engine": "engine 1234"}, ("the engine",)),
        ({"code": "other", "components": {"attention.mqa": "b", "norm.layernorm": "n"}}, ("attention.mqa",)),
        ({"code": "other", "components": {"attention.mqa": "a"}}, ("norm.layernorm",)),
        (
            {"code": "other", "corpus": "other", "engine": "e", "components": {"attention.mqa": "b"}},
            ("the data", "the engine", "attention.mqa", "norm.layernorm"),
        ),
        ({"code": "other"}, ("the code",)),
    ],
)
def test_the_part_that_has_changed_is_named(edits: dict[str, Any], changed: tuple[str, ...]) -> None:
    assert changed_parts({**TRIAL.document(), **edits}, TRIAL) == changed


def test_a_record_of_an_earlier_version_has_changed_code() -> None:
    document = {key: value for key, value in TRIAL.document().items() if key not in ("components", "engine")}
    assert changed_parts({**document, "code": "other"}, TRIAL) == ("the code",)


@given(
    code=st.sampled_from(["code", "other"]),
    corpus=st.sampled_from(["corpus", "other"]),
    engine=st.sampled_from([None, "epoch 1", "engine 1234"]),
    components=st.sampled_from([None, {}, {"attention.mqa": "a", "norm.layernorm": "n"}, {"attention.mqa": "b"}]),
)
def test_a_record_of_other_code_or_data_is_never_taken_for_one_of_these(
    code: str, corpus: str, engine: str | None, components: dict[str, str] | None
) -> None:
    edits = {"code": code, "corpus": corpus, "engine": engine, "components": components}
    document = {**TRIAL.document(), **{key: value for key, value in edits.items() if value is not None}}
    trial = replace(TRIAL)
    assert bool(changed_parts(document, trial)) == ((code, corpus) != ("code", "corpus"))

"""Suggestions for keys that other libraries use."""

from __future__ import annotations

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.registry import Index
from paribus.specs import resolved
from paribus.specs.fields import DIMS, KEYS, SYNONYMS, suggest_key

SUGGESTIONS = {
    "depth": "dims.layers",
    "dims.depth": "layers",
    "d_model": "dims.width",
    "dims.d_model": "width",
    "n_layers": "dims.layers",
    "n_heads": "dims.heads",
    "attention.n_heads": "dims.heads",
    "d_ff": "feedforward.inner",
    "feedforward.d_ff": "inner",
    "batch_size": "data.batch",
    "data.batch_size": "batch",
    "lr": "optimizer.lr",
    "optimizer.learning_rate": "lr",
    "trainer.lr": "optimizer.lr",
    "seq_len": "dims.length",
    "vocab_size": "dims.vocabulary",
    "epochs": "trainer.max_steps",
    "trainer.epochs": "max_steps",
    "steps": "trainer.max_steps",
    "trainer.steps": "max_steps",
}


@pytest.mark.few(6)
@pytest.mark.parametrize("key", SUGGESTIONS)
def test_a_synonym_suggests_the_key(key: str, plugin_index: Index) -> None:
    with raises_problem(SpecError, "unknown-key") as caught:
        resolved("encoder-tiny", f"{key}=3", registry=plugin_index)
    assert [problem.suggestion for problem in caught.value.problems] == [SUGGESTIONS[key]]


def test_a_misspelt_key_suggests_the_nearest_key() -> None:
    assert suggest_key("optimiser", KEYS) == "optimizer"
    assert suggest_key("zzz", KEYS) == ""


def test_every_synonym_suggests_a_key_of_a_spec() -> None:
    assert {key.partition(".")[0] for key in SYNONYMS.values()} <= set(KEYS)
    sizes = {option.name for option in DIMS}
    assert {key.partition(".")[2] for key in SYNONYMS.values() if key.startswith("dims.")} <= sizes

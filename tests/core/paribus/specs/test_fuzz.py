"""Fuzz tests: any input resolves to a valid spec or raises an error with problems."""

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from paribus.errors import ParibusError
from paribus.registry import Index
from paribus.specs import resolved
from paribus.specs.yaml_reader import read_yaml

KEYS = st.sampled_from(
    [
        "topology", "dims", "width", "heads", "length", "layers", "attention", "position", "name", "kv_heads", "scores",
        "bias", "cap", "feedforward", "expert", "objective", "parts", "decoder", "encoder", "cross", "data", "batch",
        "trainer", "seed", "evaluate", "corpus", "path", "betas", "plugins", "paribus", "preset", "_target_", "a.b",
        "tokenizer", "sentinels", "vocabulary", "embedding", "segments", "documents", "norm", "placement", "0", "", "x",
    ]
)  # fmt: skip
WORDS = st.sampled_from(
    [
        "mha", "gqa", "window", "fourier", "wide", "rope", "none", "learned", "experts", "endless", "mlm", "clm", "nsp",
        "apart", "spans", "pair", "encoder", "bare", "text", "base", "small", "round", "???", "${seed}", "${dims}",
        "${",
    ]
)  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-3, 70), st.floats(), WORDS, st.text(max_size=6)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
PATHS = st.lists(KEYS, min_size=1, max_size=4)
MANY = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


def assert_one_line_problems(error: ParibusError) -> None:
    assert error.problems
    assert all("\n" not in str(problem) for problem in error.problems)


def check_resolution(index: Index, source: Any, *overrides: str) -> None:
    """Check that a spec resolves to a spec that resolves to itself, or is refused with problems."""
    try:
        spec = resolved(source, *overrides, registry=index)
    except ParibusError as error:
        assert_one_line_problems(error)
        return
    assert resolved(spec, registry=index) == spec


@pytest.mark.thorough
@MANY
@given(base=st.sampled_from(["base", "seq", "gpt"]), changes=st.lists(st.tuples(PATHS, VALUES), max_size=4))
@example(base="base", changes=[(["dims", "width"], 10**400)])
@example(base="base", changes=[(["optimizer"], {"name": "adamw", "lr": 10**400})])
def test_a_spec_with_any_value_at_any_path(index: Index, base: str, changes: list[tuple[list[str], Any]]) -> None:
    check_resolution(index, {"preset": base, **{".".join(filter(None, path)) or "x": value for path, value in changes}})


@pytest.mark.thorough
@MANY
@given(VALUES)
def test_a_spec_of_any_value(index: Index, value: Any) -> None:
    check_resolution(index, value if isinstance(value, dict) else {"attention": value})


@pytest.mark.thorough
@MANY
@given(st.lists(st.tuples(PATHS, st.text(max_size=12)) | st.text(max_size=20), max_size=4))
def test_overrides_of_any_text(index: Index, overrides: list[Any]) -> None:
    check_resolution(index, "base", *(it if isinstance(it, str) else f"{'.'.join(it[0])}={it[1]}" for it in overrides))


@MANY
@given(st.text(alphabet=st.characters(codec="utf-8") | st.sampled_from("{}[]:,&*!|>-?'\"#%@` \n\t${}\\~"), max_size=60))
def test_any_yaml_text(text: str) -> None:
    check_yaml_text(text)


def check_yaml_text(text: str) -> None:
    """Assert that text is read, or rejected with one line per problem."""
    try:
        tree = read_yaml(text, "s.yaml")
    except ParibusError as error:
        assert_one_line_problems(error)
        return
    assert isinstance(tree.problems, list)


@MANY
@given(st.binary(max_size=80))
def test_any_bytes(data: bytes) -> None:
    check_yaml_text(data.decode(errors="surrogateescape"))

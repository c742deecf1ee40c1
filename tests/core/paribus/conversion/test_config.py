"""Conversion of Hugging Face configurations: keys that are read, and keys that are refused."""

import pytest

from paribus import Config, Key, SpecError

WIDTH = Key("hidden_size", "dims.width", 768)


def test_a_key_sets_the_matching_key_of_the_spec() -> None:
    spec: dict[str, object] = {"norm": {"name": "layernorm"}}
    config = Config({"hidden_size": 12, "act": "gelu_new", "rows": 20}, "x")
    config.put(spec, WIDTH)
    config.put(spec, Key("act", "feedforward.activation", "gelu", {"gelu_new": "gelu-tanh"}))
    config.put(spec, Key("rows", "dims.length", 2, read=lambda rows: rows - 2))
    config.put(spec, Key("eps", "norm.eps", 1e-5))
    config.done()
    assert spec == {
        "norm": {"name": "layernorm", "eps": 1e-5},
        "dims": {"width": 12, "length": 18},
        "feedforward": {"activation": "gelu-tanh"},
    }


def test_every_unread_key_is_reported() -> None:
    config = Config({"hidden_size": 12, "secret": True, "other": 1, "use_cache": False}, "x")
    config.put({}, WIDTH)
    with pytest.raises(SpecError, match="unknown-option") as wrong:
        config.done()
    assert [problem.path for problem in wrong.value.problems] == ["other", "secret"]
    assert "unknown option of the family `x`" in str(wrong.value)


def test_two_keys_of_one_option_must_agree() -> None:
    spec: dict[str, object] = {}
    config = Config({"one": 0.1, "two": 0.2}, "x")
    for name in ("one", "two"):
        config.put(spec, Key(name, "dropout", 0.0))
    with pytest.raises(
        SpecError, match=r"`two` is 0\.2 and `one` 0\.1, but `dropout` has one value; valid: .*two=0\.1"
    ):
        config.done()


def test_an_unsupported_value_is_refused_with_the_valid_values() -> None:
    config = Config({"act": "laplace", "relative": True}, "x")
    config.put({}, Key("act", "feedforward.activation", "gelu", {"gelu": "gelu", "relu": "relu"}))
    config.only("relative", False)
    with pytest.raises(SpecError, match=r"`act` is 'laplace'.*valid: gelu, relu\n.*`relative` is True.*valid: False"):
        config.done()

"""Their configuration, key by key: what is read, what is refused, what is never lost."""

import pytest

from paribus import Config, Key, SpecError

WIDTH = Key("hidden_size", "dims.width", 768)


def test_a_key_says_what_it_says_elsewhere_in_the_spec() -> None:
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


def test_every_key_that_nobody_read_is_told_of() -> None:
    config = Config({"hidden_size": 12, "secret": True, "other": 1, "use_cache": False}, "x")
    config.put({}, WIDTH)
    with pytest.raises(SpecError, match="unknown-option") as wrong:
        config.done()
    assert [problem.path for problem in wrong.value.problems] == ["other", "secret"]
    assert "unknown option of the family `x`" in str(wrong.value)


def test_two_keys_that_are_one_here_must_agree() -> None:
    spec: dict[str, object] = {}
    config = Config({"one": 0.1, "two": 0.2}, "x")
    for name in ("one", "two"):
        config.put(spec, Key(name, "dropout", 0.0))
    with pytest.raises(
        SpecError, match=r"`two` is 0\.2 and `one` 0\.1, but `dropout` has one value; valid: .*two=0\.1"
    ):
        config.done()


def test_a_value_that_no_component_has_is_refused_with_those_that_there_are() -> None:
    config = Config({"act": "laplace", "relative": True}, "x")
    config.put({}, Key("act", "feedforward.activation", "gelu", {"gelu": "gelu", "relu": "relu"}))
    config.only("relative", False)
    with pytest.raises(SpecError, match=r"`act` is 'laplace'.*valid: gelu, relu\n.*`relative` is True.*valid: False"):
        config.done()

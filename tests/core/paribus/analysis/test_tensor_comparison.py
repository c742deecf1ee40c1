"""Comparison of the tensors of baseline and variant, and short names for them."""

from typing import Any

import pytest

from paribus.analysis.tensor_comparison import MAX_PATHS, compare_tensors, short_names

LAYERS = [f"body.layers.{layer}.attention.heads" for layer in range(3)]


def begins(**changes: Any) -> dict[str, Any]:
    return {"shape": [2, 2], "draws": "d", "initialisation": "s", "value": "v", "signs": "+", **changes}


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ({}, "equal"),
        ({"initialisation": "other"}, "equal"),  # a bias is 0 at any scale
        ({"initialisation": "other", "value": "other"}, "scaled"),
        (
            {"initialisation": "other", "value": "other", "signs": ""},
            "scaled",
        ),  # one number throughout: nothing was drawn
        ({"shape": [2, 4], "draws": "other", "value": "other"}, "reshaped"),
        ({"value": "other"}, "leaked"),
        ({"value": "other", "signs": "-"}, "leaked"),
        ({"draws": "other", "value": "other"}, "leaked"),
        ({"draws": "other"}, "leaked"),
        ({"initialisation": "other", "value": "other", "signs": "-"}, "leaked"),
    ],
)
def test_a_tensor_is_equal_or_differs_for_a_known_reason(variant: dict[str, Any], expected: str) -> None:
    comparison = compare_tensors({"a.weight": begins()}, {"a.weight": begins(**variant)}, scheme=True)
    assert getattr(comparison, expected) == ("a.weight",)
    assert sum(len(getattr(comparison, kind)) for kind in ("equal", "scaled", "reshaped", "leaked")) == 1


def test_another_scheme_may_change_the_signs_of_equal_draws() -> None:
    rescaled = {"a.weight": begins(initialisation="other", value="other", signs="-")}
    assert compare_tensors({"a.weight": begins()}, rescaled, scheme=False).reinitialised == ("a.weight",)


def test_a_tensor_of_one_trial_was_added_or_removed() -> None:
    comparison = compare_tensors(
        {"a.weight": begins(), "b.weight": begins()}, {"a.weight": begins(), "c.weight": begins()}, scheme=True
    )
    assert (comparison.equal, comparison.removed, comparison.added) == (("a.weight",), ("b.weight",), ("c.weight",))
    assert comparison.total == 2
    assert comparison.introduced == {"c.weight"}
    assert comparison.changes == ("c added", "b removed")


def test_a_layer_keeps_its_number_if_others_of_its_name_are_equal() -> None:
    sequential = {f"net.{layer}.{leaf}": begins() for layer in (0, 1, 3) for leaf in ("weight", "bias")}
    without = {path: tensor for path, tensor in sequential.items() if not path.startswith("net.1.")}
    assert compare_tensors(sequential, without, scheme=True).changes == ("net.1 removed",)
    assert compare_tensors(sequential, {}, scheme=True).changes == ("net removed",)
    unbiased = {path: tensor for path, tensor in sequential.items() if path != "net.1.bias"}
    assert compare_tensors(sequential, unbiased, scheme=True).changes == ("net.1.bias removed",)
    of_layers = {f"{layer}.{head}.weight": begins() for layer in LAYERS for head in "kv"}
    partly = {path: tensor for path, tensor in of_layers.items() if path != f"{LAYERS[1]}.k.weight"}
    assert compare_tensors(of_layers, partly, scheme=True).changes == ("layers.1.attention.heads.k removed",)


def test_weights_and_biases_of_all_layers_share_a_name() -> None:
    assert (
        short_names(f"{layer}.{head}.{leaf}" for layer in LAYERS for head in "kv" for leaf in ("weight", "bias"))
        == "k, v"
    )


def test_a_bias_alone_is_called_a_bias() -> None:
    assert short_names(f"{layer}.q.bias" for layer in LAYERS) == "q.bias"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("body.layers.0.placement.norms.attention.weight", "norms.attention"),
        ("body.norm.weight", "body.norm"),
        ("body.position.0.table.weight", "position.table"),
        ("body.layers.0.feedforward.inner.weight", "inner"),
        ("objectives.mlm.bias", "objectives.mlm.bias"),
        ("body.layers.1.gate", "gate"),
        ("2.weight", "2"),
        ("bias", "bias"),
    ],
)
def test_a_short_name_is_unambiguous(path: str, name: str) -> None:
    assert short_names([path]) == name


def test_long_lists_of_names_end_with_a_count() -> None:
    assert short_names(f"body.layers.0.parts.inside.p{number}.weight" for number in range(MAX_PATHS + 3)).endswith(
        ", … 3 more"
    )

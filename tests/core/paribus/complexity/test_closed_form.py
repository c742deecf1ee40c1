"""Closed forms: polynomials from values, and those of registered attentions."""

from collections.abc import Callable
from fractions import Fraction

import pytest

from paribus.complexity.closed_form import (
    Polynomial,
    Variable,
    evaluate,
    fit_polynomial,
    leading,
    order_text,
    polynomial_text,
)
from paribus.complexity.derivation import closed_form
from paribus.complexity.sublayer import candidates
from paribus.registry import Registry, installed

PLAIN = ((0, 0), (1, 0), (2, 0))
N = Variable("n", PLAIN, (8, 16, 32), 48)
D = Variable("d", PLAIN, (8, 16, 32), 24)


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed()


def fitted(cost: Callable[[int, int], int]) -> Polynomial:
    polynomial = fit_polynomial(cost, [N, D])
    assert polynomial is not None
    return polynomial


def test_a_polynomial_is_recovered_exactly() -> None:
    polynomial = fitted(lambda n, d: 8 * n * d**2 + 4 * n**2 * d - 3 * n)
    assert polynomial_text(polynomial, ("n", "d")) == "4 n² d + 8 n d² - 3 n"
    assert order_text(polynomial, ("n", "d")) == "O(n² d + n d²)"
    assert evaluate(polynomial, (10, 10)) == 8000 + 4000 - 30


def test_coefficients_are_fractions() -> None:
    polynomial = fitted(lambda n, d: n * n // 2)
    assert list(polynomial.values()) == [Fraction(1, 2)]
    assert polynomial_text(polynomial, ("n", "d")) == "n²/2"


def test_a_cost_that_is_no_polynomial_has_none() -> None:
    assert fit_polynomial(lambda n, d: n**3 * d, [N, D]) is None


def test_a_variable_at_most_n_bounds_its_powers() -> None:
    n_b = ((1, 0), (1, 0))
    n, b_squared = ((1, 0), (0, 0)), ((0, 0), (2, 0))
    polynomial: Polynomial = {n_b: Fraction(1), n: Fraction(1), b_squared: Fraction(1)}
    assert set(leading(polynomial)) == {n_b, b_squared}
    assert leading(polynomial, [1]) == [n_b]


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("name", "causal", "order", "flops"),
    [
        ("mha", False, "O(n² d)", "4 n² d + 8 n d²"),
        ("restricted", False, "O(n d w)", "8 n d² + 8 n d w - 4 n d"),
        ("restricted", True, "O(n d w)", "8 n d² + 4 n d w"),
        ("linear", False, "O(n d²/h)", "8 n d² + 4 n d²/h"),
        ("linformer", False, "O(n d r)", "8 n d² + 8 n d r"),
        ("conv", False, "O(n d k)", "2 n d² + 2 n d k"),
        ("full-conv", False, "O(n d² k)", "2 n d² k"),
        ("dilated-conv", True, "O(n d² k)", "2 n d² k"),
        ("block-sparse", True, "O(n d b)", "8 n d² + 28 n d b"),
        ("lstm", True, "O(n d²)", "16 n d²"),
        ("qrnn", True, "O(n d² k)", "6 n d² k"),
        (
            "delta",
            True,
            "O(n d²/h + n d k + n h)",
            "8 n d² + 6 n d²/h + 2 n d h + 6 n d k + 256 n d + 680 n h",
        ),
        ("fourier", False, "O(n d log n + n d log d)", "5 n d log n + 5 n d log d"),
        ("identity", False, "0", "0"),
    ],
)
def test_closed_form_of_an_attention(registry: Registry, name: str, causal: bool, order: str, flops: str) -> None:
    form = closed_form(registry, candidates(registry, [name])[0], causal=causal)
    assert (form.order, form.text) == (order, flops)


def test_symbols_name_options(registry: Registry) -> None:
    form = closed_form(registry, candidates(registry, ["restricted"])[0], causal=False)
    assert form.options == {"w": "window"}

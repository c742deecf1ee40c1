"""Closed form of a cost: a polynomial with exact coefficients in n, d, h and an option, derived from its values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

Factor = tuple[int, int]  # power of a variable, and power of its logarithm
Monomial = tuple[Factor, ...]  # a factor for each variable
Polynomial = Mapping[Monomial, Fraction]

POWERS: Final = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Variable(NamedTuple):
    """Variable of a closed form: its symbol, its possible factors, and as many values at which the cost is computed."""

    symbol: str
    factors: tuple[Factor, ...]
    values: tuple[int, ...]
    test: int  # a value that the polynomial must predict


def fit_polynomial(cost: Callable[..., int], variables: Sequence[Variable]) -> Polynomial | None:
    """Return the polynomial that equals `cost` at all values, or None if it does not predict the cost elsewhere."""
    values: dict[tuple[Any, ...], Fraction] = {
        point: Fraction(cost(*point)) for point in itertools.product(*(variable.values for variable in variables))
    }
    for index, variable in enumerate(variables):
        inverse = _inverse([[_power(factor, value) for factor in variable.factors] for value in variable.values])
        values = _transformed(values, index, variable, inverse)
    polynomial = {monomial: value for monomial, value in values.items() if value}
    for point in _test_points(variables):
        if evaluate(polynomial, point) != cost(*point):
            return None
    return polynomial


def _test_points(variables: Sequence[Variable]) -> list[tuple[int, ...]]:
    """Return points that were not fitted: all variables changed, and each of them alone."""
    first = [variable.values[0] for variable in variables]
    alone = [
        tuple(variable.test if index == place else value for place, value in enumerate(first))
        for index, variable in enumerate(variables)
    ]
    return [tuple(variable.test for variable in variables), *alone]


def evaluate(polynomial: Polynomial, point: Sequence[int]) -> Fraction:
    """Return the value of a polynomial."""
    return sum(
        (
            coefficient * math.prod((_power(f, v) for f, v in zip(monomial, point, strict=True)), start=Fraction(1))
            for monomial, coefficient in polynomial.items()
        ),
        start=Fraction(0),
    )


def _power(factor: Factor, value: int) -> Fraction:
    power, logs = factor
    return Fraction(value) ** power * (Fraction(math.log2(value)) ** logs if logs else 1)


def _transformed(
    values: Mapping[tuple[Any, ...], Fraction], index: int, variable: Variable, inverse: list[list[Fraction]]
) -> dict[tuple[Any, ...], Fraction]:
    """Replace the values along one variable by coefficients of its factors."""
    result: dict[tuple[Any, ...], Fraction] = {}
    for point, value in values.items():
        place = variable.values.index(point[index])
        for row, factor in enumerate(variable.factors):
            key = (*point[:index], factor, *point[index + 1 :])
            result[key] = result.get(key, Fraction(0)) + inverse[row][place] * value
    return result


def _inverse(matrix: list[list[Fraction]]) -> list[list[Fraction]]:
    """Return the exact inverse, by elimination."""
    size = len(matrix)
    rows = [[*row, *(Fraction(int(i == j)) for j in range(size))] for i, row in enumerate(matrix)]
    for column in range(size):
        pivot = next(row for row in range(column, size) if rows[row][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [value / rows[column][column] for value in rows[column]]
        for row in range(size):
            if row != column:
                factor = rows[row][column]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[column], strict=True)]
    return [row[size:] for row in rows]


def leading(polynomial: Polynomial, limited: Collection[int] = ()) -> list[Monomial]:
    """Return the monomials that no other one bounds, the fastest growing in the first variable first.

    `limited`: indices of variables that are at most the first one, as a window is at most the length.
    """

    def is_bounded(monomial: Monomial, other: Monomial) -> bool:
        surplus = sum(max(0, monomial[index][0] - other[index][0]) for index in limited)
        return other[0][0] - monomial[0][0] >= surplus and all(
            a <= b for index, (a, b) in enumerate(zip(monomial, other, strict=True)) if index not in limited
        )

    monomials = sorted(polynomial, reverse=True)
    return [m for m in monomials if not any(other != m and is_bounded(m, other) for other in monomials)]


def polynomial_text(polynomial: Polynomial, symbols: Sequence[str]) -> str:
    """`4 n² d + 8 n d²`."""
    text = ""
    for monomial in sorted(polynomial, reverse=True):
        coefficient = polynomial[monomial]
        sign = "-" if coefficient < 0 else "+"
        term = _monomial_text(monomial, symbols, abs(coefficient))
        text += f" {sign} {term}" if text else f"-{term}" if coefficient < 0 else term
    return text or "0"


def order_text(polynomial: Polynomial, symbols: Sequence[str], *, at_most_first: Sequence[str] = ()) -> str:
    """`O(n² d)`: the leading monomials. Symbols of `at_most_first` are at most the first one."""
    if not polynomial:
        return "0"
    monomials = leading(polynomial, [symbols.index(symbol) for symbol in at_most_first])
    return f"O({' + '.join(_monomial_text(monomial, symbols) for monomial in monomials)})"


def _monomial_text(monomial: Monomial, symbols: Sequence[str], coefficient: Fraction = Fraction(1)) -> str:
    powers = [(symbol, power) for symbol, (power, _) in zip(symbols, monomial, strict=True)]
    logs = [(f"log {symbol}", count) for symbol, (_, count) in zip(symbols, monomial, strict=True)]
    above = [_factor_text(symbol, power) for symbol, power in (*powers, *logs) if power > 0]
    below = [_factor_text(symbol, -power) for symbol, power in powers if power < 0]
    below += [str(coefficient.denominator)] if coefficient.denominator != 1 else []
    number = [f"{coefficient.numerator:,}"] if coefficient.numerator != 1 or not above else []
    return " ".join([*number, *above]) + "".join(f"/{text}" for text in below)


def _factor_text(symbol: str, power: int) -> str:
    return symbol if power == 1 else f"{symbol}{str(power).translate(POWERS)}"

"""Closed forms, sequential operations and path lengths of attentions, derived from the components themselves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, final

from torch import Tensor, nn

from paribus.complexity.closed_form import Polynomial, Variable, fit_polynomial, order_text, polynomial_text
from paribus.complexity.counting import (
    LOGARITHM,
    Path,
    count_flops,
    dependencies,
    growth,
    path_length,
    sequential_growth,
)
from paribus.complexity.sublayer import (
    Candidate,
    Size,
    attention_of,
    is_limited_by_heads,
    is_limited_by_length,
    node_of,
)
from paribus.parts.attend import component_cost
from paribus.parts.shape import Load
from paribus.registry import Registry
from paribus.schema import Option, Range

PATH_LENGTHS: Final = (16, 32, 64, 128)
PATH_SPAN: Final = 4  # of a window, in the search for paths: as many doublings as possible exceed it
LAYERED_LENGTHS: Final = (4, 16, 64, 256)  # if layers differ: powers of the span, whose logarithm to it is whole
FEWER: Final = 0.7  # share of the layers that is taken for half of them, which are whole numbers
PATH_SIZE: Final = Size(PATH_LENGTHS[-1], 16, 4)
COUNT_SIZE: Final = Size(256, 64, 4)
LENGTHS: Final = (256, 512, 1024, 2048)
WIDTHS: Final = (128, 256, 512, 1024)
HEADS: Final = (4, 8, 16, 32)
PLAIN: Final = ((0, 0), (1, 0), (2, 0))  # 1, n, n²
WITH_LOG: Final = (*PLAIN, (1, 1))  # and n log n
OF_HEADS: Final = ((-1, 0), (0, 0), (1, 0), (2, 0))


@final
@dataclass(frozen=True)
class ClosedForm:
    """Exact FLOPs of a forward pass as polynomials; None if they are no polynomial of these variables."""

    symbols: tuple[str, ...]
    options: Mapping[str, str]  # the option that each further symbol stands for
    flops: Polynomial | None
    mixing: Polynomial | None  # without linear layers, as in table 1 of "Attention Is All You Need"

    @property
    def text(self) -> str:
        return "" if self.flops is None else polynomial_text(self.flops, self.symbols)

    @property
    def order(self) -> str:
        """Order of the cost of mixing tokens: `O(n² d)`."""
        return "" if self.mixing is None else order_text(self.mixing, self.symbols, at_most_first=self.symbols[3:])


def closed_form(registry: Registry, candidate: Candidate, *, causal: bool) -> ClosedForm:
    """Return the closed form of an attention's `cost`, as a function of n, d, heads h and its options."""
    varied = list(_varied_options(registry, candidate, causal=causal))
    symbols = ("n", "d", "h", *_symbols([option.name for option in varied]))
    fit = _Fit(registry, candidate, causal, varied)
    for factors in (PLAIN, WITH_LOG):
        variables = [
            Variable("n", factors, LENGTHS[: len(factors)], 4096 if factors is WITH_LOG else 3072),
            Variable("d", factors, WIDTHS[: len(factors)], 2048 if factors is WITH_LOG else 768),
            Variable("h", OF_HEADS, HEADS, 2),
            *(Variable(symbol, PLAIN, *_values(option)) for symbol, option in zip(symbols[3:], varied, strict=True)),
        ]
        flops = fit_polynomial(fit.flops, variables)
        if flops is not None:
            meanings = {symbol: option.name for symbol, option in zip(symbols[3:], varied, strict=True)}
            return ClosedForm(symbols, meanings, flops, fit_polynomial(fit.mixing, variables))
    return ClosedForm(symbols, {}, None, None)


@final
class _Fit:
    """FLOPs of an attention as functions of n, d, h and options."""

    def __init__(self, registry: Registry, candidate: Candidate, causal: bool, varied: list[Option]) -> None:
        self.names = [option.name for option in varied]
        small = {option.name: _values(option)[0][0] for option in varied}
        node = node_of(registry, candidate.with_options(**small), COUNT_SIZE._replace(causal=causal))
        first, second = (
            count_flops(registry, node, COUNT_SIZE._replace(length=n, causal=causal)).linear_tokens for n in (64, 128)
        )
        self.tokens = {path: ((second[path] - first[path]) / 64, 2 * first[path] - second[path]) for path in first}

        @cache
        def costs(length: int, width: int, heads: int, *options: int) -> tuple[int, int]:
            changed = {**node, **dict(zip(self.names, options, strict=True))}
            attention = attention_of(registry, changed, Size(length, width, heads, causal))
            layers = dict(attention.named_modules())
            linear = sum(self._linear_flops(layers[path], path, length) for path in self.tokens)
            return component_cost(attention, Load(length, length)).flops, linear

        self.costs = costs

    def _linear_flops(self, layer: nn.Module, path: str, length: int) -> int:
        assert isinstance(layer, nn.Linear)
        slope, constant = self.tokens[path]
        return round(slope * length + constant) * 2 * layer.in_features * layer.out_features

    def flops(self, *point: int) -> int:
        return self.costs(*point)[0]

    def mixing(self, *point: int) -> int:
        """Return the FLOPs without those of linear layers."""
        flops, linear = self.costs(*point)
        return flops - linear


def _varied_options(registry: Registry, candidate: Candidate, *, causal: bool) -> Iterator[Option]:
    """Yield the options that are sizes, limited by the length or the heads, and change the FLOPs."""
    size = COUNT_SIZE._replace(causal=causal)
    load = Load(size.length, size.length)
    for option in registry.index.find("attention", candidate.name).options:
        if _is_size(option, candidate):
            low, high = (
                attention_of(registry, node_of(registry, candidate.with_options(**{option.name: value}), size), size)
                for value in _values(option)[0][:2]
            )
            if component_cost(low, load).flops != component_cost(high, load).flops:
                yield option


def _is_size(option: Option, candidate: Candidate) -> bool:
    is_set = candidate.options.get(option.name, option.default) not in (None, 0)
    return option.kind.name == "int" and is_set and (is_limited_by_length(option) or is_limited_by_heads(option))


def _values(option: Option) -> tuple[tuple[int, ...], int]:
    """Return values of an option to fit, and one to test; those limited by the heads divide 4, the fewest heads."""
    low = max((int(limit.low) for limit in option.limits if isinstance(limit, Range) and limit.low), default=1)
    return ((1, 2, 4) if low == 1 else (low, 2 * low), 2) if is_limited_by_heads(option) else ((4, 8, 16), 6)


def _symbols(names: list[str]) -> list[str]:
    """Return the initial of each option, or its name if the initial is taken."""
    taken = {"n", "d", "h"}
    symbols: list[str] = []
    for name in names:
        symbol = name if name[0] in taken else name[0]
        taken.add(symbol)
        symbols.append(symbol)
    return symbols


@final
@dataclass(frozen=True)
class Growth:
    """Growth of a count with n, and with an option that divides it or is the base of its logarithm, if there is one."""

    exponent: float | None  # LOGARITHM: of a logarithm; None: unclear
    largest: int = 0  # at the longest length of the search
    option: str = ""  # symbol
    is_connected: bool = True  # False: some tokens never reach one another
    length: int = PATH_LENGTHS[-1]  # longest length of the search

    @property
    def order(self) -> str:
        """`O(1)`, `O(n/w)`, `O(log_k n)`, `∞`, or the largest count if its growth is unclear."""
        if not self.is_connected:
            return "∞"
        if self.exponent is None:
            return f"{self.largest} at n = {self.length}"
        if self.exponent in (0.0, LOGARITHM):
            return "O(1)" if self.exponent == 0.0 else f"O(log{f'_{self.option}' if self.option else ''} n)"
        power = "n" if self.exponent == 1 else f"n^{self.exponent:g}"
        return f"O({power}{f'/{self.option}' if self.option else ''})"


def sequential(registry: Registry, candidate: Candidate, *, causal: bool) -> Growth:
    """Return the growth of the operations that wait for one another."""
    size = COUNT_SIZE._replace(causal=causal)
    return Growth(sequential_growth(registry, node_of(registry, candidate, size), size))


def path(registry: Registry, candidate: Candidate, steps: Growth, *, causal: bool) -> Growth:
    """Return the growth of the longest path between two tokens: layers, or sequential operations within a layer."""
    entry = registry.index.find("attention", candidate.name)
    varied = _varied_options(registry, candidate, causal=causal)
    spans = [option.name for option in varied if is_limited_by_length(option)]
    small = candidate.with_options(**dict.fromkeys(spans, PATH_SPAN))
    depends_on_layer = "layer" in entry.traits.get("needs", [])
    lengths, ratio = (LAYERED_LENGTHS, PATH_SPAN) if depends_on_layer else (PATH_LENGTHS, 2)

    def layers(attention: Candidate, length: int) -> Path:
        size = PATH_SIZE._replace(length=length, causal=causal)
        node = node_of(registry, attention, size._replace(length=PATH_SIZE.length))
        return path_length(_layers(registry, node, size, depends_on_layer), causal=causal)

    paths = [layers(small, length) for length in lengths]
    counts, is_connected = [count for count, _ in paths], all(connected for _, connected in paths)
    exponent = growth(counts, ratio)
    if exponent == 0.0 and steps.exponent:
        return Growth(steps.exponent, counts[-1], "", is_connected, lengths[-1])
    symbol = ""
    if exponent in (1.0, LOGARITHM):
        others = spans or [option.name for option in entry.options if option.kind.name == "int" and option.default]
        for name in others:
            value = small.options.get(name) or _default(entry.options, name)
            wider = small.with_options(**{name: 2 * value if exponent == 1.0 else value**2})  # half the layers, or less
            if layers(wider, lengths[-1]).layers <= FEWER * counts[-1]:
                symbol = _symbols([name])[0]
    return Growth(exponent, counts[-1], symbol, is_connected, lengths[-1])


def _layers(registry: Registry, node: Mapping[str, Any], size: Size, depends_on_layer: bool) -> Iterator[Tensor]:
    """Yield the dependencies of each layer of a stack without end."""
    if not depends_on_layer:
        yield from itertools.repeat(dependencies(registry, node, size))
    for layer in itertools.count():
        yield dependencies(registry, node, size._replace(layer=layer))


def _default(options: tuple[Option, ...], name: str) -> Any:
    return next(option.default for option in options if option.name == name)

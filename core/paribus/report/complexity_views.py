"""Tables of the complexity of attentions, for a terminal, Markdown, CSV, JSON and the HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import log
from statistics import median
from typing import Any, Final

from paribus.analysis.formatting import NO_VALUE, Cell, Column, Grid, clean
from paribus.complexity.closed_form import polynomial_text
from paribus.complexity.lab import Complexity, Profile, Settings
from paribus.complexity.rounds import Estimate, estimate, exponent, local_slopes
from paribus.complexity.sublayer import Size

MIN_SIZES: Final = 3  # sizes that an exponent needs
PARTIAL: Final = "*"  # mark of an exponent over fewer sizes than the others
Values = Mapping[Size, Any]


def grids(result: Complexity) -> list[Grid]:
    """Return the tables: complexity, growth between sizes with crossovers, and FLOPs as closed forms."""
    return [complexity_grid(result), growth_grid(result), form_grid(result)]


def complexity_grid(result: Complexity) -> Grid:
    """Return closed form, sequential operations, path length and exponents of each attention."""
    settings = result.settings
    columns = [
        Column("attention", wrap="name"),
        Column("mixing"),
        Column("sequential"),
        Column("path"),
        *(Column(f"{name} {axis}", align_right=True) for name in ("FLOPs", "time", "mem.") for axis in "nd"),
    ]
    axes = (settings.by_length, settings.by_width)
    rows = [
        [
            Cell(clean(profile.label)),
            *map(Cell, (profile.form.order or NO_VALUE, profile.sequential.order, profile.path.order)),
            *(Cell(exponent_text(profile.flops, sizes)) for sizes in axes),
            Cell(exponent_text(profile.seconds, settings.by_length, interval=True)),
            Cell(exponent_text(profile.seconds, settings.by_width)),
            *(Cell(exponent_text(profile.memory, sizes)) for sizes in axes),
        ]
        for profile in result.profiles
    ]
    warnings = [f"{clean(profile.label)}: {profile.mismatch}" for profile in result.profiles if profile.mismatch]
    return Grid(
        title="Complexity of attention",
        columns=columns,
        rows=rows,
        cost_columns=6,
        header=[_conditions(settings)],
        remarks=[("!", warnings), ("·", list(_explanations(result)))],
        records=list(records(result)),
    )


def _conditions(settings: Settings) -> str:
    size = settings.reference
    return (
        f"{'causal' if settings.causal else 'bidirectional'}, {settings.heads} heads, "
        f"{'forward and backward' if settings.backward else 'forward'}, {settings.device}, {settings.rounds} rounds; "
        f"n {_list(settings.lengths)} at d = {size.width}, d {_list(settings.widths)} at n = {size.length}"
    )


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(set(numbers))))


def _explanations(result: Complexity) -> Iterator[str]:
    yield (
        "mixing: FLOPs without linear layers, as in table 1 of Attention Is All You Need; n tokens, width d, h heads"
        + "".join(f"; {symbol}: {', '.join(names)}" for symbol, names in _meanings(result).items())
    )
    yield "sequential: tensor operations that wait for one another"
    yield "path: longest way between two tokens, in layers or sequential operations"
    yield (
        "FLOPs, time and memory: exponents of the whole sublayer in n and in d, the time in n with a 95 % interval; "
        "memory is that of the tensors of a pass, without parameters"
    )
    if any(len(profile.seconds) < len(result.settings.sizes) for profile in result.profiles):
        yield f"{PARTIAL}: an exponent over fewer sizes than the others; the next table lists those that were skipped"
    if any(not profile.path.is_connected for profile in result.profiles):
        yield "∞: some tokens never reach one another, however many layers (measured at initial weights)"


def _meanings(result: Complexity) -> dict[str, list[str]]:
    """Return the options that each symbol stands for, with the measured values."""
    meanings: dict[str, list[str]] = {}
    for profile in result.profiles:
        for symbol, option in profile.form.options.items():
            value = profile.options.get(option)
            text = option if value is None else f"{option} {value}"
            meanings.setdefault(symbol, [])
            if text not in meanings[symbol]:
                meanings[symbol].append(text)
    return meanings


def exponent_text(values: Values, sizes: Sequence[Size], *, interval: bool = False) -> str:
    """`1.98`, or `1.52 [1.48, 1.55]` with `interval`, for times in several rounds."""
    result = exponent_of(values, sizes)
    if result is None:
        return NO_VALUE
    mark = "" if all(size in values for size in sizes) else PARTIAL
    text = result.rounded() if interval else f"{result.figure:.2f}".replace("-0.00", "0.00")
    return mark + text


def exponent_of(values: Values, sizes: Sequence[Size]) -> Estimate | None:
    """Return the exponent of counts or times along the varied dimension of the sizes, or None if there are too few."""
    axis, rounds = _series(values, sizes)
    return exponent(axis, rounds) if rounds and len(axis) >= MIN_SIZES else None


def slopes_of(values: Values, sizes: Sequence[Size]) -> list[float]:
    """Return the exponents between adjacent sizes."""
    axis, rounds = _series(values, sizes)
    return local_slopes(axis, rounds) if rounds and len(axis) > 1 else []


def _series(values: Values, sizes: Sequence[Size]) -> tuple[list[int], list[list[float]]]:
    """Return the varied dimension of the sizes with values, and the values by round; empty lists if a value is 0."""
    measured = [size for size in sizes if size in values]
    is_length = len({size.length for size in sizes}) > 1
    columns = [values[size] if isinstance(values[size], Sequence) else [values[size]] for size in measured]
    if any(min(column, default=0) <= 0 for column in columns):
        return [], []
    rounds = [list(row) for row in zip(*columns, strict=True)]
    return [size.length if is_length else size.width for size in measured], rounds


def growth_grid(result: Complexity) -> Grid:
    """Return time and memory at the reference size, slopes between lengths, and crossovers."""
    settings, size = result.settings, result.settings.reference
    columns = [
        Column("attention", wrap="name"),
        Column("ms", align_right=True),
        Column("slopes of time in n"),
        Column("MiB", align_right=True),
        Column("slopes of memory in n"),
        Column(f"fewer FLOPs than {result.reference.label}"),
        Column("less time"),
    ]
    rows = [
        [
            Cell(clean(profile.label)),
            Cell(f"{1e3 * median(profile.seconds[size]):.3g}" if size in profile.seconds else NO_VALUE),
            Cell(_slopes_text(profile.seconds, settings.by_length)),
            Cell(f"{profile.memory[size] / 2**20:.3g}" if size in profile.memory else NO_VALUE),
            Cell(_slopes_text(profile.memory, settings.by_length)),
            Cell(_crossover_text(profile)),
            Cell(NO_VALUE if profile is result.reference else time_crossover(result, profile)[1]),
        ]
        for profile in result.profiles
    ]
    return Grid(
        title="Growth between lengths, and crossovers",
        columns=columns,
        rows=rows,
        cost_columns=2,
        header=[f"ms and MiB: of a pass at n = {size.length}, d = {size.width}; median of the rounds"],
        remarks=[("!", list(_noise(result))), ("-", list(_omissions(result)))],
    )


def _slopes_text(values: Values, sizes: Sequence[Size]) -> str:
    return " ".join(f"{slope:.2f}" for slope in slopes_of(values, sizes)) or NO_VALUE


def _crossover_text(profile: Profile) -> str:
    if profile.crossover is None:
        return NO_VALUE
    return "always" if profile.crossover == 1 else f"from n = {profile.crossover:,}"


def time_crossover(result: Complexity, profile: Profile) -> tuple[float | None, str]:
    """Return the length from which on an attention takes less time than the reference, as a number and as text."""
    reference = result.reference.seconds
    sizes = [size for size in result.settings.by_length if size in profile.seconds and size in reference]
    if not sizes:
        return None, NO_VALUE
    ratios = [estimate([a / b for a, b in zip(profile.seconds[size], reference[size], strict=True)]) for size in sizes]
    if ratios[-1].high >= 1:
        return None, f"not up to n = {sizes[-1].length}" if ratios[-1].low > 1 else f"unclear at n = {sizes[-1].length}"
    slower = [index for index, ratio in enumerate(ratios) if ratio.figure >= 1]
    if not slower:
        return float(sizes[0].length), f"at n = {sizes[0].length} already"
    return _interpolated([size.length for size in sizes], [ratio.figure for ratio in ratios], slower[-1])


def _interpolated(lengths: Sequence[int], ratios: Sequence[float], index: int) -> tuple[float, str]:
    """Return the length after `lengths[index]` at which the ratio crosses 1, interpolated on logarithmic axes."""
    share = log(ratios[index]) / (log(ratios[index]) - log(ratios[index + 1]))
    length = lengths[index] * (lengths[index + 1] / lengths[index]) ** share
    return length, f"from n ≈ {float(f'{length:.2g}'):.0f}"


def _noise(result: Complexity) -> Iterator[str]:
    """Yield the ratio of the reference to itself, which measures noise."""
    reference = result.reference.seconds
    ratios = {
        size: estimate([a / b for a, b in zip(times, reference[size], strict=True)])
        for size, times in result.twin.items()
        if size in reference
    }
    if ratios:
        low, high = min(ratio.figure for ratio in ratios.values()), max(ratio.figure for ratio in ratios.values())
        yield (
            f"A/A twin: {result.reference.label} against itself takes {low:.2f} to {high:.2f} times its time; "
            "smaller differences are noise"
        )


def _omissions(result: Complexity) -> Iterator[str]:
    """Yield the attentions and sizes that were not measured, with reasons."""
    for label, reason in result.failures.items():
        yield f"{clean(label)} is not measured: {reason}"
    for profile in result.profiles:
        reasons: dict[str, list[Size]] = {}
        for size, reason in profile.skipped.items():
            reasons.setdefault(reason.partition(" about ")[0], []).append(size)
        for sizes in reasons.values():
            sizes_text = ", ".join(f"n {size.length} d {size.width}" for size in sizes)
            suffix = " (the first of these)" * (len(sizes) > 1)
            yield f"{clean(profile.label)} is not measured at {sizes_text}: {profile.skipped[sizes[0]]}{suffix}"


def form_grid(result: Complexity) -> Grid:
    """Return the FLOPs of a forward pass, declared as a closed form and counted by torch."""
    rows: list[list[Cell]] = []
    for profile in result.profiles:
        size, counted = next(iter(profile.counted.items()))
        size_text = f"{size.length}, {size.width}"
        texts = (clean(profile.label), profile.form.text or NO_VALUE, size_text, f"{profile.flops[size]:,}")
        rows.append([*map(Cell, texts), Cell(f"{counted:,}", "worse" if profile.mismatch else "")])
    windowed = [clean(profile.label) for profile in result.profiles if profile.windowed]
    note = f"torch also counts pairs that a kernel computes outside of the window: {', '.join(windowed)}"
    names = ("at n, d", "declared", "torch counts")
    return Grid(
        title="FLOPs of a forward pass",
        columns=[
            Column("attention", wrap="name"),
            Column("closed form"),
            *(Column(name, align_right=True) for name in names),
        ],
        rows=rows,
        remarks=[("·", [note] if windowed else [])],
    )


def records(result: Complexity) -> Iterator[dict[str, Any]]:
    """Yield the numbers of each attention at each size."""
    for profile in result.profiles:
        for size in result.settings.sizes:
            times = profile.seconds.get(size)
            time = estimate(times) if times else None
            yield {
                "attention": profile.label,
                "n": size.length,
                "d": size.width,
                "flops": profile.flops.get(size),
                "seconds": time.figure if time else None,
                "seconds_low": time.low if time else None,
                "seconds_high": time.high if time else None,
                "memory_bytes": profile.memory.get(size),
                "skipped": profile.skipped.get(size),
            }


def to_json(result: Complexity) -> dict[str, Any]:
    """Return all measurements and estimates as JSON."""
    settings = result.settings
    return {
        "settings": {**vars(settings), "lengths": list(settings.lengths), "widths": list(settings.widths)},
        "seconds": result.seconds,
        "attentions": [_profile_json(result, profile) for profile in result.profiles],
        "failures": dict(result.failures),
        "twin_seconds": {str(size.length): list(times) for size, times in result.twin.items()},
        "measurements": list(records(result)),
    }


def _profile_json(result: Complexity, profile: Profile) -> dict[str, Any]:
    settings, form = result.settings, profile.form
    sizes_by_axis = {"n": settings.by_length, "d": settings.by_width}
    series: dict[str, Values] = {"flops": profile.flops, "time": profile.seconds, "memory": profile.memory}
    estimates = {
        f"{name}_in_{axis}": exponent_of(values, sizes)
        for name, values in series.items()
        for axis, sizes in sizes_by_axis.items()
    }
    return {
        "attention": profile.label,
        "options": dict(profile.options),
        "mixing": form.order or None,
        "mixing_flops": None if form.mixing is None else polynomial_text(form.mixing, form.symbols),
        "closed_form": form.text or None,
        "symbols": dict(form.options),
        "sequential": profile.sequential.order,
        "path": profile.path.order,
        "flops": profile.flops.get(settings.reference),
        "counted_flops": [
            {"n": size.length, "d": size.width, "declared": profile.flops[size], "counted": counted}
            for size, counted in profile.counted.items()
        ],
        "mismatch": profile.mismatch or None,
        "exponents": {name: None if value is None else vars(value) for name, value in estimates.items()},
        "local_slopes": {
            f"{name}_in_{axis}": slopes_of(values, sizes)
            for name, values in series.items()
            for axis, sizes in sizes_by_axis.items()
        },
        "fewer_flops_from": profile.crossover,
        "less_time_from": None if profile is result.reference else time_crossover(result, profile)[0],
    }

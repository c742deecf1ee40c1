"""Results of a calibration: the spread of each variant between seeds, and the seeds that an effect needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, final

from paribus.analysis.formatting import last_text, percent, plural
from paribus.analysis.power import MAX_SEEDS
from paribus.analysis.signal_to_noise import Signal
from paribus.analysis.table import replace_infinite
from paribus.errors import escape_unprintable

Range = tuple[float, float]

SIGNAL_HEADER: Final = ("metric", "seeds", "noise of seeds", "of evaluations", "signal", "signal to noise")


@final
@dataclass(frozen=True, kw_only=True)
class Spread:
    """The standard deviation of a variant's differences, and the numbers of seeds that follow from it.

    Each range is computed from the ends of the interval of `sd`, because few pairs estimate a spread poorly.
    """

    variant: str
    n: int  # number of pairs, or of seeds for the baseline
    sd: float
    interval: Range  # 95 % interval of the true standard deviation
    reduction: float | None = None  # factor by which pairing reduces the variance
    smallest_effect: float | None = None  # smallest effect that the planned seeds detect
    smallest_effect_range: Range | None = None
    detect_seeds: int | None = None  # number of seeds that detects the requested effect
    detect_seeds_range: tuple[int | None, int | None] = (None, None)
    equivalence_seeds: int | None = None  # number of seeds that finds a variant without true difference equivalent
    equivalence_seeds_range: tuple[int | None, int | None] = (None, None)


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Calibration:
    """The spreads of a study, and the seeds that an effect needs: `print(calibration)` shows it."""

    study: str
    metric: str
    planned: int  # number of planned seeds
    variants: int
    alpha: float  # alpha of the first step of Holm's procedure
    power: float
    effect: float | None
    margin: float | None
    baseline: Spread
    rows: tuple[Spread, ...]  # one for each variant with two pairs or more
    independent: Spread  # spread of a difference of seeds that are not paired, estimated from the baseline
    seeds: int | None  # number of seeds that detects the requested effect in every variant
    missing_trials: int  # trials of these seeds without a record
    seconds: float | None  # estimated time of the missing trials, one after the other
    seconds_per_trial: float | None
    last: int = 1  # evaluations whose mean is the metric of a trial
    signals: tuple[Signal, ...] = ()  # signal to noise of each metric of the records, that of the verdict first
    notes: tuple[str, ...] = ()
    setting: str = ""  # name of the setting, in a study with several
    family: int = 0  # number of verdicts in all settings, which are corrected together
    other_settings: tuple[Calibration, ...] = ()  # calibrations of the other settings
    open_ended: bool = False  # verdicts of the study hold at every number of seeds

    def __repr__(self) -> str:
        return f"<calibration of {self.study} on {self.metric}: {plural(len(self.rows), 'spread')}>"

    def __str__(self) -> str:
        return "\n".join(
            [self.title, *(line for setting in self.settings for line in setting.lines()), "", *self.caption()]
        )

    @property
    def settings(self) -> tuple[Calibration, ...]:
        """This calibration and those of the other settings."""
        return (self, *self.other_settings)

    def lines(self) -> list[str]:
        """Return the lines of one setting: its name, its tables and its remarks."""
        return ["", *([escape_unprintable(self.setting), ""] if self.setting else []), *self.tables(), *self.remarks()]

    @property
    def title(self) -> str:
        """The title: study, metric and number of seeds."""
        return escape_unprintable(
            f"{self.study}: {self.metric}{last_text(self.last)}: what {plural(self.planned, 'seed')} can detect"
        )

    def tables(self) -> list[str]:
        """Return a line for each variant and one for seeds that are not paired; below, a line for each metric."""
        spreads = _grid([_header(self), *(_cells(self, row) for row in (*self.rows, self.independent))])
        metrics = _grid([SIGNAL_HEADER, *map(_signal_cells, self.signals)]) if self.signals else []
        return [*spreads, "", *metrics, *([""] if metrics else [])]

    def remarks(self) -> list[str]:
        """Return the seeds and the time that an effect needs, and notes."""
        base = self.baseline
        baseline_line = (
            f"Standard deviation of the baseline over seeds: {_number(base.sd)} {_range(base.interval)} (n = {base.n})."
        )
        notes = (f"- {escape_unprintable(note)}" for note in self.notes)
        return [baseline_line, _cost(self), *notes]

    def caption(self) -> list[str]:
        """Return how to read the table and the remarks."""
        return [f"· {line}" for line in _caption(self)]

    def to_json(self) -> dict[str, Any]:
        """Return valid JSON: every number is finite or null."""
        document = asdict(replace(self, other_settings=()))
        setting_fields = {"setting": self.setting} if self.setting else {}
        for key in ("setting", "family", "other_settings"):
            del document[key]
        document |= setting_fields | {
            "baseline": replace_infinite(asdict(self.baseline)),
            "rows": [replace_infinite(asdict(row)) for row in self.rows],
            "independent": replace_infinite(asdict(self.independent)),
            "signals": [asdict(it) for it in self.signals],
            "notes": list(self.notes),
        }
        return (
            {**document, "other_settings": [setting.to_json() for setting in self.other_settings]}
            if self.other_settings
            else document
        )


def _header(calibration: Calibration) -> tuple[str, ...]:
    heads = ["variant", "pairs", "sd of a difference", "pairing", f"{plural(calibration.planned, 'seed')} show"]
    if calibration.effect is not None:
        heads.append(f"seeds for {calibration.effect:g}")
    if calibration.margin is not None:
        heads.append(f"for ± {calibration.margin:g}")
    return tuple(heads)


def _cells(calibration: Calibration, row: Spread) -> tuple[str, ...]:
    reduction = "" if row.reduction is None else f"÷ {_factor(row.reduction)}"
    cells = [escape_unprintable(row.variant), str(row.n), f"{_number(row.sd)} {_range(row.interval)}", reduction]
    cells.append("-" if row.smallest_effect is None else _number(row.smallest_effect))
    if calibration.effect is not None:
        cells.append(_seeds(row.detect_seeds, row.detect_seeds_range))
    if calibration.margin is not None:
        cells.append(_seeds(row.equivalence_seeds, row.equivalence_seeds_range))
    return tuple(cells)


def _signal_cells(row: Signal) -> tuple[str, ...]:
    noises = ("-" if value is None else _number(value) for value in (row.seed_noise, row.evaluation_noise, row.signal))
    ratio = "-" if row.ratio is None else f"{_number(row.ratio)} {_range(row.interval)}"
    return (escape_unprintable(row.metric), str(row.n), *noises, ratio)


def _cost(calibration: Calibration) -> str:
    """Return the sentence on the seeds, trials and time that the effect needs."""
    if calibration.effect is None:
        return "No effect is set: use `--effect`, or set a `margin` in the study."
    if calibration.seeds is None:
        return f"An effect of {calibration.effect:g} needs more than {MAX_SEEDS:,} seeds in some variant."
    needed = f"An effect of {calibration.effect:g} in any variant needs {plural(calibration.seeds, 'seed')}"
    if calibration.seconds is None:
        return f"{needed}; the time of a trial is not known yet."
    missing = f"{plural(calibration.missing_trials, 'trial')} more" if calibration.missing_trials else "no trial more"
    duration_text = f": {duration(calibration.seconds)} one at a time" if calibration.missing_trials else ""
    return f"{needed}, {missing}{duration_text} ({_number(calibration.seconds_per_trial or 0.0)} s a trial)."


def _caption(calibration: Calibration) -> Iterator[str]:
    suffix = ", in all settings" if calibration.other_settings else ""
    yield (
        f"Shown with {percent(calibration.power)} probability at a confidence of {percent(1 - calibration.alpha)}, "
        f"which Holm's procedure requires of the first of {plural(calibration.family, 'verdict')}{suffix}; "
        "the next need less."
    )
    if calibration.other_settings:
        yield "A trial that several settings share runs once, but is counted as missing in each."
    yield (
        "Few pairs give a poor estimate of a standard deviation: its 95 % interval (chi-squared) is in brackets, as "
        "are the numbers for the ends of that interval. `pairing` is the factor by which pairing reduces the variance."
    )
    if calibration.margin is not None:
        yield f"± {calibration.margin:g}: the seeds after which a variant without true difference is found equivalent."
    if any(setting.signals for setting in calibration.settings):
        yield from _signal_caption()
    if calibration.open_ended:
        yield (
            "Calibration shows no verdict and no difference. "
            "Verdicts hold at every number of seeds: add them as needed."
        )
        return
    yield (
        "Calibration shows no verdict and no difference. Use fresh seeds for a study that is planned with it: only "
        "then the confidence of its verdicts holds exactly."
    )


def _signal_caption() -> Iterator[str]:
    yield (
        "Noise of seeds: the standard deviation of a trial around the means of its variant and of its seed. Noise of "
        "evaluations: that of the last single evaluations of a trial around a straight line, without what the variants "
        "of a seed have in common. If it is about as large, `metric.last` reduces both."
    )
    yield (
        "Signal: the standard deviation of the true means of the variants, with the baseline; its ratio to the noise "
        "of seeds has a 95 % interval (F distribution, for normal variants). It needs three of them, because of two it "
        "would be their difference; of more it shows neither which one differs nor in which direction, so it is no "
        "look at the results."
    )


def duration(seconds: float) -> str:
    """`90 s`, `12 min`, `3.4 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _grid(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines with columns as wide as needed, counts aligned to the right."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if index == 1 else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _number(value: float) -> str:
    return f"{value:.2g}"


def _factor(value: float) -> str:
    return "> 1,000" if value > 1000 else f"{value:.2g}" if value < 10 else f"{value:,.0f}"


def _range(ends: Range | None) -> str:
    return "" if ends is None else f"[{_number(ends[0])}, {_number(ends[1])}]"


def _seeds(count: int | None, ends: tuple[int | None, int | None]) -> str:
    """`7 [4, 15]`, or `12 or more` if more than `MAX_SEEDS` are needed."""
    if count is None:
        return "-" if ends == (None, None) else f"{_count(ends[0])} or more"
    return f"{_count(count)} [{_count(ends[0])}, {_count(ends[1])}]"


def _count(count: int | None) -> str:
    return "…" if count is None else f"{count:,}"


def largest_count(counts: Mapping[str, int | None]) -> int | None:
    """Return the largest count; None if any is unknown, or if there are none."""
    values = list(counts.values())
    return None if not values or None in values else max(count for count in values if count is not None)

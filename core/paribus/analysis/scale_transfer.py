"""Transfer of verdicts, and of the order of variants, between the scales of a study."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, Literal, NamedTuple, final

from paribus.analysis.formatting import NO_VALUE, format_bare_difference, percent, plural, table_decimals
from paribus.analysis.p_values import summarise, t_quantile
from paribus.analysis.scaling_laws import scaling_sections
from paribus.analysis.table import Row, Section, Table
from paribus.errors import join_names
from paribus.planning.settings import Setting
from paribus.studies.study import Study

Transfer = Literal["transfers", "reverses", "undecided"]

DRAWS: Final = 1_000
NORMAL_QUANTILE: Final = 1.959963984540054  # of 97.5 %: ends of a 95 % interval, in standard deviations
DECIDED: Final = ("better", "worse", "equivalent")


def transfer_verdict(kinds: Sequence[str]) -> Transfer:
    """Return whether the verdicts of one variant transfer between scales, given their kinds.

    They transfer if all scales have the same decided verdict. They reverse if one scale is better and another worse.
    All else is undecided: an inconclusive scale does not confirm another, and a variant that is equivalent at one scale
    and worse at another may have the same small effect at both.
    """
    if {"better", "worse"} <= set(kinds):
        return "reverses"
    return "transfers" if len(set(kinds)) == 1 and kinds[0] in DECIDED else "undecided"


def kendall_tau(first_scores: Sequence[float], second_scores: Sequence[float]) -> float | None:
    """Kendall's tau-b: 1 for the same order, -1 for the reverse order; tied pairs count for neither.

    None if all values of one side are tied.
    """
    concordance = first_ties = second_ties = pairs = 0
    for (first_a, second_a), (first_b, second_b) in combinations(zip(first_scores, second_scores, strict=True), 2):
        first_sign, second_sign = _sign(first_b - first_a), _sign(second_b - second_a)
        concordance += first_sign * second_sign
        first_ties += first_sign == 0
        second_ties += second_sign == 0
        pairs += 1
    untied = (pairs - first_ties) * (pairs - second_ties)
    return concordance / math.sqrt(untied) if untied else None


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


@final
@dataclass(frozen=True, kw_only=True)
class RankAgreement:
    """The rank correlation of the variants at two scales, with its interval over seeds."""

    tau: float | None
    low: float | None
    high: float | None
    variants: int
    seeds: int

    @property
    def verdict(self) -> Literal["agree", "reverse", "undecided"]:
        if self.low is None or self.high is None:
            return "undecided"
        return "agree" if self.low > 0 else "reverse" if self.high < 0 else "undecided"


class _Scale(NamedTuple):
    """The differences of all variants at one scale, on the seeds that all of them finished."""

    differences: Sequence[Sequence[float]]  # for each variant, its difference by seed
    means: Sequence[float]


def rank_agreement(
    first_scale: Mapping[str, Mapping[int, float]],
    second_scale: Mapping[str, Mapping[int, float]],
    *,
    alpha: float = 0.05,
) -> RankAgreement:
    """Compare the order of the variants by mean difference at two scales; `first_scale[variant][seed]` is a difference.

    Each scale uses the seeds that all its variants finished. The interval is a bootstrap over seeds, with two changes,
    both of which err towards undecided:

    - Seeds are resampled for each scale independently. Otherwise, noise of one seed at both scales would look like
      agreement.
    - Resampled means of a few values vary less than the mean is uncertain. So the distance of each resampled mean from
      the observed mean is scaled up until its 95 % range has the width of Student's t-interval.
    """
    names = [name for name in first_scale if name in second_scale]
    scales = [_scale(differences, names) for differences in (first_scale, second_scale)]
    n = min((len(scale.differences[0]) for scale in scales if scale.differences), default=0)
    if len(names) < 2 or not n:
        return RankAgreement(tau=None, low=None, high=None, variants=len(names), seeds=n)
    tau = kendall_tau(scales[0].means, scales[1].means)
    if (
        n < 2
        or tau is None
        or any(_is_constant(differences, alpha) for scale in scales for differences in scale.differences)
    ):
        return RankAgreement(tau=tau, low=None, high=None, variants=len(names), seeds=n)
    # A fixed seed, so that the same records have the same interval.
    rng = random.Random(0)
    resampled = [kendall_tau(*(_resampled_means(scale, rng, alpha) for scale in scales)) or 0.0 for _ in range(DRAWS)]
    resampled.sort()
    tail = int(alpha / 2 * DRAWS)
    return RankAgreement(tau=tau, low=resampled[tail], high=resampled[DRAWS - 1 - tail], variants=len(names), seeds=n)


def _is_constant(differences: Sequence[float], alpha: float) -> bool:
    """Return whether all seeds have the same difference, but are too few for the sign test.

    A bootstrap of them would have no spread, and so look certain.
    """
    return summarise(differences).sd == 0 and math.ldexp(2.0, -len(differences)) > alpha


def _scale(differences_by_variant: Mapping[str, Mapping[int, float]], names: Sequence[str]) -> _Scale:
    seeds = sorted(set.intersection(*(set(differences_by_variant[name]) for name in names))) if names else []
    differences = [[differences_by_variant[name][seed] for seed in seeds] for name in names]
    return _Scale(differences, [math.fsum(values) / len(values) for values in differences if values])


def _resampled_means(scale: _Scale, rng: random.Random, alpha: float) -> list[float]:
    """Return the mean of each variant over resampled seeds, the same for all variants."""
    n = len(scale.differences[0])
    scaling = math.sqrt(n / (n - 1)) * -t_quantile(alpha / 2, n - 1) / NORMAL_QUANTILE
    indices = rng.choices(range(n), k=n)
    return [
        mean + scaling * (math.fsum(values[index] for index in indices) / n - mean)
        for values, mean in zip(scale.differences, scale.means, strict=True)
    ]


def transfer_sections(table: Table, settings: Sequence[Setting]) -> Iterator[Section]:
    """Yield a section on the transfer of verdicts and orders between scales, for each kind of matching."""
    tables_by_matching: dict[str, dict[str, Table]] = {}
    tables = {setting_table.setting: setting_table for setting_table in table.settings}
    for setting in settings:
        if setting.scale and setting.name in tables:
            matching = setting.name.removeprefix(setting.scale).removeprefix(", ")
            tables_by_matching.setdefault(matching, {})[setting.scale] = tables[setting.name]
    comparable = {matching: scales for matching, scales in tables_by_matching.items() if len(scales) > 1}
    if not comparable:
        return
    lines: list[str] = []
    documents: list[dict[str, Any]] = []
    for matching, scales in comparable.items():
        prefix = f"{matching}: " if matching else ""
        orders = () if settings[0].study.looks else _orders(scales, table.alpha)
        for line, document in (*_variant_transfers(scales), *orders):
            lines.append(prefix + line)
            documents.append({**({"matching": matching} if matching else {}), **document})
    names = join_names(next(iter(comparable.values())))
    if not settings[0].study.looks:
        yield from scaling_sections(table, next(iter(comparable.values())))
    yield Section(
        key="transfer",
        title=f"across the scales {names}",
        lines=(*lines, *_caption(table, settings[0].study)),
        document={"comparisons": documents},
    )


def _caption(table: Table, study: Study) -> Iterator[str]:
    yield (
        "A verdict transfers if it is the same decided one at every scale; it reverses if it is better at one and "
        "worse at another; else it is undecided, which is not a failure to transfer. This covers these scales only."
    )
    if study.looks:
        yield "Scales of a study that stops early are not compared by the order of variants: means lean away from 0."
    elif len(table.rows) > 1:
        yield (
            "Kendall's tau is 1 for the same order of the variants at two scales, -1 for the reverse order. Its "
            f"interval ({percent(1 - table.alpha)}, each by itself) is a bootstrap over seeds, "
            "widened to Student's t."
        )


def _variant_transfers(scales: Mapping[str, Table]) -> Iterator[tuple[str, dict[str, Any]]]:
    names = dict.fromkeys(row.variant for table in scales.values() for row in table.rows)
    for name in names:
        rows = {
            scale: next((row for row in table.rows if row.variant == name), None) for scale, table in scales.items()
        }
        kinds = [row.kind if row is not None else "missing" for row in rows.values()]
        transfer = transfer_verdict(kinds)
        differences = {scale: _difference_text(scales[scale], row) for scale, row in rows.items()}
        if len(set(kinds)) == 1 and None not in rows.values():
            text = f"{kinds[0]} at {join_names(f'{scale} ({difference})' for scale, difference in differences.items())}"
        else:
            pairs = zip(kinds, differences.items(), strict=True)
            text = join_names(f"{kind} at {scale} ({difference})" for kind, (scale, difference) in pairs)
        verdicts = dict(zip(rows, kinds, strict=True))
        verb = "is undecided" if transfer == "undecided" else transfer
        yield f"{name} {verb}: {text}", {"variant": name, "transfer": transfer, "verdicts": verdicts}


def _difference_text(table: Table, row: Row | None) -> str:
    if row is None:
        return "no trial"
    return format_bare_difference(row, table_decimals(table)[row.variant]) or NO_VALUE


def _orders(scales: Mapping[str, Table], alpha: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the agreement of the order of variants for each pair of scales; a single variant has no order."""
    if max(len(table.rows) for table in scales.values()) < 2:
        return
    for (first_scale, first_table), (second_scale, second_table) in combinations(scales.items(), 2):
        agreement = rank_agreement(first_table.differences, second_table.differences, alpha=alpha)
        yield (
            _order_text(first_scale, second_scale, agreement),
            {"scales": [first_scale, second_scale], "verdict": agreement.verdict, **_agreement_json(agreement)},
        )


def _agreement_json(agreement: RankAgreement) -> dict[str, Any]:
    return {key: value for key, value in vars(agreement).items() if value is None or math.isfinite(value)}


def _order_text(first_scale: str, second_scale: str, agreement: RankAgreement) -> str:
    subject = f"order of {plural(agreement.variants, 'variant')}, {first_scale} to {second_scale}"
    if agreement.tau is None:
        return f"{subject}: undecided, as an order needs two variants that differ"
    tau = f"Kendall's tau {agreement.tau:+.2f}"
    if agreement.low is None or agreement.high is None:
        return f"{subject}: undecided: {tau} of {plural(agreement.seeds, 'seed')}, too few for an interval"
    tau = f"{tau} [{agreement.low:+.2f}, {agreement.high:+.2f}], n = {agreement.seeds}"
    verbs = {
        "agree": "agrees",
        "reverse": "reverses",
        "undecided": "is undecided, as other seeds may give another order",
    }
    return f"{subject} {verbs[agreement.verdict]}: {tau}"

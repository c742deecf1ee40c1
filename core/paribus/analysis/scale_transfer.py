"""Sections on all settings of a study: transfer of verdicts between scales, matching, and tuning."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, Literal, NamedTuple, final

from paribus.analysis.formatting import NO_VALUE, format_bare_difference, percent, plural, table_decimals
from paribus.analysis.p_values import summarise, t_quantile
from paribus.analysis.table import Row, Section, Table
from paribus.errors import join_names
from paribus.planning.plan import Plan
from paribus.planning.settings import BEST, SAME, Setting
from paribus.planning.tuning import Candidate, VariantTuning, format_cell, pending_notes
from paribus.studies.designs import format_value
from paribus.studies.study import Study

Transfer = Literal["transfers", "reverses", "undecided"]

DRAWS: Final = 1_000
NORMAL_QUANTILE: Final = 1.959963984540054  # of 97.5 %: ends of a 95 % interval, in standard deviations
MAX_MISMATCH: Final = 0.05  # a variant farther from the baseline's budget is not matched
MAX_VALUES: Final = 12  # values in one line of text
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


Records = Mapping[str, Mapping[str, Any]]


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


# -------------------------------------------------------------------------------------------------------- matching
def matching_note(setting: Setting) -> str:
    """Describe the matched option of every variant with its residual; empty without matching."""
    match = setting.study.match
    if match is None or not setting.matched:
        return ""
    texts = (
        f"{name} {match_result.value:g} ({match_result.residual_text})"
        for name, match_result in setting.matched.items()
    )
    machines = {
        match_result.timing.machine: match_result.timing.when
        for match_result in setting.matched.values()
        if match_result.timing
    }
    measured = (
        f"; measured in turns on {join_names(f'{name}, {when}' for name, when in machines.items())}" if machines else ""
    )
    return f"Matched on {match.on} by {match.by}: {join_names(texts, MAX_VALUES)}{measured}."


def matched_option_notes(setting: Setting) -> dict[str, str]:
    """Return a note on the matched option for each variant, for its certificate."""
    match = setting.study.match
    if match is None:
        return {}
    return {name: f"matched on {match.on} by {match.by}={match_result.value:g}: {match_result.residual_text}"
            for name, match_result in setting.matched.items()}  # fmt: skip


def mismatch_note(setting: Setting) -> str:
    """Describe the variants that are more than 5 % off the baseline's budget, and changes since steps were timed."""
    match = setting.study.match
    timing_changes = dict.fromkeys(
        line for match_result in setting.matched.values() if match_result.timing for line in match_result.timing.changes
    )
    changes_text = f"Since the steps were timed for the match, {join_names(timing_changes)}." if timing_changes else ""
    unmatched = [
        f"{name} ({match_result.residual:+.1%})"
        for name, match_result in setting.matched.items()
        if abs(match_result.residual) > MAX_MISMATCH
    ]
    if match is None or not unmatched:
        return changes_text
    names = join_names(unmatched, MAX_VALUES)
    text = f"No value of {match.by} matches the baseline's {match.on}, so these variants are not matched: {names}."
    return f"{text} {changes_text}".rstrip()


# ---------------------------------------------------------------------------------------------------------- tuning
def tuning_sections(plan: Plan, records: Records) -> Iterator[Section]:
    """Yield a section on the tuned values of each variant and the cost of tuning; nothing without tuning."""
    tune = plan.study.tune
    if tune is None:
        return
    owner = "its own" if len(tune.seeds) == 1 else "their own"
    seeds = f"{plural(len(tune.seeds), 'seed')} of {owner} ({join_names(tune.seeds, 4)})"
    cost = _cost(plan, records)
    pending = tuple(pending_notes(plan.tuned))
    yield Section(
        key="tuning",
        title=f"tuned: {join_names(tune.values)}",
        lines=(
            f"`{SAME}`: every variant with its own values; `{BEST}`: each with the values chosen here.",
            *(_choice_text(variant_tuning, plan) for variant_tuning in plan.tuned),
            *pending,
            _cost_text(cost, seeds),
        ),
        document={
            "seeds": list(tune.seeds),
            **cost,
            "choices": [_choice_json(variant_tuning) for variant_tuning in plan.tuned],
        },
        ok=plan.is_complete and not any(candidate.failed for tuned in plan.tuned for candidate in tuned.candidates),
    )


def _choice_text(tuned: VariantTuning, plan: Plan) -> str:
    """`attention=mqa: optimizer.lr=0.002 is its best (2.31; 0.001: 2.35, 0.004: diverged 1/2)`."""
    setting_name = plan.setting(tuned.setting).label
    label = f"{tuned.variant}, {setting_name}" if setting_name else tuned.variant
    alternatives = join_names((_candidate_text(candidate) for candidate in tuned.candidates), MAX_VALUES)
    if tuned.best is None:
        return f"{label}: not chosen yet ({alternatives})"
    chosen, is_default = tuned.candidates[tuned.best], tuned.best == tuned.default
    if chosen.mean is None:
        return f"{label}: default {format_cell(chosen.cell)}, as every value diverged or failed ({alternatives})"
    edge = f"; best at the edge of the tried values: {join_names(tuned.edge_keys)}" if tuned.edge_keys else ""
    return f"{label}: best at {format_cell(chosen.cell)}{', the default' if is_default else ''} ({alternatives}){edge}"


def _candidate_text(candidate: Candidate) -> str:
    values = " ".join(format_value(value) for _, value in candidate.cell)
    if candidate.pending:
        return f"{values}: {candidate.pending} of {len(candidate.trials)} without a record"
    if candidate.failed:
        return f"{values}: failed {candidate.failed}/{len(candidate.trials)}, not eligible"
    if candidate.mean is None:
        return f"{values}: diverged {candidate.diverged}/{len(candidate.trials)}"
    return f"{values}: {candidate.mean:.4g}"


def _cost(plan: Plan, records: Records) -> dict[str, Any]:
    """Return the cost of all trials of the tuning that have a record."""
    trials = {trial.identity for tuned in plan.tuned for trial in tuned.trials}
    tuning_records = [records[identity] for identity in trials if identity in records]
    flops = [record["result"].get("total_flops") for record in tuning_records]
    seconds = [record["provenance"].get("training_seconds") or 0.0 for record in tuning_records]
    total = math.fsum(amount for amount in flops if amount) if all(amount is not None for amount in flops) else None
    return {"trials": len(trials), "records": len(tuning_records), "total_flops": total, "seconds": math.fsum(seconds)}


def _cost_text(cost: Mapping[str, Any], seeds: str) -> str:
    flops = "" if not cost["total_flops"] else f", {cost['total_flops']:.3g} FLOPs"
    prefix = "" if cost["records"] == cost["trials"] else f"{cost['records']} of "
    text = f"{prefix}{plural(cost['trials'], 'trial')} on {seeds}{flops}, {cost['seconds']:.0f} s of training"
    return f"Tuning took {text}; no verdict and no cost in a table includes these trials."


def _choice_json(tuned: VariantTuning) -> dict[str, Any]:
    return {
        "setting": tuned.setting,
        "variant": tuned.variant,
        "chosen": None if tuned.chosen is None else dict(tuned.chosen),
        "default": dict(tuned.candidates[tuned.default].cell),
        "edges": list(tuned.edge_keys),
        "tried": [
            {
                "values": dict(candidate.cell),
                "mean": candidate.mean,
                "diverged": candidate.diverged,
                "failed": candidate.failed,
                "pending": candidate.pending,
            }
            for candidate in tuned.candidates
        ],
    }

"""What `paribus run --plan` shows: every variant with its trials, what it costs and how long it will take."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from paribus.analysis.formatting import compact
from paribus.cli._progress import duration
from paribus.cli.console import Session, out, out_json, table
from paribus.errors import EXIT_OK

if TYPE_CHECKING:
    from paribus.planning.api import PlannedStudy
    from paribus.planning.estimate import Row

HEADS = (
    "setting", "variant", "stage", "trials", "left", "parameters", "FLOPs/token", "train FLOPs", "cache/token",
    "memory", "s/trial", "matched",
)  # fmt: skip


def show_plan(planned: PlannedStudy, session: Session, jobs: int, as_json: bool) -> int:
    """Print the plan of a study, with the cost that a few steps of each variant estimate; write no record."""
    from paribus.planning.estimate import estimate
    from paribus.planning.tuning import pending_notes
    from paribus.runner.match_time import earlier_measurements, unsolved_matches
    from paribus.studies.designs import describe_design

    states = {trial.identity: planned.store.state(trial.identity) for trial in planned.plan.trials}
    registry = session.registry()
    loading_seconds = time.process_time()  # the fork server loads it once, too
    rows = estimate(planned.plan, registry, states)
    pending = sum(row.pending for row in rows)
    unknown = [*unsolved_matches(planned), *pending_notes(planned.plan.tuned)]
    seconds = loading_seconds + sum(row.seconds for row in rows) / jobs if pending else 0.0
    if as_json:
        excluded = [{"variant": exclusion.variant, "reason": exclusion.reason} for exclusion in planned.plan.excluded]
        variants = [_plain(row) for row in rows]
        document = {"variants": variants, "excluded": excluded, "loading_seconds": loading_seconds, "seconds": seconds}
        out_json({**document, **({"not_known": unknown} if unknown else {}), "jobs": jobs})
        return EXIT_OK
    for line in table(_filled([HEADS, *map(_cells, rows)])):
        out(line)
    for exclusion in planned.plan.excluded:
        out(f"excluded: {exclusion.variant}: {exclusion.reason}")
    if description := describe_design(planned.plan.study.design, planned.plan.study.varied):
        out(description)
    out()
    for line in (*dict.fromkeys(earlier_measurements(planned)), *unknown):
        out(line)
    out(f"the study is called {planned.name}; its records would be in {planned.store.root}")
    out(f"{pending} of {len(planned.plan.trials)} trials would run, {jobs} at a time: about {duration(seconds)},")
    out("with starting and evaluating, from five steps of each variant that were timed now on one thread; memory is")
    out("the most that this process held meanwhile; nothing was run or written")
    return EXIT_OK


def _plain(row: Row) -> dict[str, Any]:
    values = {key: value for key, value in row._asdict().items() if key not in ("stage", "setting") or value}
    document = {**values, "seconds_per_trial": row.seconds_per_trial}
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in document.items()
    }


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.setting,
        row.variant,
        row.stage,
        str(row.trials),
        str(row.pending),
        f"{row.parameters:,}",
        f"{row.flops_per_token:,.0f}",
        "?" if math.isnan(row.training_flops) else compact(row.training_flops, 1000, " kMGTPEZ"),
        compact(row.cache_bytes_per_token, 1024, "BKMGT") if row.cache_bytes_per_token else "-",
        compact(row.peak_bytes, 1024, "BKMGT"),
        f"{row.seconds_per_trial:.1f}",
        row.matched,
    )


def _filled(cells: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the cells without optional columns that are empty."""
    empty = {index for index in (0, 2, 8, 11) if all(row[index] in ("", "-") for row in cells[1:])}
    columns = [index for index, _ in enumerate(cells[0]) if index not in empty]
    return [tuple(row[index] for index in columns) for row in cells]

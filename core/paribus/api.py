"""Public functions that connect layers: `run` stops early by verdicts, and `compare` renders its tables."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import final

from paribus.analysis.api import compare as compare_records
from paribus.analysis.api import stopping_decision
from paribus.analysis.table import Table
from paribus.planning.api import PlannedStudy, study
from paribus.registry import Registry
from paribus.report.markdown import markdown
from paribus.report.terminal import table_text
from paribus.runner.api import run_study
from paribus.runner.progress import OnEvent, ignore_event
from paribus.slots.launcher import Plugins


def run(
    planned: PlannedStudy | str | Path,
    *,
    jobs: int = 1,
    registry: Registry | None = None,
    plugins: Plugins | None = None,
    on_event: OnEvent = ignore_event,
    resume: str = "",
    timing: bool | None = False,
) -> PlannedStudy:
    """Run the trials of a study that have no record yet, one process per trial, and return the study for `compare`.

    `paribus.compare(paribus.run(paribus.study("quickstart"), jobs=2))`

    Classes that exist only in this process (`registry.with_`) cannot be sent to another one: such a study runs in this
    process, trial by trial. `resume` is the command that an interrupted run shows to the user. `timing` controls the
    timing of training steps after the study; None times them where that is short compared with the study.
    """
    if not isinstance(planned, PlannedStudy):
        planned = study(planned, registry=registry)
    return run_study(
        planned,
        stopping_decision,
        jobs=jobs,
        registry=registry,
        plugins=plugins,
        on_event=on_event,
        resume=resume,
        timing=timing,
    )


@final
class TableRenderer:
    """Prints a table as in a terminal, and shows it as Markdown in a notebook."""

    def text(self, table: Table, width: int) -> str:
        return table_text(table, width)

    def markdown(self, table: Table) -> str:
        return markdown(table)


def compare(planned: PlannedStudy | str | Path, *, accept_code: Collection[str] = ()) -> Table:
    """Return the verdict table of a study, from the records in its store.

    `paribus.compare(paribus.run(paribus.study("quickstart"), jobs=2))`
    """
    return compare_records(planned, accept_code=accept_code).with_renderer(TableRenderer())

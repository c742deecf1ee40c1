"""All figures of a study, in the order of its report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paribus.analysis.table import Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.report.charts import Figure, cost_figures, curve_figure, forest_figure
from paribus.report.design_charts import family_figures, interaction_figures, length_figures, settings_figure
from paribus.report.scaling_charts import scaling_figure


def study_figures(
    table: Table, trials: Mapping[str, Sequence[TrialEntry]], comparisons: Mapping[str, ComparisonSpec]
) -> Iterator[tuple[str, Figure]]:
    """Yield every figure of a study with its setting, which is empty for figures of all settings."""
    yield from (("", figure) for figure in settings_figures(table))
    for setting in table.settings:
        for figure in setting_figures(setting, trials.get(setting.setting, ()), comparisons.get(setting.setting)):
            yield setting.setting, figure


def settings_figures(table: Table) -> Iterator[Figure]:
    """Yield the figures that compare settings."""
    if figure := settings_figure(table):
        yield figure
    if figure := scaling_figure(table):
        yield figure


def setting_figures(table: Table, entries: Sequence[TrialEntry], comparison: ComparisonSpec | None) -> Iterator[Figure]:
    """Yield the figures of one setting: differences, its design, curves, longer sequences, costs."""
    if any(row.difference is not None for row in table.rows):
        yield forest_figure(table)
    yield from family_figures(table)
    if comparison is not None:
        yield from interaction_figures(table, entries, comparison)
    if figure := curve_figure(table, entries):
        yield figure
    yield from length_figures(table, entries)
    yield from cost_figures(table)

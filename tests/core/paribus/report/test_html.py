"""HTML page of a study: complete tables and charts, no scripts but its own, no external resources, escaped names."""

from collections.abc import Callable
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from statistics import fmean

import pytest
from scipy import stats

from paribus.analysis.compare import compare
from paribus.analysis.formatting import clean
from paribus.analysis.table import Family, Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.report.charts import curve_figure, curve_values, forest_figure, pareto_front, seed_values
from paribus.report.html import html_page
from paribus.report.provenance import entry_runs

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]
Study = Callable[..., list[TrialEntry]]

METRIC = "val/mlm/loss"
NASTY = "<script>alert(1)</script>\"'&\x1b[31m\u202e"
VOID = {"meta", "input"}


class Reader(HTMLParser):
    """Parser that collects the elements and checks that each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(name="entries", scope="module")
def _entries(make: Make, study: Study) -> list[TrialEntry]:
    base = [2.00, 2.10, 1.90, 2.05, 1.95]
    entries = study(baseline=base, mqa=[value + 0.5 + index / 100 for index, value in enumerate(base)], gqa=base[::-1])
    entries += study(rmsnorm=["diverged", 2.0, 2.0, "failed", "pending"])
    return entries + [make(NASTY, seed, varied={"norm": "rmsnorm"}, loss=1.9 + seed / 50) for seed in range(5)]


@pytest.fixture(name="table", scope="module")
def _table(entries: list[TrialEntry], ask: Ask) -> Table:
    return compare(entries, ask(entries, margin=0.1))


@pytest.fixture(name="page", scope="module")
def _page(table: Table, entries: list[TrialEntry]) -> Reader:
    return read(html_page(table, {"": entries}, {}, "0123456789ab, with changes"))


@pytest.mark.thorough
def test_the_page_has_all_parts_of_a_table(page: Reader, table: Table) -> None:
    text = " ".join(page.text.split())
    for line in (*table.caption, *table.warnings, *table.notes):
        assert " ".join(clean(line).split()) in text
    for row in table.rows:
        assert row.verdict in text
    assert "+0.52" in text
    assert all(name in text for name in ("mqa", "gqa", "rmsnorm", "a processor", "0123456789ab, with changes"))
    assert "13/21 tensors equal at step 0" in text
    assert "torch 2.13.0+cpu" in text


@pytest.mark.thorough
def test_the_page_loads_nothing_and_runs_its_own_scripts_only(page: Reader) -> None:
    assert {tag for tag, _ in page.seen}.isdisjoint({"link", "img", "iframe", "object", "a", "form"})
    assert not any(name.startswith(("on", "src", "href")) for _, names in page.seen for name in names)
    (policy,) = (names["content"] or "" for _, names in page.seen if "Policy" in (names.get("http-equiv") or ""))
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    assert "unsafe" not in policy.partition("script-src")[2]


def test_of_the_charts_of_costs_a_menu_shows_one(make: Make, ask: Ask) -> None:
    entries = [make(), make("mqa", varied={"attention": "mqa"}, loss=2.1)]
    table = compare(entries, ask(entries))
    costs = {name: replace(cost, value=2.0 * (cost.value or 1.0)) for name, cost in table.rows[0].costs.items()}
    table = replace(table, rows=(replace(table.rows[0], costs=costs),))
    page = read(html_page(table, {"": entries}, {}))
    choices = [names["value"] for tag, names in page.seen if tag == "option" and "metric-by" in (names["value"] or "")]
    figures = [names for tag, names in page.seen if tag == "figure" and "metric-by" in (names["id"] or "")]
    assert [names["id"] for names in figures] == choices
    assert ["hidden" in names for names in figures] == [False, *[True] * (len(choices) - 1)]
    assert len(choices) > 2


def test_names_are_escaped(page: Reader) -> None:
    assert "<script>alert(1)</script>" in page.text  # as text
    assert "\x1b" not in page.text
    assert "\u202e" not in page.text


def test_every_dot_of_a_seed_is_inside_the_forest_plot(study: Study, ask: Ask) -> None:
    """An outlier moves the mean and widens the interval, so that it must not be cut off."""
    baseline = [2.0, 2.1, 1.9, 2.0, 2.05]
    entries = study(baseline=baseline, mqa=[*(loss - 0.1 for loss in baseline[:4]), 0.5])
    table = compare(entries, ask(entries))
    chart = forest_figure(table).chart.to_dict()
    (low, high) = next(
        layer["encoding"]["x"]["scale"]["domain"]
        for layer in chart["layer"]
        if "scale" in layer["encoding"].get("x", {})
    )
    differences = [value["difference"] for value in seed_values(table)]
    assert len(differences) == 5
    assert low < min(differences) < max(differences) < high


def test_the_forest_plot_has_the_numbers_of_the_table(table: Table) -> None:
    values = {value["variant"]: value for value in forest_figure(table).values}
    rows = [row for row in table.rows if row.difference is not None]
    assert [(clean(row.variant), row.difference, row.low, row.high) for row in rows] == [
        (name, value["difference"], value["low"], value["high"]) for name, value in values.items()
    ]


def test_a_curve_is_the_mean_over_seeds_with_the_interval_of_student(table: Table, entries: list[TrialEntry]) -> None:
    figure = curve_figure(table, entries)
    assert figure is not None
    last = [value for value in figure.values if value["variant"] == "gqa"][-1]
    finished = [entry.result["curve"][-1][METRIC] for entry in entries if entry.variant == "gqa"]
    low, high = stats.t.interval(0.95, 4, loc=fmean(finished), scale=stats.sem(finished))
    assert (last["mean"], last["low"], last["high"]) == pytest.approx((fmean(finished), low, high), rel=1e-5)
    assert curve_figure(replace(table, metric="val/other/loss"), entries) is None


def test_the_pareto_front_has_each_point_that_no_other_beats() -> None:
    points = [(1.0, 3.0), (2.0, 2.0), (2.0, 2.5), (3.0, 1.0), (3.0, 1.0), (4.0, 1.0)]
    assert pareto_front(points, (False, False)) == {0, 1, 3, 4}
    assert pareto_front(points, (True, False)) == {5}


@pytest.mark.thorough
def test_settings_have_an_overview_and_shared_notes_appear_once(table: Table, entries: list[TrialEntry]) -> None:
    flops_table = replace(table, setting="flops", warnings=("it was hot", *table.warnings))
    combined = replace(table, setting="params", other_settings=(flops_table,))
    text = html_page(combined, {"params": entries, "flops": entries}, {})
    page = read(text)
    assert text.count("<h3>Verdicts</h3>") == 2
    overview = text[text.index("<th>params</th><th>flops</th>") :].partition("</table>")[0]
    assert overview.count('<td class="worse">') == 2
    for line in (*table.caption, *table.warnings):
        assert text.count(f">{escape(clean(line))}<") == 1
    assert text.index("<h2>flops</h2>") < text.index("it was hot") < text.index("<h2>How to read it</h2>")
    figures = [names["id"] for tag, names in page.seen if tag == "figure"]
    assert len(set(figures)) == len(figures)
    assert [figures.count(name) for name in ("settings", "0-differences", "1-differences", "0-curves", "1-curves")] == [
        1
    ] * 5
    runs, planned = entry_runs(entries)
    assert f"trials: {len(runs)} of {planned}" in text


@pytest.mark.thorough
def test_the_provenance_covers_the_trials_of_every_setting(table: Table, make: Make) -> None:
    combined = replace(table, setting="params", other_settings=(replace(table, setting="flops"),))
    shared = [make(seed=seed) for seed in range(2)]
    flops = [make("mqa", seed, varied={"attention": "mqa"}) for seed in range(3)]
    text = html_page(combined, {"params": shared, "flops": [*shared, *flops]}, {})
    assert "trials: 5 of 5," in text


def test_a_curve_has_no_points_of_earlier_stages(make: Make, ask: Ask) -> None:
    pretrained = make(edits={"result/curve": [{"step": step, METRIC: 9.0} for step in (1000, 2000)]})
    tuned = replace(make(loss=2.5), parent=pretrained)
    steps = {value["step"] for value in curve_values([tuned], METRIC, [tuned.variant])}
    assert steps == {25, 100}


def test_provenance_counts_each_trial_and_its_parents_once(make: Make) -> None:
    parents = [make(seed=seed) for seed in range(2)]
    changes = {"attention": "mqa"}
    tuned = [replace(make("mqa", seed, varied=changes), parent=parents[seed]) for seed in range(2)]
    waiting = make("gqa", varied={"attention": "gqa"}, state="pending")
    runs, planned = entry_runs([*tuned, *tuned, waiting])
    assert (len(runs), planned) == (4, 5)


@pytest.mark.thorough
def test_each_step_of_a_ladder_shows_its_certificate(table: Table, entries: list[TrialEntry]) -> None:
    rows = (replace(table.rows[0], baseline="gqa"),)
    certificates = {rows[0].variant: next(iter(table.certificates.values()))}
    steps = Family(key="steps", title="steps", rows=rows, caption=("how",), certificates=certificates)
    text = html_page(replace(table, families=(steps,)), {"": entries}, {})
    assert f"{rows[0].variant}, from gqa: " in text
    assert text.index("<h2>Certificates</h2>") < text.index("<h2>steps</h2>")


@pytest.mark.thorough
def test_a_report_of_sixty_trials_is_small(make: Make, ask: Ask) -> None:
    names = ["baseline", *(f"position=p{number}" for number in range(5))]
    curve = [{"step": step, METRIC: 3.0 - step / 100} for step in range(1, 101)]
    entries = [
        make(name, seed, varied={"position": name} if number else {}, loss=2 + seed / 50, edits={"result/curve": curve})
        for number, name in enumerate(names)
        for seed in range(10)
    ]
    assert len(html_page(compare(entries, ask(entries)), {"": entries}, {}).encode()) < 2 * 1024**2

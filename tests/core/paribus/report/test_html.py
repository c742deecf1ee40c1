"""HTML page of a study: complete table, no scripts, no external resources, escaped names."""

import re
from collections.abc import Callable
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import pytest

from paribus.analysis.compare import compare
from paribus.analysis.formatting import clean
from paribus.analysis.table import Family, Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.report.html import html_page
from paribus.report.plots import curve_points, curves_svg, forest_svg
from paribus.report.provenance import entry_runs

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]
Study = Callable[..., list[TrialEntry]]

METRIC = "val/mlm/loss"
NASTY = "<script>alert(1)</script>\"'&\x1b[31m\u202e"
VOID = {"meta", "rect", "line", "circle", "polyline"}


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
    return read(html_page(table, {"": entries}, "0123456789ab, with changes"))


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


def test_the_page_has_no_scripts_and_loads_nothing(page: Reader) -> None:
    assert {tag for tag, _ in page.seen}.isdisjoint({"script", "link", "img", "iframe", "object", "a", "form"})
    assert not any(name.startswith(("on", "src", "href")) for _, names in page.seen for name in names)
    assert any("default-src 'none'" in (names.get("content") or "") for _, names in page.seen)


def test_names_are_escaped(page: Reader) -> None:
    assert "<script>alert(1)</script>" in page.text  # as text
    assert "\x1b" not in page.text
    assert "\u202e" not in page.text


def test_a_forest_plot_draws_intervals_to_scale(table: Table) -> None:
    picture = read(forest_svg(table))
    lines = [names for tag, names in picture.seen if tag == "line" and "interval" in (names.get("class") or "")]
    assert len(lines) == sum(row.low is not None for row in table.rows)
    zero = next(float(names["x1"] or 0) for tag, names in picture.seen if names.get("class") == "axis")
    worse = next(names for names in lines if names["class"] == "interval worse")
    assert zero < float(worse["x1"] or 0) < float(worse["x2"] or 0)
    numbers = [float(number) for number in re.findall(r'(?<!\w)(?:[xy][12]?|c[xy])="([^"]+)"', forest_svg(table))]
    assert all(0 <= number <= 760 for number in numbers)


def test_a_curve_is_drawn_for_each_trial_in_the_color_of_its_variant(table: Table, entries: list[TrialEntry]) -> None:
    names = [row.variant for row in (table.baseline, *table.rows)]
    picture = read(curves_svg(curve_points(entries), table.metric, names))
    lines = [names for tag, names in picture.seen if tag == "polyline"]
    assert len(lines) == sum(entry.done for entry in entries)
    assert len({names["stroke"] for names in lines}) == 5
    assert curves_svg([], table.metric, names) == ""
    assert curves_svg(curve_points(entries), "val/other/loss", names) == ""


def test_steps_on_the_axis_are_labelled() -> None:
    run = [{"variant": "a", "identity": "1", "step": step, "loss": 1.0 / step} for step in (1, 10)]
    assert re.findall(r">([\d.]+)</text>", curves_svg(run, "loss", ["a"]))[1::2] == ["0", "2.5", "5", "7.5", "10"]
    long = [{**point, "step": 1000 * point["step"]} for point in run]
    assert ">2,500</text>" in curves_svg(long, "loss", ["a"])


def test_settings_have_an_overview_and_shared_notes_appear_once(table: Table, entries: list[TrialEntry]) -> None:
    flops_table = replace(table, setting="flops", warnings=("it was hot", *table.warnings))
    combined = replace(table, setting="params", other_settings=(flops_table,))
    text = html_page(combined, {"params": entries, "flops": entries})
    page = read(text)
    assert [tag for tag, _ in page.seen].count("table") == 3
    overview, *_ = text.split("</table>")
    assert "<th>params</th><th>flops</th>" in overview
    assert overview.count('<td class="worse">') == 2
    for line in (*table.caption, *table.warnings):
        assert text.count(f">{escape(clean(line))}<") == 1
    assert text.index("<h2>flops</h2>") < text.index("it was hot") < text.index("<h2>How to read it</h2>")
    assert text.count("<h3>Differences</h3>") == 2
    done = sum(entry.done for entry in entries)
    assert text.count("<polyline") == 2 * done  # a trial that both settings share is drawn in both
    runs, planned = entry_runs(entries)
    assert f"trials: {len(runs)} of {planned}" in text


def test_the_provenance_covers_the_trials_of_every_setting(table: Table, make: Make) -> None:
    combined = replace(table, setting="params", other_settings=(replace(table, setting="flops"),))
    shared = [make(seed=seed) for seed in range(2)]
    flops = [make("mqa", seed, varied={"attention": "mqa"}) for seed in range(3)]
    text = html_page(combined, {"params": shared, "flops": [*shared, *flops]})
    assert "trials: 5 of 5," in text


def test_a_curve_has_no_points_of_earlier_stages(make: Make, ask: Ask) -> None:
    pretrained = make(edits={"result/curve": [{"step": step, METRIC: 9.0} for step in (1000, 2000)]})
    tuned = replace(make(loss=2.5), parent=pretrained)
    steps = {point["step"] for point in curve_points([tuned])}
    assert steps == {25, 100}


def test_provenance_counts_each_trial_and_its_parents_once(make: Make) -> None:
    parents = [make(seed=seed) for seed in range(2)]
    changes = {"attention": "mqa"}
    tuned = [replace(make("mqa", seed, varied=changes), parent=parents[seed]) for seed in range(2)]
    waiting = make("gqa", varied={"attention": "gqa"}, state="pending")
    runs, planned = entry_runs([*tuned, *tuned, waiting])
    assert (len(runs), planned) == (4, 5)


def test_each_step_of_a_ladder_shows_its_certificate(table: Table, entries: list[TrialEntry]) -> None:
    rows = (replace(table.rows[0], baseline="gqa"),)
    certificates = {rows[0].variant: next(iter(table.certificates.values()))}
    steps = Family(key="steps", title="steps", rows=rows, caption=("how",), certificates=certificates)
    text = html_page(replace(table, families=(steps,)), {"": entries})
    assert f"{rows[0].variant}, from gqa: " in text
    assert text.index("<h2>Certificates</h2>") < text.index("<h2>steps</h2>")

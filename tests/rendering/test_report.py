"""Reports in headless Chromium: every chart is drawn, readable in both themes and on a phone, without an error."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import paribus
from paribus.cli.main import main
from paribus.report.attention_page import attention_page

pytestmark = pytest.mark.rendering

BASE = "{preset: gpt-tiny, dims.layers: 2, dims.width: 32, dims.heads: 2, data.batch: 8, data.validation: 64}"
METRIC = "{name: val/clm/loss, better: lower, margin: 0.05, unlearned: true}"
STUDIES = {
    "differences": "vary: {attention: [mqa, {name: restricted, window: 4}, linear], position: [rope]}\nseeds: 2",
    "ladder": "design: ladder\nchanges: [{norm: rmsnorm}, {position: rope}, {feedforward: glu}]\nseeds: 2",
    "factorial": "design: factorial\nvary: {norm: [rmsnorm], position: [rope]}\nseeds: 2",
    "scales": "vary: {position: [rope, alibi]}\n"
    "scales: {small: {dims.width: 32}, middle: {dims.width: 40}, large: {dims.width: 48}}\n"
    "measure: [extrapolation]\nseeds: 2",
}
WIDTHS = (1280, 390)
THEMES = ("light", "dark")
SCREENSHOTS = Path(os.environ.get("PARIBUS_SCREENSHOTS", "build/screenshots"))

# Text that is clipped or too small, and text whose contrast with its background is too low (WCAG 2: 4.5).
UNREADABLE = """() => {
  const channel = (value) => (value /= 255, value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const color = (text) => (text.match(/[\\d.]+/g) ?? [0, 0, 0, 0]).map(Number);
  const background = (node) => {
    for (let place = node; place instanceof Element; place = place.parentElement) {
      const value = color(getComputedStyle(place).backgroundColor);
      if (value.length === 3 || value[3] > 0) return value;
    }
    return [255, 255, 255];
  };
  const problems = [];
  for (const text of document.querySelectorAll("figure svg text, h1, h2, p, li, td, th, figcaption, summary, label")) {
    if (!text.textContent.trim() || !text.checkVisibility({ opacityProperty: true })) continue;
    const style = getComputedStyle(text);
    const inChart = text instanceof SVGElement;
    const [one, other] = [color(inChart ? style.fill : style.color), background(text)].map(luminance);
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < 4.5) problems.push(`contrast ${contrast.toFixed(1)}: ${text.textContent.slice(0, 40)}`);
    if (parseFloat(style.fontSize) < 9) problems.push(`${style.fontSize}: ${text.textContent.slice(0, 40)}`);
    if (!inChart) continue;
    const box = text.getBoundingClientRect(), chart = text.ownerSVGElement.getBoundingClientRect();
    if (box.left < chart.left - 1 || box.right > chart.right + 1) problems.push(`clipped: ${text.textContent}`);
  }
  return problems;
}"""


@pytest.fixture(scope="module", name="browser")
def _browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


# Each study is run by one worker.
REPORTS = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in STUDIES]


@pytest.fixture(scope="module", params=REPORTS, name="report")
def _report(request: pytest.FixtureRequest, folder: Path) -> Path:
    """Return the report of a small study that was really run."""
    name: str = request.param
    study = folder / f"{name}.yaml"
    study.write_text(f"base: {BASE}\nbudget: {{steps: 12}}\nmetric: {METRIC}\n{STUDIES[name]}\n")
    report = study.with_suffix(".html")
    store = ["--store", str(folder / "runs")]
    assert main(["run", str(study), "--jobs", "2", *store]) == 0
    attend = ["--attend", "The import statement"] if name == "differences" else []
    assert main(["report", str(study), "-o", str(report), *attend, *store]) == 0
    return report


class Page:
    """A report that is open in a browser, with what its console and its requests said."""

    def __init__(self, browser: Any, report: Path, width: int = 1280, theme: str = "light", **options: Any) -> None:
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme, **options)
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(report.as_uri())

    def drawn(self) -> Any:
        self.page.wait_for_selector("body.drawn", timeout=60_000)
        return self.page


def assert_readable(browser: Any, path: Path, width: int, theme: str) -> None:
    """Assert that a page draws every chart, sends no request, prints no message, and that its text can be read."""
    opened = Page(browser, path, width, theme)
    page = opened.drawn()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(SCREENSHOTS / f"{path.stem}-{theme}-{width}.png"), full_page=True)
    assert opened.messages == []
    assert [url for url in opened.requests if url != path.as_uri()] == []
    marks = page.evaluate(
        "() => [...document.querySelectorAll('figure:not([hidden])')].map((figure) => "
        "[figure.id, figure.querySelectorAll('svg [role=graphics-symbol], svg .mark-rect path').length])"
    )
    assert marks
    assert [name for name, count in marks if not count] == []
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    assert page.evaluate(UNREADABLE) == []
    page.close()


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_chart_is_drawn_and_readable(browser: Any, report: Path, width: int, theme: str) -> None:
    assert_readable(browser, report, width, theme)


@pytest.mark.parametrize("theme", THEMES)
def test_the_page_of_complexities_is_drawn_and_readable(browser: Any, folder: Path, theme: str) -> None:
    path = folder / "complexity.html"
    sizes = ["--lengths", "32,64,128", "--widths", "16,32,64", "--rounds", "2"]
    if not path.exists():
        assert main(["bench", "complexity", "restricted", "linear", *sizes, "-o", str(path)]) == 0
    for width in WIDTHS:
        assert_readable(browser, path, width, theme)


def test_a_report_has_the_charts_of_its_design(browser: Any, report: Path) -> None:
    page = Page(browser, report).drawn()
    ids = page.evaluate("() => [...document.querySelectorAll('figure')].map((figure) => figure.id)")
    expected = {
        "differences": {"differences", "curves", "attention-0", "attention-3"},
        "ladder": {"differences", "ladder", "curves"},
        "factorial": {"differences", "interaction-1-2", "curves"},
        "scales": {"settings", "scaling", "0-differences", "1-curves", "0-length-clm-loss"},
    }
    assert expected[report.stem] <= set(ids)
    page.close()


def test_everything_is_there_without_scripts_and_on_paper(browser: Any, report: Path) -> None:
    page = Page(browser, report, java_script_enabled=False).page
    assert "The charts need JavaScript" in page.content()
    assert page.locator("figure table").count() == page.locator("figure").count()
    page.close()
    page = Page(browser, report).drawn()
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert len(page.pdf()) > 10_000
    page.close()


@pytest.mark.parametrize("report", ["differences"], indirect=True)
def test_readers_choose_variants_axes_and_heads(browser: Any, report: Path) -> None:
    page = Page(browser, report).drawn()
    lines = page.locator("#curves .mark-line path")
    shown = lines.count()
    page.get_by_role("checkbox", name="attention=mqa").uncheck()
    page.wait_for_function(f"document.querySelectorAll('#curves .mark-line path').length === {shown - 1}")
    page.locator("#curves select[name=x]").select_option("tokens")
    page.wait_for_selector("#curves svg text:text-is('training tokens')")
    before = page.locator("#attention-1 .role-mark.mark-rect").inner_html()
    page.locator("#attention-0 input[name=layer]").focus()
    page.keyboard.press("ArrowLeft")  # the sliders of the other maps move as well
    page.wait_for_function("document.querySelector('#attention-1 input[name=layer]').value === '0'")
    page.wait_for_function(
        "(before) => document.querySelector('#attention-1 .role-mark.mark-rect').innerHTML !== before", arg=before
    )
    page.close()


@pytest.mark.parametrize("report", ["differences"], indirect=True)
def test_a_menu_shows_one_of_the_charts_of_costs(browser: Any, report: Path) -> None:
    opened = Page(browser, report)
    page = opened.drawn()
    menu, shown = page.locator("select[name=chart]"), page.locator(".menu figure:visible")
    names = [option.get_attribute("value") for option in menu.locator("option").all()]
    assert len(names) == page.locator(".menu figure").count() > 1
    page.get_by_role("checkbox", name="attention=mqa").uncheck()  # before the other charts are drawn
    menu.focus()
    for place, name in enumerate(names):
        if place:
            page.keyboard.press("ArrowDown")
        page.wait_for_selector(f"#{name} svg .mark-symbol path")
        assert [figure.get_attribute("id") for figure in shown.all()] == [name]
        page.wait_for_function(f"document.querySelectorAll('#{name} .mark-symbol.role-mark path').length === 4")
    assert opened.messages == []
    page.close()
    page = Page(browser, report, java_script_enabled=False).page
    assert [figure.get_attribute("id") for figure in page.locator(".menu figure:visible").all()] == names[:1]
    page.close()


@pytest.mark.parametrize("report", ["differences"], indirect=True)
def test_charts_have_a_name_for_screen_readers(browser: Any, report: Path) -> None:
    page = Page(browser, report).drawn()
    names = page.evaluate(
        "() => [...document.querySelectorAll('figure:not([hidden]) .chart')].map((place) => "
        "(place.matches('[role]') ? place : place.querySelector('[role=graphics-document]'))?.ariaLabel ?? '')"
    )
    assert "Differences in val/clm/loss with their intervals. attention=mqa: " in names[0]
    assert all(len(name) > 20 for name in names)
    page.close()


@pytest.mark.parametrize("report", ["differences", "factorial"], indirect=True)
def test_figures_are_files_as_wide_as_a_column(report: Path, folder: Path) -> None:
    figures = folder / f"{report.stem}-figures"
    arguments = [str(report.with_suffix(".yaml")), "-o", str(report), "--store", str(folder / "runs")]
    assert main(["report", *arguments, "--figures", str(figures)]) == 0
    captions = json.loads((figures / "captions.json").read_text())
    assert {"differences", "curves"} <= set(captions)
    for name in captions:
        svg = (figures / f"{name}.svg").read_text()
        assert 'width="240"' in svg.partition(">")[0]
        assert "currentColor" not in svg
        assert (figures / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (figures / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture(scope="module", name="pair_page")
def _pair_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attention")
    small = [
        "dims.width=16",
        "dims.heads=2",
        "dims.length=32",
        "data.batch=4",
        "data.validation=4",
        "trainer.max_steps=1",
    ]
    assert main(["train", "bert-tiny", *small, "--save", str(folder / "bert"), "--store", str(folder / "runs")]) == 0
    page = folder / "pair.html"
    assert main(["attend", str(folder / "bert"), "a list", "of names", "-o", str(page)]) == 0
    return page


@pytest.mark.xdist_group("attention")
def test_lines_of_attention_follow_the_chosen_head_texts_and_token(browser: Any, pair_page: Path) -> None:
    errors: list[str] = []
    page = browser.new_page(viewport={"width": 1100, "height": 900})
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(pair_page.as_uri())
    tokens, lines = page.locator("text.token").count() // 2, page.locator("line.weight")
    assert lines.count() == tokens * tokens
    page.select_option("#head", "1")
    page.select_option("#filter", "AB")
    first = page.evaluate("data.second")
    assert lines.count() == first * (tokens - first)
    page.hover("text.token >> nth=1")
    assert lines.count() == tokens - first
    page.select_option("#as", "matrix")
    assert page.locator("rect.weight").count() == tokens * tokens
    page.screenshot(path=SCREENSHOTS / "attention.png")
    assert not errors
    page.close()


@pytest.mark.xdist_group("attention")
def test_long_texts_scroll_within_the_page_and_their_words_have_brackets(browser: Any, pair_page: Path) -> None:
    words = " ".join(["ab"] * 60)
    weights = torch.rand(2, 180, 180).softmax(-1)
    word_ids = tuple((index + 1) // 3 for index in range(180))
    maps = paribus.AttentionMaps(
        "self", tuple(words), tuple(words), (weights,), query_words=word_ids, key_words=word_ids
    )
    path = pair_page.with_name("long.html")
    path.write_text(attention_page(maps, words * 2))
    page = browser.new_page(viewport={"width": 1100, "height": 900})
    page.goto(path.as_uri())
    assert page.locator("rect.weight").count() == 128 * 128
    assert page.locator("path.word").count() == 2 * 43
    page.select_option("#as", "heads")
    assert page.locator("path.word").count() == 2 * 43
    assert page.locator("line.weight").count() <= 2000
    assert page.evaluate("document.documentElement.scrollHeight") < 1300
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    page.close()


@pytest.mark.xdist_group("attention")
@pytest.mark.parametrize("theme", THEMES)
def test_neurons_are_the_numbers_of_the_model(browser: Any, pair_page: Path, theme: str) -> None:
    maps = paribus.attend(pair_page.parent / "bert", "a list", "of names", scores=True)
    scores, weights = maps.scores[0], maps.layers[0]
    assert scores is not None
    assert weights is not None
    errors: list[str] = []
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=theme)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(pair_page.as_uri())
    page.select_option("#as", "neurons")
    for name, value in (("layer", "0"), ("head", "1"), ("query", "2")):
        page.select_option(f"#{name}", value)
    rows, tokens = page.locator("g.key"), len(maps.key_tokens)
    assert rows.count() == tokens
    shown = [text.replace("\N{MINUS SIGN}", "-") for text in page.locator("text.number.score").all_text_contents()]
    assert [float(text) for text in shown] == pytest.approx(scores.scores[1, 2].tolist(), abs=6e-4)
    written = page.locator("text.number.share").all_text_contents()
    assert [float(text) for text in written] == pytest.approx(weights[1, 2].tolist(), abs=6e-4)
    for name, vectors in (("k", scores.k[1]), ("product", scores.products(1, 2))):
        for s in (0, tokens - 1):
            cells = rows.nth(s).locator(f"g.{name} rect:not(.ground)")
            signs = ["plus" if value >= 0 else "minus" for value in vectors[s].tolist()]
            assert [cell.get_attribute("class") for cell in cells.all()] == signs
            opacities = [float(cell.get_attribute("fill-opacity")) for cell in cells.all()]
            assert opacities == pytest.approx((vectors[s].abs() / vectors.abs().max()).tolist(), abs=0.006)
    rows.first.locator("g.product").hover()
    assert page.inner_text("#readout").startswith("channel 4: q ")
    page.select_option("#filter", "AB")  # the query is of the first text
    assert rows.count() == tokens - page.evaluate("data.second")
    assert page.evaluate(UNREADABLE.replace("figure svg text", "svg text")) == []
    page.screenshot(path=SCREENSHOTS / f"neurons-{theme}.png")
    assert not errors
    page.close()

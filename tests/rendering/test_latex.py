"""LaTeX tables of the shipped studies, compiled with pdflatex in a two-column article: nothing is too wide."""

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.records import digest

import paribus
from paribus.analysis.compare import compare
from paribus.analysis.formatting import Cell, Column, Grid
from paribus.analysis.table import Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.report.latex import latex
from paribus.report.table_views import study_grid
from paribus.storage.atomic import write_json

pytestmark = pytest.mark.rendering

SHIPPED = ("quickstart", "bert-to-modernbert", "recipe", "probes", "perplexity")
ABLATIONS = Path(__file__).parents[2] / "ablations"
ARTICLE = r"""\documentclass[%s]{article}
\usepackage{booktabs}
%s
\begin{document}
Text.
%s
\clearpage
\end{document}
"""


def certificate(spec: dict[str, Any], seed: int) -> dict[str, Any]:
    """Return a certificate that allows a verdict: published trials have none."""
    order = digest(seed, *(spec[key] for key in ("corpus", "tokenizer", "data", "trainer")), spec["dims"]["length"])
    draws = digest(seed)
    tensor = {"shape": [2, 2], "draws": draws, "initialisation": "", "value": draws, "signs": draws}
    return {
        "tensors": {"weight": tensor},
        "outputs": digest(seed, {key: value for key, value in spec.items() if key != "evaluate"}),
        "validation": digest(spec["corpus"], spec["tokenizer"], spec["dims"]["length"], spec["evaluate"]),
        "order": order,
        "batches": digest(order, spec["objective"]),
        "losses": digest(spec),
        "no_gradient": [],
        "first_step": {"loss": "", "gradients": "", "evaluation": "", "unrepeatable": [], "generators": []},
        "changed_tensors": [],
        "targets": {"training": {}, "evaluation": {}},
    }


@pytest.fixture(scope="module", name="shipped")
def _shipped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Table]:
    """Return a function that makes the table of a shipped study from its published trials."""

    @cache
    def table(name: str) -> Table:
        planned = paribus.study(name, store=tmp_path_factory.mktemp("runs"))
        lines = map(json.loads, (ABLATIONS / name / "records.jsonl").read_text().splitlines())
        published = {(line["variant"], line["seed"], line.get("stage", "")): line for line in lines}
        for trial in planned.plan.trials:
            line = published[trial.variant, trial.seed, trial.stage]
            spec = dict(trial.spec)
            result = {"curve": [], "certificate": certificate(spec, trial.seed), **line["result"]}
            provenance = {"host": "here", "started": 0.0, "ended": 1.0, **line["provenance"]}
            document: dict[str, Any] = {
                "identity": trial.identity,
                "spec": spec,
                "result": result,
                "provenance": provenance,
            }
            write_json(planned.store.create_folder(trial) / "record.json", document)
        return paribus.compare(planned)

    return table


@pytest.fixture(name="overfull")
def _overfull(tmp_path: Path) -> Callable[..., list[str]]:
    """Return a function that compiles tables and returns the boxes that are too wide; an error fails the test."""

    def compile_article(source: str, style: str = "twocolumn", width: str = "") -> list[str]:
        (tmp_path / "article.tex").write_text(ARTICLE % (style, width, source))
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "article.tex"]
        process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert process.returncode == 0, process.stdout[-2000:]
        return re.findall(r"Overfull \\hbox.*", (tmp_path / "article.log").read_text(errors="replace"))

    return compile_article


def environments(source: str) -> list[str]:
    return re.findall(r"\\begin\{(table\*?)\}", source)


@pytest.mark.parametrize("name", SHIPPED)
def test_tables_of_a_shipped_study_fit(
    name: str, shipped: Callable[[str], Table], overfull: Callable[..., list[str]]
) -> None:
    source = shipped(name).to_latex()
    assert overfull(source) == []
    families = len(shipped(name).families)
    assert environments(source) == ["table", "table*", *["table"] * families]  # verdicts, costs
    for caption in re.findall(r"\\caption\[.*?\]\{(.*)\}", source):
        assert len(caption.split()) < 60


def test_tables_of_a_study_over_tasks_fit(shipped: Callable[[str], Table], overfull: Callable[..., list[str]]) -> None:
    source = shipped("downstream").to_latex()
    assert overfull(source) == []
    assert source.count("overlap") >= 2


@pytest.mark.parametrize("width", [None, 241, 397])
@pytest.mark.parametrize("name", SHIPPED)
def test_tables_fit_into_the_text_of_a_one_column_paper(
    name: str, width: int | None, shipped: Callable[[str], Table], overfull: Callable[..., list[str]]
) -> None:
    size = rf"\setlength{{\textwidth}}{{{width}pt}}" if width else ""  # that of `article` is 345 pt
    source = shipped(name).to_latex(width=width)
    assert overfull(source, "onecolumn", size) == []
    assert not width or {*environments(source)} == {"table"}


@pytest.mark.parametrize(
    ("columns", "environment"),
    [
        (["variant", "n", "difference", "verdict", "parameters"], "table"),
        (["difference", "variant"], "table"),
        (["variant", "n", "mean", "difference", "verdict", "parameters", "tokens_per_second"], "table*"),
        (
            ["variant", "n", "mean", "difference", "verdict", "parameters", "flops_per_token", "total_flops"],
            "table*",
        ),
    ],
)
def test_chosen_columns_fit_a_column_or_a_page(
    columns: Sequence[str], environment: str, shipped: Callable[[str], Table], overfull: Callable[..., list[str]]
) -> None:
    sources = [shipped(name).to_latex(columns) for name in SHIPPED]
    assert overfull("\n".join(sources)) == []
    assert environments(sources[0])[0] == environment


def test_tables_of_several_settings_fit(shipped: Callable[[str], Table], overfull: Callable[..., list[str]]) -> None:
    table = shipped("quickstart")
    names = ("d_model 128, each at its best learning rate of optimizer.lr=1e-3 and 3e-3", "d_model 256")
    first, second = (replace(table, setting=name) for name in names)
    source = replace(first, other_settings=(second,)).to_latex()
    assert overfull(source) == []
    assert environments(source) == ["table", "table*"]
    assert source.count(r"\multicolumn") == 4


def test_nasty_names_and_withheld_verdicts_fit(
    make: Callable[..., TrialEntry],
    ask: Callable[..., ComparisonSpec],
    study: Callable[..., list[TrialEntry]],
    overfull: Callable[..., list[str]],
) -> None:
    entries = study(baseline=[2.0, 2.1, 1.9, 2.05, 1.95], mqa=[2.5, 2.6, "diverged", 2.5, 2.4])
    for name in ("50% of $x_{1}^2$ & \\input{/etc/passwd} #1 ~ <a|b> \"q\" --``''", "[*", "x" * 90, "中文 é ö ≥ µ"):
        entries += [make(name, seed, varied={"norm": "rmsnorm"}, loss=1.9 + seed / 50) for seed in range(5)]
    source = latex(study_grid(compare(entries, ask(entries))), "nasty")
    assert overfull(source) == []


def test_benchmarks_and_pairs_of_trials_fit(overfull: Callable[..., list[str]]) -> None:
    benchmarks = Grid(
        title="time of a round: less is better",
        columns=[
            Column("benchmark", wrap="name"),
            Column("before", align_right=True),
            Column("after", align_right=True),
            Column("after / before", key="ratio"),
            Column("A/A", align_right=True),
            Column("verdict", wrap="verdict"),
        ],
        rows=[
            [
                *map(Cell, (name, "437 µs", "527 µs", "1.206 [0.497, 2.440]", "±57 %")),
                Cell("inconclusive (one run on each side)", "inconclusive"),
            ]
            for name in ("test_attention_forward_backward[mqa-float32-1024]", "test_json")
        ],
        header=["before: one run of 2026-11-25"],
        remarks=[("!", ["ACROSS MACHINES: a.json and b.json"]), ("·", ["A/A is the noise of unchanged code."])],
    )
    trials = Grid(
        title="two trials",
        columns=[
            Column("", wrap="name", key="metric"),
            Column("before", align_right=True),
            Column("after", align_right=True),
            Column("after - before", align_right=True, key="difference"),
        ],
        rows=[[*map(Cell, ("val/extrapolation/completion.accuracy.x2", "0.263112", "0.528901", "+0.265789"))]],
    )
    sources = [latex(benchmarks, "benchmarks"), latex(trials, "trials")]
    assert overfull("\n".join(sources)) == []
    assert [environments(source) for source in sources] == [["table*"], ["table"]]

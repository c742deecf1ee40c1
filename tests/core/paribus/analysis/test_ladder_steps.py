"""The steps of a ladder: each rung against the one below, with a certificate and a family of their own."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from paribus.analysis.compare import compare
from paribus.analysis.table import Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.analysis.verdicts import PairedDifferences, decide
from paribus.report.latex import latex
from paribus.report.markdown import markdown
from paribus.report.table_views import study_grid, to_csv
from paribus.report.terminal import table_text

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]

RUNGS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "mqa": {"attention": "mqa"},
    "mqa, rms": {"attention": "mqa", "norm": "rmsnorm"},
    "mqa, rms, slow": {"attention": "mqa", "norm": "rmsnorm", "optimizer.lr": 1e-3},
}
BELOW = dict(zip([*RUNGS][1:], RUNGS, strict=False))
LOSSES: dict[str, list[float]] = {
    "baseline": [2.00, 2.10, 1.90, 2.05, 1.95],
    "mqa": [2.50, 2.61, 2.39, 2.56, 2.44],
    "mqa, rms": [2.20, 2.32, 2.09, 2.25, 2.16],
    "mqa, rms, slow": [2.21, 2.30, 2.11, 2.26, 2.14],
}


def climbed(make: Make, losses: Mapping[str, Sequence[float | str]], **edits: Any) -> list[TrialEntry]:
    return [
        make(
            name,
            seed,
            varied=RUNGS[name],
            **({"state": outcome} if isinstance(outcome, str) else {"loss": outcome}),
            **({"edits": edits[str(seed)]} if name == "mqa" and str(seed) in edits else {}),
        )
        for name, rung_losses in losses.items()
        for seed, outcome in enumerate(rung_losses)
    ]


def table_of(make: Make, ask: Ask, losses: Any = None, **options: Any) -> Table:
    entries = climbed(make, losses or LOSSES)
    return compare(entries, ask(entries, rungs_below=BELOW, **options))


@pytest.mark.parametrize("margin", [None, 0.1])
def test_a_step_is_decided_as_a_variant_against_the_rung_below_would_be(
    make: Make, ask: Ask, margin: float | None
) -> None:
    table = table_of(make, ask, margin=margin)
    (family,) = table.families
    differences = {
        name: tuple(b - a for a, b in zip(LOSSES[below], LOSSES[name], strict=True)) for name, below in BELOW.items()
    }
    paired = {
        name: PairedDifferences(differences=values, diverged=0, planned=5) for name, values in differences.items()
    }
    expected = decide(paired, better="lower", margin=margin)
    for row in family.rows:
        verdict = expected[row.variant]
        assert (row.verdict, row.difference, row.low, row.high, row.p) == (
            verdict.text,
            verdict.difference,
            verdict.low,
            verdict.high,
            verdict.p,
        )
    assert [(row.variant, row.baseline) for row in family.rows] == list(BELOW.items())
    assert [row.kind for row in family.rows][:2] == ["worse", "better"]
    assert table.rows[1].kind == "worse", "against the bottom it is still worse"


def test_each_step_has_the_certificate_of_its_own_pairs(make: Make, ask: Ask) -> None:
    (family,) = table_of(make, ask).families
    assert all(certificate.ok for certificate in family.certificates.values())
    assert {path.partition(".")[0] for path in family.certificates["mqa, rms"].differing_paths} == {"norm"}
    entries = climbed(make, LOSSES, **{"0": {"result/certificate/batches": "other"}})
    table = compare(entries, ask(entries, rungs_below=BELOW))
    kinds = {row.variant: row.verdict for row in table.families[0].rows}
    assert kinds["mqa"].startswith("withheld (other batches")
    assert kinds["mqa, rms"].startswith("withheld (other batches")
    assert "withheld" not in kinds["mqa, rms, slow"]
    assert "withheld" not in table.rows[1].verdict, "the bottom and the second rung saw the same batches"
    assert not table.families[0].ok


def test_a_diverged_rung_affects_only_its_two_steps(make: Make, ask: Ask) -> None:
    losses = {**LOSSES, "mqa": [2.5, 2.6, "diverged", 2.5, 2.4]}
    (family,) = table_of(make, ask, losses).families
    assert [row.verdict for row in family.rows][:2] == ["diverged 1/5", "baseline diverged 1/5"]
    assert family.rows[2].n == 5


def test_steps_are_in_every_output_format(make: Make, ask: Ask) -> None:
    table = table_of(make, ask)
    for width in (40, 60, 80, 120, 200):
        text = table_text(table, width)
        assert "steps, each rung" in text
        assert max(map(len, text.splitlines())) <= width
        assert " ".join(text.split()).count("Holm over 3") == 2
    document = markdown(table)
    assert "### steps, each rung against the one below" in document
    assert "| `mqa, rms` | `mqa` | 5 | " in document
    steps = json.loads(json.dumps(table.to_json()))["steps"]
    assert [(row["name"], row["baseline"], row["n"]) for row in steps["rows"]] == [(a, b, 5) for a, b in BELOW.items()]
    assert "both together" in steps["caption"][0]


def test_a_study_that_is_no_ladder_has_no_steps(make: Make, ask: Ask) -> None:
    entries = climbed(make, LOSSES)
    table = compare(entries, ask(entries))
    assert table.families == ()
    assert "steps" not in table.to_json()


def test_excluded_cells_are_listed_with_their_reason(make: Make, ask: Ask) -> None:
    table = table_of(make, ask, excluded=(("a cell", "was run last year"),))
    assert "Excluded: a cell: was run last year" in table.notes
    many = table_of(make, ask, excluded=tuple((f"cell {number}", "no") for number in range(30)))
    assert "6 more excluded: `paribus check` lists them" in many.notes


def test_latex_has_a_separate_table_and_csv_more_rows(make: Make, ask: Ask) -> None:
    grid = study_grid(table_of(make, ask))
    source = latex(grid, "ladder")
    assert source.count(r"\begin{table}") == source.count(r"\end{table}") == 2
    assert source.count(r"\begin{table*}") == 1  # the costs
    assert r"\label{tab:ladder-attention-steps-each-rung-against-the-one-below}" in source
    assert re.search(r"mqa, rms & mqa & .*\$-\$0\.", source)
    assert "(n = 5)" in source
    head, *rows = to_csv(grid.records).splitlines()
    names = head.split(",")
    records = [dict(zip(names, row, strict=True)) for row in csv.reader(rows)]
    steps = [row for row in records if row["family"] == "steps"]
    assert [(row["variant"], row["baseline"], row["n"]) for row in steps] == [(a, b, "5") for a, b in BELOW.items()]
    assert len(records) == len(RUNGS) + len(steps)

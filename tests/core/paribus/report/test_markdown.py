"""Markdown tables as GitHub renders them, and the saved results of a study."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from paribus.analysis.compare import compare
from paribus.analysis.table import Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.planning.api import PlannedStudy, study
from paribus.report.markdown import code, escaped, leading_comment, markdown, write_results
from paribus.storage.atomic import write_json
from paribus.storage.saved_model import RECORD

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]
Study = Callable[..., list[TrialEntry]]

NASTY = "a|b`c``d*e_f<g>#[h](i)\\j"


def shown(text: str) -> list[str]:
    """The text of every inline piece, as a reader sees it."""
    inline = (token for token in MarkdownIt().enable("table").parse(text) if token.type == "inline")
    return ["".join(child.content for child in token.children or ()) for token in inline]


@pytest.fixture(name="table", scope="module")
def _table(make: Make, ask: Ask, study: Study) -> Table:
    base = [2.00, 2.10, 1.90, 2.05, 1.95]
    entries = study(baseline=base, mqa=[value + 0.5 + index / 100 for index, value in enumerate(base)], gqa=base[::-1])
    entries += study(rmsnorm=["diverged", 2.0, 2.0, "failed", "pending"])
    entries += [make(NASTY, seed, varied={"norm": "rmsnorm"}, loss=1.9 + seed / 50) for seed in range(5)]
    return compare(entries, ask(entries))


def test_every_variant_has_one_line_with_its_verdict(table: Table) -> None:
    pieces = shown(markdown(table))
    for row in (table.baseline, *table.rows):
        index = pieces.index(row.name)
        assert pieces[index + 4] == ", ".join((row.verdict, *row.flags))
        assert pieces[index + 1] == (str(row.n) if row.n == row.planned else f"{row.n}/{row.planned}")


def test_every_line_of_the_table_has_the_same_columns(table: Table) -> None:
    lines = [line for line in markdown(table).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 1 + len(table.rows)
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_markdown_has_warnings_notes_and_captions(table: Table) -> None:
    pieces = shown(markdown(table))
    for line in (*table.notes, *table.caption):
        assert line in pieces
    for line in table.warnings:
        assert f"! {line}" in pieces
    for name, certificate in table.certificates.items():
        assert f"✓ {name}: {certificate.text}" in pieces


def test_the_heading_has_the_requested_level(table: Table) -> None:
    assert markdown(table).startswith("## attention: val/mlm/loss, lower is better\n")
    assert markdown(table, heading=4).startswith("#### attention")
    assert markdown(table).endswith("\n")


@given(text=st.text(st.sampled_from("ab`|*_<>[]()#~\\ !&"), min_size=1, max_size=12).map(lambda text: f"x{text}x"))
def test_text_is_shown_as_it_is(text: str) -> None:
    (piece,) = shown(escaped(text))
    assert piece == text


@given(text=st.text(st.sampled_from("ab`*_<>[]|"), min_size=1, max_size=12))
def test_names_are_escaped_in_table_cells(text: str) -> None:
    (_, piece) = shown(f"| head |\n| -- |\n| {code(text, cell=True)} |")
    assert piece == text


def test_control_characters_are_escaped() -> None:
    assert code("a\x1b\nb") == "`a\\u001b\\nb`"
    assert escaped("a\x1b\nb") == "a\\\\u001b\\\\nb"


@pytest.fixture(scope="module", name="done")
def _done(make: Make, swap: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> PlannedStudy:
    """A study of which every trial has a record, as an honest engine writes it."""
    planned = study(swap, store=tmp_path_factory.mktemp("store"))
    for trial in planned.plan.trials:
        record: Any = make(seed=trial.seed).record
        result = {**record["result"], "digests": {"parameters": trial.identity}}
        provenance = {"host": "here", "pid": 7, "visible": "0", **record["provenance"]}
        document: dict[str, Any] = {
            "identity": trial.identity,
            "spec": dict(trial.spec),
            "result": result,
            "provenance": provenance,
        }
        write_json(planned.store.create_folder(trial) / RECORD, document)
    return planned


@pytest.fixture(scope="module", name="small_table")
def _small_table(make: Make, ask: Callable[..., ComparisonSpec]) -> Table:
    entries = [make(variant, seed, loss=2.0 + seed / 9) for variant in ("baseline", "mqa") for seed in range(2)]
    return compare(entries, ask(entries))


def test_the_table_has_machine_date_versions_and_commit(done: PlannedStudy, small_table: Table, tmp_path: Path) -> None:
    page, lines = write_results(
        done, small_table, tmp_path / "kept", "Does sharing heads cost anything? Two *minutes*."
    )
    text = page.read_text(encoding="utf-8")
    assert text.startswith(
        "# attention\n\nDoes sharing heads cost anything? Two *minutes*.\n\n## attention: val/mlm/loss"
    )
    assert markdown(small_table).rstrip() in text
    records = [record for trial in done.plan.trials if (record := done.store.record(trial.identity))]
    assert "- trials: 4 of 4, " in text
    for name, version in records[0]["provenance"]["versions"].items():
        assert f"{name} {version}" in text
    assert f"{records[0]['provenance']['machine']['name']} (cpu, 1 thread a trial)" in text
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    git = subprocess.run(command, capture_output=True, text=True, check=False)
    if git.returncode == 0:
        assert f"- commit: `{git.stdout[:12]}`" in text
    assert lines == tmp_path / "kept" / "records.jsonl"


def test_each_trial_has_a_line_with_its_result(done: PlannedStudy, small_table: Table, tmp_path: Path) -> None:
    record_lines = [
        json.loads(line) for line in write_results(done, small_table, tmp_path, "")[1].read_text().splitlines()
    ]
    assert [(record_line["variant"], record_line["seed"]) for record_line in record_lines] == [
        (trial.variant, trial.seed) for trial in done.plan.trials
    ]
    for record_line in record_lines:
        record: Any = done.store.record(record_line["identity"])
        assert record_line["result"]["metrics"] == record["result"]["metrics"]
        assert record_line["result"]["digests"] == record["result"]["digests"]
        assert record_line["provenance"]["machine"] == record["provenance"]["machine"]
        assert not {"host", "pid", "visible"} & record_line["provenance"].keys()  # nobody else's business
        assert len(json.dumps(record_line)) < len(json.dumps(record)) / 2


def test_the_description_is_the_leading_comment_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("# Does it?\n# It does.\nbase: encoder-tiny  # or another\n# no\n")
    assert leading_comment(path) == "Does it? It does."
    path.write_text("base: encoder-tiny\n")
    assert leading_comment(path) == ""


def test_a_study_without_records_has_no_provenance(
    done: PlannedStudy, small_table: Table, tmp_path: Path, swap: Mapping[str, Any]
) -> None:
    empty = study(swap, store=tmp_path / "nothing")
    text = write_results(empty, small_table, tmp_path, "")[0].read_text()
    assert "- trials: 0 of 4, 0 minutes of training in all" in text
    assert "- machine" not in text


def test_without_git_no_commit_is_shown(
    done: PlannedStudy, small_table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "- commit" not in write_results(done, small_table, tmp_path, "")[0].read_text()

"""Saved results of a study: table, machine, date, versions and commit."""

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from paribus.analysis.compare import compare
from paribus.analysis.table import Table
from paribus.analysis.trials import ComparisonSpec, TrialEntry
from paribus.planning.api import PlannedStudy, study
from paribus.report.markdown import markdown
from paribus.report.results import leading_comment, write_results
from paribus.storage.atomic import write_json
from paribus.storage.saved_model import RECORD

Make = Callable[..., TrialEntry]


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


@pytest.fixture(scope="module", name="table")
def _table(make: Make, ask: Callable[..., ComparisonSpec]) -> Table:
    entries = [make(variant, seed, loss=2.0 + seed / 9) for variant in ("baseline", "mqa") for seed in range(2)]
    return compare(entries, ask(entries))


def test_the_table_has_machine_date_versions_and_commit(done: PlannedStudy, table: Table, tmp_path: Path) -> None:
    page, lines = write_results(done, table, tmp_path / "kept", "Does sharing heads cost anything? Two *minutes*.")
    text = page.read_text(encoding="utf-8")
    assert text.startswith(
        "# attention\n\nDoes sharing heads cost anything? Two *minutes*.\n\n## attention: val/mlm/loss"
    )
    assert markdown(table).rstrip() in text
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


def test_a_line_of_each_trial_has_what_the_table_was_made_of(done: PlannedStudy, table: Table, tmp_path: Path) -> None:
    record_lines = [json.loads(line) for line in write_results(done, table, tmp_path, "")[1].read_text().splitlines()]
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


def test_what_a_study_is_about_is_the_comment_that_its_file_begins_with(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text("# Does it?\n# It does.\nbase: encoder-tiny  # or another\n# no\n")
    assert leading_comment(path) == "Does it? It does."
    path.write_text("base: encoder-tiny\n")
    assert leading_comment(path) == ""


def test_a_study_of_which_nothing_ran_is_said_to_have_none(
    done: PlannedStudy, table: Table, tmp_path: Path, swap: Mapping[str, Any]
) -> None:
    empty = study(swap, store=tmp_path / "nothing")
    text = write_results(empty, table, tmp_path, "")[0].read_text()
    assert "- trials: 0 of 4, 0 minutes of training in all" in text
    assert "- machine" not in text


def test_a_machine_without_git_tells_no_commit(
    done: PlannedStudy, table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "- commit" not in write_results(done, table, tmp_path, "")[0].read_text()

"""Metrics of programs, in every file format and in printed lines."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paribus.errors import DataError
from paribus.program.metric_files import printed_point, read_points, source_problem

POINTS = [{"step": 10, "loss": 2.5, "time": 1.0}, {"step": 20, "loss": 2.25, "time": 2.0}]
LOSSES = [(10, 2.5), (20, 2.25)]


def values(folder: Path, source: str, metric: str = "loss") -> list[tuple[int, float]]:
    return [(point["step"], point[metric]) for point in read_points(folder, source, metric)]


def test_json_lines_may_hold_other_lines_and_nested_values(tmp_path: Path) -> None:
    lines = [{"note": "start"}, *POINTS, {"step": 20, "eval": {"loss": 2.0}}]
    (tmp_path / "m.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    assert values(tmp_path, "m.jsonl") == LOSSES
    assert values(tmp_path, "m.jsonl", "eval.loss") == [(20, 2.0)]


def test_the_last_value_is_that_of_the_largest_step(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, [*POINTS[::-1], {"step": 20, "loss": 2.0}])))
    assert values(tmp_path, "m.jsonl") == [*LOSSES, (20, 2.0)]


def test_a_table_may_have_empty_cells(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("epoch,step,loss,acc\n0,10,2.5,\n0,15,,0.5\n1,20,2.25,\n")
    assert values(tmp_path, "m.csv") == LOSSES
    assert values(tmp_path, "m.csv", "acc") == [(15, 0.5)]


def test_a_document_has_the_metric_or_a_list_with_it(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"eval": {"loss": 1.5}, "epoch": 3}))
    assert values(tmp_path, "results.json", "eval.loss") == [(3, 1.5)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"best": 1, "log_history": POINTS}))
    assert values(tmp_path, "trainer_state.json") == LOSSES


def test_a_pattern_finds_the_newest_file(tmp_path: Path) -> None:
    for name, loss in (("a", 1.0), ("b", 2.0)):
        path = tmp_path / "out" / name / "m.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"loss": loss}))
    os.utime(tmp_path / "out" / "a" / "m.jsonl", (2e9, 2e9))
    assert values(tmp_path, "out/*/m.jsonl") == [(1, 1.0)]


WANDB_RUN = """
import wandb
run = wandb.init(mode="offline", project="x")
for step, loss in ((10, 2.5), (20, 2.25)):
    run.log({"loss": loss, "eval": {"loss": 2 * loss}}, step=step)
run.log({"loss": 1.0, "large": "x" * 100_000}, step=30)  # in several blocks of the file
run.log({"loss": 0.5}, step=40)
run.finish()
"""


@pytest.mark.extras
def test_an_offline_run_of_wandb_is_read(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    subprocess.run([sys.executable, "-c", WANDB_RUN], cwd=tmp_path, check=True, capture_output=True)
    assert values(tmp_path, "wandb") == [*LOSSES, (30, 1.0), (40, 0.5)]
    assert values(tmp_path, "wandb", "eval.loss") == [(step, 2 * loss) for step, loss in LOSSES]


@pytest.mark.extras
def test_event_files_of_tensorboard_are_read(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path / "runs" / "x")) as writer:
        for step, loss in LOSSES:
            writer.add_scalar("val/loss", loss, step)
    assert values(tmp_path, "tensorboard", "val/loss") == LOSSES


@pytest.mark.parametrize(
    ("pattern", "line", "point"),
    [
        ("val loss ([0-9.]+)", "step 20: train loss 1.5, val loss 2.25", {"step": 1, "loss": 2.25}),
        ("step (?P<step>[0-9]+):.*val loss (?P<value>[0-9.]+)", "step 20: val loss 2.25", {"step": 20, "loss": 2.25}),
        ("loss=(\\S+)", "\x1b[32mloss=3\x1b[0m loss=nan", {"step": 1, "loss": "nan"}),
        ("loss=(\\S+)", "nothing", None),
        ("loss=(\\S+)", "loss=low", None),
    ],
)
def test_a_printed_line_has_a_point(pattern: str, line: str, point: dict[str, object] | None) -> None:
    found = printed_point(line, re.compile(pattern), "loss", 0)
    assert found == point or (found is not None and point is not None and str(found["loss"]) == point["loss"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"step": 1, "acc": 2}', "m.jsonl has acc, and no `loss`"),
        ("", "m.jsonl has no number"),
        ('{"loss": 1}\n{"lo', "this is not JSON"),
        ("[1]", "expected an object"),
    ],
)
def test_a_file_without_the_metric_says_what_it_has(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "m.jsonl").write_text(text)
    with pytest.raises(DataError, match=re.escape(message)):
        read_points(tmp_path, "m.jsonl", "loss")


def test_a_missing_file_says_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "train.py").symlink_to(__file__)
    (tmp_path / "paribus-witness.jsonl.23394").write_text("{}\n")  # not by the program, and of another name each time
    with pytest.raises(DataError, match=re.escape("wrote no `m.jsonl`, but no file")):
        read_points(tmp_path, "m.jsonl", "loss")
    (tmp_path / "other.csv").write_text("x\n")
    with pytest.raises(DataError, match=r"wrote no `m.jsonl`, but other\.csv"):
        read_points(tmp_path, "m.jsonl", "loss")


@pytest.mark.parametrize(
    ("source", "pattern", "key"),
    [
        ("m.jsonl", "", ""),
        ("stdout", "loss (.*)", ""),
        ("m.txt", "", "from"),
        ("stdout", "", "pattern"),
        ("stdout", "loss", "pattern"),
        ("stdout", "(", "pattern"),
        ("m.csv", "(x)", "pattern"),
    ],
)
def test_a_source_is_checked_before_any_trial(source: str, pattern: str, key: str) -> None:
    assert source_problem(source, pattern)[0] == key

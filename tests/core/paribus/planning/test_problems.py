"""All errors of a study are reported at once, in the order of its file, each with its line."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.problems import raises_problem

from paribus.errors import ParibusError, SpecError
from paribus.planning.api import study
from paribus.registry import Index, index

Tree = dict[str, Any]
VALID: Mapping[str, Any] = {
    "base": {"preset": "encoder-tiny", "dims.layers": 1},
    "design": "grid",
    "vary": {
        "attention": ["mqa", {"name": "gqa", "kv_heads": 2}],
        "norm": ["layernorm", {"value": "rmsnorm", "when": {"attention": "mqa"}}],
    },
    "exclude": [{"attention": "mqa", "norm": "rmsnorm"}],
    "seeds": 3,
    "budget": {"steps": 20},
    "match": {"on": "params", "by": "feedforward.expand"},
    "metric": {"name": "val/mlm/loss", "better": "lower"},
    "tune": {"optimizer.lr": [1e-3], "seeds": 2},
    "launcher": {"name": "local"},
    "loggers": ["csv"],
    "timeout": 60,
}


class Mistake(NamedTuple):
    """An error in a study: its part, the edit that makes it, and a pattern of its message."""

    part: str
    plant: Callable[[Tree], Any]
    pattern: str
    spec: bool = False  # whether only a resolved spec shows it


STAGED: Mapping[str, Any] = {
    "base": {"preset": "encoder-tiny", "dims.width": 8, "dims.layers": 1},
    "vary": {"finetune.optimizer.lr": [1e-4]},
    "seeds": 2,
    "stages": {
        "pretrain": {"objective": "mlm", "budget": {"steps": 4}},
        "finetune": {
            "from": "pretrain",
            "optimizer.lr": 5e-4,
            "budget": {"steps": 2},
            "tasks": {"sections": {"objective": "classify", "corpus": "sections"}},
        },
    },
    "metric": {"name": "val/classify/accuracy", "stage": "finetune", "task": "sections", "better": "higher"},
}

MISTAKES = [
    Mistake("keys", lambda tree: tree.update(sedes=5), r"unknown-key\] sedes .*did you mean \"seeds\""),
    Mistake("base", lambda tree: tree["base"].update({"dims.widht": 32}), r"unknown key .widht.", spec=True),
    Mistake(
        "base", lambda tree: tree["base"].update({"dims.layers": "one"}), r'dims.layers.*the text "one"', spec=True
    ),
    Mistake("base", lambda tree: tree["base"].update(preset="encodr-tiny"), r"unknown preset \"encodr-tiny\""),
    Mistake("base", lambda tree: tree.pop("base"), r"`base` is missing"),
    Mistake("vary", lambda tree: tree["vary"]["attention"].append("mqqa"), r"unknown attention \"mqqa\".*mean \"mqa\""),
    Mistake("vary", lambda tree: tree["vary"].update(position=["ropee"]), r"unknown position \"ropee\""),
    Mistake("when", lambda tree: tree["vary"]["norm"][1].update(when={"nrom": "mqa"}), r"unknown-axis\].*\"nrom\""),
    Mistake(
        "exclude", lambda tree: tree["exclude"][0].update(attention="mha"), r"exclusion-without-match\]", spec=True
    ),
    Mistake("exclude", lambda tree: tree.update(exclude=["mqa"]), r"wrong-type\] exclude"),
    Mistake("seeds", lambda tree: tree.update(seeds=0), r"seeds .*the number 0"),
    Mistake("budget", lambda tree: tree.update(budget={"stepz": 9}), r"budget.stepz .*did you mean \"steps\""),
    Mistake("budget", lambda tree: tree.update(budget={"steps": -1}), r"budget.steps .*got -1"),
    Mistake("metric", lambda tree: tree["metric"].update(name="val/mml/loss"), r"measure `val/mml/loss`", spec=True),
    Mistake("metric", lambda tree: tree["metric"].update(name="loss"), r'metric.name .*the text "loss"'),
    Mistake("better", lambda tree: tree["metric"].update(better="lowr"), r"metric.better .*lower, higher"),
    Mistake("match", lambda tree: tree["match"].update(on="parms"), r"match.on .*valid: one of params, flops"),
    Mistake(
        "match",
        lambda tree: tree["match"].update(by="dims.wide"),
        r"match.*dims.wide|unknown key .wide.",
        spec=True,
    ),
    Mistake("tune", lambda tree: tree["tune"].update({"optimizer.lrr": [1.0]}), r"unknown key \"lrr\"", spec=True),
    Mistake("tune", lambda tree: tree["tune"].update(seeds="two"), r'tune.seeds .*the text "two"'),
    Mistake("launcher", lambda tree: tree.update(launcher="locall"), r"unknown launcher \"locall\".*mean \"local\""),
    Mistake("launcher", lambda tree: tree["launcher"].update(foo=1), r"launcher.foo"),
    Mistake("loggers", lambda tree: tree.update(loggers=["csvv"]), r"unknown logger .csvv.; did you mean .csv."),
    Mistake("timeout", lambda tree: tree.update(timeout=-1), r"timeout .*got -1"),
    Mistake("scales", lambda tree: tree.update(scales={"s": {"dims.width": 32}}), r"too-few\] scales"),
]
TOGETHER = st.lists(st.sampled_from(MISTAKES), min_size=2, max_size=4, unique_by=lambda mistake: mistake.part)


@cache
def known() -> Index:
    return index()


def problems(tree: Tree, folder: Path) -> list[str]:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    with pytest.raises(SpecError, match=r"error\[") as caught:
        study(path, registry=known(), store=folder / "runs")
    assert not (folder / "runs").exists()
    return [str(problem) for problem in caught.value.problems]


@settings(max_examples=25)
@given(planted=TOGETHER)
def test_several_errors_are_all_reported_in_the_order_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, planted: list[Mistake]
) -> None:
    assert_reported(planted, tmp_path_factory.mktemp("study"))


@pytest.mark.slow
def test_both_errors_of_every_pair_are_reported(tmp_path: Path) -> None:
    for pair in itertools.combinations(MISTAKES, 2):
        if pair[0].part != pair[1].part:
            assert_reported(pair, tmp_path)


def assert_reported(planted: Sequence[Mistake], folder: Path) -> None:
    """Assert that each mistake is reported, once and in the order of the file."""
    tree = copy.deepcopy(dict(VALID))
    without = [item for item in planted if item.pattern.startswith(("unknown preset", "`base`"))]
    reported = [item for item in planted if not (without and item.spec)]
    for mistake in sorted(reported, key=lambda item: item.part == "base"):  # the last may remove the base
        mistake.plant(tree)
    lines = problems(tree, folder)
    for mistake in reported:
        assert any(re.search(mistake.pattern, line) for line in lines), (mistake.pattern, lines)
    places = [int(at[1]) for line in lines if (at := re.search(r"\(.*mine\.yaml:(\d+)", line))]
    assert places == sorted(places)
    assert len(lines) == len(set(lines))
    assert len(places) >= len(lines) - bool(without)  # a base that is missing has no place


@pytest.mark.thorough
def test_the_example_is_valid_and_each_error_is_reported_once(tmp_path: Path) -> None:
    assert len(study(dict(VALID, match=None), registry=known(), store=tmp_path).plan.variants) == 3
    for mistake in MISTAKES:
        tree = copy.deepcopy(dict(VALID))
        mistake.plant(tree)
        lines = problems(tree, tmp_path)
        assert len([line for line in lines if re.search(mistake.pattern, line)]) == 1, (mistake.pattern, lines)


def test_the_baseline_needs_no_option_that_is_matched(tmp_path: Path) -> None:
    """Multi-head attention has no `kv_heads`; only the variant's value is changed to match."""
    tree = {
        "base": {"preset": "gpt-tiny", "dims.layers": 1},
        "vary": {"attention": [{"name": "gqa", "kv_heads": 2}]},
        "seeds": 2,
        "budget": {"steps": 4},
        "match": {"on": "params", "by": "attention.kv_heads"},
        "metric": {"name": "val/clm/loss", "better": "lower"},
    }
    (match,) = study(tree, registry=known(), store=tmp_path).plan.matched.values()
    assert match.value == 4


def test_a_missing_base_has_one_error(tmp_path: Path) -> None:
    assert len(problems({**copy.deepcopy(dict(VALID)), "base": None}, tmp_path)) == 1


def test_an_empty_base_has_one_error_for_each_missing_slot(tmp_path: Path) -> None:
    lines = problems({**copy.deepcopy(dict(VALID)), "base": {}}, tmp_path)
    assert [line for line in lines if "error[missing]" not in line] == []
    assert len(set(lines)) == len(lines)


def test_an_error_at_every_scale_is_reported_without_a_scale(tmp_path: Path) -> None:
    tree = copy.deepcopy(dict(VALID))
    tree |= {"match": None, "tune": None, "scales": {"s": {"dims.width": 32}, "m": {"dims.widht": 64}}}
    tree["vary"]["attention"].append("mqqa")
    lines = problems(tree, tmp_path)
    assert [re.findall(r", in \w+;", line) for line in lines] == [[], [", in m;"]]


def test_an_unknown_design_does_not_hide_other_errors(tmp_path: Path) -> None:
    tree = {**copy.deepcopy(dict(VALID)), "design": "gird", "exclude": None}
    tree["vary"]["attention"].append("mqqa")
    lines = problems(tree, tmp_path)
    assert any("unknown-design" in line for line in lines)
    assert any('unknown attention "mqqa"' in line for line in lines)


def test_a_study_with_too_many_cells_is_reported_with_its_other_errors(tmp_path: Path) -> None:
    tree = copy.deepcopy(dict(VALID)) | {"exclude": None, "match": None, "seeds": 0, "metric": {"name": "loss"}}
    tree["vary"] = {f"parts.p{number}.dropout": [0.1] * 10 for number in range(12)}
    lines = problems(tree, tmp_path)
    assert any("too-many-trials" in line for line in lines)
    assert len(lines) == 3


def _leaves(node: Any) -> list[tuple[Any, ...]]:
    items = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    return [(key, *rest) for key, inner in items for rest in _leaves(inner) or [()]]


@pytest.mark.parametrize("valid", [VALID, STAGED], ids=["plain", "staged"])
def test_an_unreadable_value_is_reported_once(valid: Mapping[str, Any], tmp_path: Path) -> None:
    """A number of 21 digits cannot be read; all other values of the study are still checked."""
    for *way, final in _leaves(valid):
        tree: Any = copy.deepcopy(dict(valid))
        node = tree
        for key in way:
            node = node[key]
        node[final] = 10**20
        caught = problems(tree, tmp_path)
        assert sum("a number of 21 digits" in note for note in caught) == 1, (way, final, caught)


def test_a_factor_without_a_change_is_reported(tmp_path: Path) -> None:
    tree = {"base": "encoder-tiny", "design": "factorial", "changes": [{"name": "nothing"}], "metric": "val/mlm/loss"}
    assert any(line.startswith("error[empty] changes.0 ") for line in problems(tree, tmp_path))


@pytest.mark.parametrize(
    ("option", "code", "key"),
    [("names: [a, b, c]", "out-of-range", "corpus.names"), ("held_out: 0.2", "missing-file", "corpus.path")],
)
def test_what_a_component_finds_out_by_itself_has_the_line_of_its_key(
    tmp_path: Path, option: str, code: str, key: str
) -> None:
    text = f"""
base:
  preset: bert-tiny
  objective: {{name: classify, classes: 4}}
  corpus:
    name: table
    label: label
    classes: 4
    path: [nowhere.csv]
    {option}
vary: {{norm: [rmsnorm]}}
budget: {{steps: 1}}
metric: {{name: val/classify/accuracy, better: higher}}
"""
    path = tmp_path / "study.yaml"
    path.write_text(text)
    line = next(at for at, row in enumerate(text.splitlines(), 1) if row.strip().startswith(key.partition(".")[2]))
    with raises_problem(ParibusError, code, key, f"study.yaml:{line}"):
        study(path)

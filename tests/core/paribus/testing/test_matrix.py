"""Every attention by position by placement by norm by feed-forward by topology: a cell passes, or a rule refuses it.

`check` is asked of each cell. Those in which any three components come together that can are run here, and with them
every attention with every position in every topology; `make test-matrix` runs them all.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from paribus.registry import Registry, installed
from paribus.specs.load import load
from paribus.specs.resolve import check
from paribus.testing.matrix import AXES, UNREAD, Matrix, Row
from paribus.testing.quick_checks import quick_faults
from paribus.testing.small_model import SmallModel

MATRIX = Matrix(installed())


ALL = list(itertools.product(*(MATRIX.axes[axis] for axis in AXES[:2])))
attentions = pytest.mark.parametrize("attention", MATRIX.axes["attention"])


@pytest.fixture(scope="module")
def run() -> list[Row]:
    """The cells that are run: any three components that go together are in one of them."""
    return MATRIX.covering()


@pytest.fixture(scope="module")
def refused() -> list[Row]:
    """The first cell of each kind that is refused."""
    return [row for row in MATRIX.representatives() if MATRIX.kind_problems(row)]


def wrong(rows: list[Row]) -> Iterator[str]:
    """What does not hold in these cells."""
    for row in rows:
        said = " ".join(f"{axis}={value}" for axis, value in row.items() if value != UNREAD)
        try:
            made = SmallModel(check(load(MATRIX.spec(row), (), MATRIX.index), MATRIX.index), MATRIX.registry)
            found = quick_faults(made)
        except Exception as error:  # all cells are tried, and those that fail told of at once
            found = [f"{type(error).__name__}: {error}"]
        yield from (f"{said}: {each}" for each in found)


@attentions
def test_a_cell_that_passes_runs_learns_sees_what_it_may_decodes_and_ignores_padding(
    attention: str, run: list[Row]
) -> None:
    assert not list(wrong([row for row in run if row["attention"] == attention]))


@pytest.mark.matrix
@pytest.mark.parametrize(("topology", "attention"), ALL)
def test_every_cell_that_passes_runs(topology: str, attention: str) -> None:
    cells = [row for row in MATRIX.cells() if (row["topology"], row["attention"]) == (topology, attention)]
    assert not list(wrong([row for row in cells if not MATRIX.kind_problems(row)]))


@pytest.mark.matrix
@attentions
def test_check_says_of_every_cell_what_it_says_of_its_kind(attention: str) -> None:
    for row in MATRIX.cells():
        if row["attention"] == attention:
            assert codes(MATRIX.cell_problems(row)) == codes(MATRIX.kind_problems(row)), row


def codes(problems: Any) -> list[tuple[str, str]]:
    return [(problem.code, problem.path) for problem in problems]


def test_check_says_of_a_cell_what_it_says_of_its_kind() -> None:
    for row in itertools.islice(MATRIX.cells(), 0, None, 797):
        assert codes(MATRIX.cell_problems(row)) == codes(MATRIX.kind_problems(row)), row


def test_every_topology_and_every_component_is_in_the_matrix_and_run(run: list[Row], components: Registry) -> None:
    for slot in AXES:
        assert set(MATRIX.axes[slot]) - {UNREAD} == set(components.index.entries[slot])
        assert {row[slot] for row in run} == set(MATRIX.axes[slot])


def test_every_attention_runs_with_every_position_in_every_topology_unless_a_rule_refuses_them(run: list[Row]) -> None:
    together = {tuple(row[axis] for axis in AXES[:3]) for row in run}
    for names in itertools.product(*(MATRIX.axes[axis] for axis in AXES[:3])):
        assert (names in together) == MATRIX.possible(tuple(zip(AXES[:3], names, strict=True))), names


def test_a_refusal_has_a_code_a_reason_and_what_would_do(refused: list[Row]) -> None:
    for row in refused:
        for problem in MATRIX.kind_problems(row):
            assert problem.code == "does-not-fit", row
            assert problem.path, row
            assert problem.message, row
            assert problem.valid, row


def test_there_is_a_cell_near_every_one_that_is_refused(refused: list[Row]) -> None:
    for row in refused:
        near = MATRIX.nearest_valid(row)
        assert near is not None
        assert near["topology"] == row["topology"]
        assert sum(near[axis] != row[axis] for axis in AXES) <= 2, (row, near)


def test_what_a_refusal_calls_valid_mends_it(refused: list[Row]) -> None:
    for row in refused:
        problems = MATRIX.kind_problems(row)
        for problem in problems:
            slot = problem.path.rpartition(".")[2]
            named = [name for name in re.findall(r"[a-z0-9][a-z0-9.-]*", problem.valid) if name in MATRIX.axes[slot]]
            assert named, problem
            counts = [len(MATRIX.kind_problems({**row, slot: name})) for name in named]
            assert min(counts) < len(problems), problem
            if len(problems) == 1 and len(counts) > 1:
                assert sorted(counts)[1] == 0, problem  # not one alone: there is a choice


def test_an_attention_that_cannot_attend_to_another_stack_is_refused_where_it_would_have_to() -> None:
    index = MATRIX.index
    crossing = [name for name in MATRIX.bases if any(part.cross for part in index.entries["topology"][name].parts)]
    assert crossing
    for name, entry in index.entries["attention"].items():
        row: Mapping[str, str] = {
            **{slot: names[0] for slot, names in MATRIX.axes.items()},
            "topology": crossing[0],
            "attention": name,
            "position": "none",
        }
        whole = {**MATRIX.spec(row), "parts": {}}
        found = [
            problem.message
            for problem in MATRIX.spec_problems(whole)
            if "cannot attend to another stack" in problem.message
        ]
        assert bool(found) != entry.traits.get("cross", False)

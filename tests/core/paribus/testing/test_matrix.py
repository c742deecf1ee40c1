"""Matrix of every attention, position, placement, norm, feed-forward and topology: a cell runs, or a rule rejects it.

The rules of specs are run on each cell. Cells that cover every valid pair of components are built and run each time, of
three components in `make test-thorough`, and all of them in `make test-matrix`.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paribus import Context
from paribus.registry import Registry, installed
from paribus.specs import resolved
from paribus.specs.load import load
from paribus.specs.resolve import check
from paribus.testing.host_models import SMALL_SIZES
from paribus.testing.matrix import AXES, UNREAD, Combination, Matrix, Row, covering, quick_faults
from paribus.testing.small_model import SmallModel, draw_seed

MATRIX = Matrix(installed())


ATTENTION_CASES = list(itertools.product(*(MATRIX.axes[axis] for axis in AXES[:2])))
attentions = pytest.mark.parametrize("attention", MATRIX.axes["attention"])


@pytest.fixture(scope="module")
def paired_cells() -> list[Row]:
    """Return valid cells that contain every valid pair of components."""
    return MATRIX.covering(2)


@pytest.fixture(scope="module")
def covering_cells() -> list[Row]:
    """Return valid cells that contain every valid combination of three components."""
    return MATRIX.covering()


@pytest.fixture(scope="module")
def rejected() -> list[Row]:
    """Return the first cell of each invalid kind."""
    return [row for row in MATRIX.representatives() if MATRIX.kind_problems(row)]


def failures(rows: list[Row]) -> Iterator[str]:
    """Yield the failed quick checks of cells, if they fail for two draws of the weights.

    One draw may leave the ReLUs of four channels without a positive input.
    """
    for row in rows:
        label = " ".join(f"{axis}={value}" for axis, value in row.items() if value != UNREAD)
        messages = cell_faults(row, 0) and cell_faults(row, 1)
        yield from (f"{label}: {message}" for message in messages)


def cell_faults(row: Row, seed: int) -> list[str]:
    try:
        with draw_seed(seed):
            spec = check(load({**MATRIX.spec(row), "seed": seed}, (), MATRIX.index), MATRIX.index)
            return list(quick_faults(SmallModel(spec, MATRIX.registry)))
    except Exception as error:  # all cells run, and all failures are reported at once
        return [f"{type(error).__name__}: {error}"]


@pytest.mark.thorough
@attentions
def test_cells_of_every_pair_pass_the_quick_checks(attention: str, paired_cells: list[Row]) -> None:
    assert not list(failures([row for row in paired_cells if row["attention"] == attention]))


@pytest.mark.slow
@attentions
def test_covering_cells_pass_the_quick_checks(attention: str, covering_cells: list[Row]) -> None:
    assert not list(failures([row for row in covering_cells if row["attention"] == attention]))


@pytest.mark.matrix
@pytest.mark.parametrize(("topology", "attention"), ATTENTION_CASES)
def test_every_valid_cell_passes_the_quick_checks(topology: str, attention: str) -> None:
    cells = [row for row in MATRIX.cells() if (row["topology"], row["attention"]) == (topology, attention)]
    assert not list(failures([row for row in cells if not MATRIX.kind_problems(row)]))


@pytest.mark.matrix
@attentions
def test_every_cell_has_the_problems_of_its_kind(attention: str) -> None:
    for row in MATRIX.cells():
        if row["attention"] == attention:
            assert codes(MATRIX.cell_problems(row)) == codes(MATRIX.kind_problems(row)), row


def codes(problems: Any) -> list[tuple[str, str]]:
    return [(problem.code, problem.path) for problem in problems]


@pytest.mark.slow
def test_sampled_cells_have_the_problems_of_their_kind() -> None:
    for row in itertools.islice(MATRIX.cells(), 0, None, 797):
        assert codes(MATRIX.cell_problems(row)) == codes(MATRIX.kind_problems(row)), row


@pytest.mark.thorough
def test_matrix_contains_and_runs_every_component(
    paired_cells: list[Row], covering_cells: list[Row], components: Registry
) -> None:
    for slot in AXES:
        assert set(MATRIX.axes[slot]) - {UNREAD} == set(components.index.entries[slot])
        own = {name for name in MATRIX.axes[slot] if slot != "attention" or mixes_its_own_stack(components, name)}
        for cells in (paired_cells, covering_cells):
            assert {row[slot] for row in cells} == own


def mixes_its_own_stack(components: Registry, attention: str) -> bool:
    """Return False for an attention that is available in cross-attention only."""
    traits = components.index.entries["attention"][attention].traits
    return bool(traits["causal"]) or bool(traits.get("bidirectional", True))


@pytest.mark.thorough
def test_every_valid_attention_position_and_topology_is_run(covering_cells: list[Row]) -> None:
    combinations = {tuple(row[axis] for axis in AXES[:3]) for row in covering_cells}
    for names in itertools.product(*(MATRIX.axes[axis] for axis in AXES[:3])):
        assert (names in combinations) == MATRIX.possible(tuple(zip(AXES[:3], names, strict=True))), names


@pytest.mark.thorough
def test_rejection_has_code_path_message_and_valid_values(rejected: list[Row]) -> None:
    for row in rejected:
        for problem in MATRIX.kind_problems(row):
            assert problem.code == "does-not-fit", row
            assert problem.path, row
            assert problem.message, row
            assert problem.valid, row


@pytest.mark.slow
def test_rejected_cell_has_a_valid_cell_with_a_change_for_each_problem_or_two(rejected: list[Row]) -> None:
    for row in rejected:
        neighbour = MATRIX.nearest_valid(row)
        assert neighbour is not None
        assert neighbour["topology"] == row["topology"]
        problems = {problem.path for problem in MATRIX.kind_problems(row)}
        assert sum(neighbour[axis] != row[axis] for axis in AXES) <= max(2, len(problems)), (row, neighbour)


@pytest.mark.thorough
def test_valid_values_of_a_rejection_resolve_it(rejected: list[Row]) -> None:
    for row in rejected:
        problems = MATRIX.kind_problems(row)
        for problem in problems:
            slot = problem.path.rpartition(".")[2]
            valid_names = [
                name for name in re.findall(r"[a-z0-9][a-z0-9.-]*", problem.valid) if name in MATRIX.axes[slot]
            ]
            assert valid_names, problem
            counts = [len(MATRIX.kind_problems({**row, slot: name})) for name in valid_names]
            assert min(counts) < len(problems), problem
            if len(problems) == 1 and len(counts) > 1:
                assert sorted(counts)[1] == 0, problem  # at least two valid names resolve it


def test_attention_without_cross_is_rejected_as_cross_attention() -> None:
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
        spec = {**MATRIX.spec(row), "parts": {}}
        messages = [
            problem.message
            for problem in MATRIX.spec_problems(spec)
            if "cannot attend to another stack" in problem.message
        ]
        assert bool(messages) != entry.traits.get("cross", False)


Axes = dict[str, tuple[str, ...]]


@st.composite
def constrained(draw: Any) -> tuple[Axes, list[Combination]]:
    """Draw axes and forbidden pairs of values."""
    axes = {
        f"axis {index}": tuple(f"{index}.{value}" for value in range(draw(st.integers(1, 4)))) for index in range(4)
    }
    pairs = [
        ((axis, a), (other_axis, b))
        for axis, other_axis in itertools.combinations(axes, 2)
        for a, b in itertools.product(axes[axis], axes[other_axis])
    ]
    return axes, draw(st.lists(st.sampled_from(pairs), max_size=6))


def valid_rows(axes: Axes, forbidden: list[Combination]) -> list[Combination]:
    """Return all rows without a forbidden pair."""
    rows = [tuple(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return [row for row in rows if not any(set(pair) <= set(row) for pair in forbidden)]


@pytest.mark.thorough
@given(constrained(), st.integers(1, 3))
def test_covering_array_has_every_possible_combination_and_no_other(
    case: tuple[Axes, list[Combination]], strength: int
) -> None:
    axes, forbidden = case
    rows_without_pairs = valid_rows(axes, forbidden)
    possible = {
        combination
        for row in rows_without_pairs
        for count in range(1, 5)
        for combination in itertools.combinations(row, count)
    }
    rows = covering(axes, possible.__contains__, strength)
    assert all(tuple((axis, row[axis]) for axis in axes) in rows_without_pairs for row in rows)
    covered = {
        combination
        for row in rows
        for combination in itertools.combinations(((axis, row[axis]) for axis in axes), strength)
    }
    assert covered == {combination for combination in possible if len(combination) == strength}
    assert rows == covering(axes, possible.__contains__, strength)  # deterministic


@pytest.mark.parametrize(("values", "strength", "maximum"), [(2, 2, 6), (3, 2, 15), (2, 3, 14), (4, 3, 120)])
def test_covering_array_is_small(values: int, strength: int, maximum: int) -> None:
    axes = {str(axis): tuple(map(str, range(values))) for axis in range(5)}
    assert values**strength <= len(covering(axes, lambda combination: True, strength)) <= maximum


QuickFaults = Callable[..., list[str]]


@pytest.fixture
def faults_of(components: Registry, attention: Callable[..., Any]) -> QuickFaults:
    """Return a function that runs the quick checks on a small model, whose attention has replaced members."""

    def faults_of(preset: str, **overrides: Any) -> list[str]:
        registry = components.with_components(attention={"faulty": attention(**overrides)})
        spec = resolved({"preset": preset, **SMALL_SIZES, "dims.layers": 1, "attention": "faulty"}, registry=registry)
        return quick_faults(SmallModel(spec, registry))

    return faults_of


def attend(self: Any, x: Tensor, ctx: Context) -> Any:
    return self.heads.merge(self.attend(self.heads, x, ctx))


@pytest.mark.parametrize("preset", ["gpt-tiny", "encoder-tiny", "seq2seq-tiny"])
def test_correct_attention_passes_the_quick_checks(preset: str, faults_of: QuickFaults) -> None:
    assert not faults_of(preset)


FAULTS: dict[str, tuple[str, Any]] = {
    "changes the output at position": ("gpt-tiny", lambda self, x, ctx: attend(self, x, ctx) + x.flip(1)),
    "no gradient reaches `body.layers.0.attention.heads.q.weight`": (
        "encoder-tiny",
        lambda self, x, ctx: self.heads.o(self.heads.v(x).mean(1, keepdim=True) + 0 * attend(self, x, ctx).detach()),
    ),
    "decoded in chunks of (5, 1, 1) differ by": (
        "gpt-tiny",
        lambda self, x, ctx: attend(self, x, ctx) * (1 + torch.arange(x.shape[1])).unsqueeze(-1),
    ),
    "with 3 padding tokens on the right": (
        "encoder-tiny",
        lambda self, x, ctx: attend(self, x, ctx) + x.sum(1, keepdim=True),
    ),
    "the output is not finite": ("encoder-tiny", lambda self, x, ctx: attend(self, x, ctx) / 0),
    "changing token 0 changes no output at another position": (
        "encoder-tiny",
        lambda self, x, ctx: self.heads.o(self.heads.v(x)),
    ),
}


@pytest.mark.parametrize(("fragment", "fault"), FAULTS.items(), ids=FAULTS)
def test_fault_is_found_by_the_quick_checks(fragment: str, fault: tuple[str, Any], faults_of: QuickFaults) -> None:
    preset, forward = fault
    assert any(fragment in message for message in faults_of(preset, forward=forward))

"""Effects of a factorial in a table, and effects withheld because of missing or faulty cells."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from paribus.analysis.compare import compare
from paribus.analysis.table import Row, Table
from paribus.analysis.trials import ComparisonSpec, FactorialCells, TrialEntry
from paribus.report.markdown import markdown
from paribus.report.terminal import table_text
from paribus.studies.fractional_factorial import best_fraction

Make = Callable[..., TrialEntry]
Ask = Callable[..., ComparisonSpec]

LEVELS: list[tuple[str, dict[str, Any]]] = [
    ("mqa", {"attention": "mqa"}),
    ("rms", {"norm": "rmsnorm"}),
    ("slow", {"optimizer.lr": 1e-3}),
]
NOISE = [0.00, 0.11, -0.09, 0.04, -0.06]  # what a seed has in common
OWN = [0.01, -0.01, 0.02, 0.00, -0.02]  # and what it has with one of the factors
OTHER = [-0.02, 0.00, 0.01, 0.01, 0.00]
LAST = [0.00, 0.01, -0.01, -0.01, 0.01]


def named(cell: tuple[int, ...]) -> str:
    return " + ".join(LEVELS[place][0] for place, on in enumerate(cell) if on) or "baseline"


def varied_by(cell: tuple[int, ...]) -> dict[str, Any]:
    return {key: value for place, on in enumerate(cell) if on for key, value in LEVELS[place][1].items()}


def cells_of(factors: int) -> list[tuple[int, ...]]:
    return [tuple(number >> place & 1 for place in range(factors)) for number in range(2**factors)]


def loss(cell: tuple[int, ...], seed: int) -> float:
    """mqa costs 0.5, rms gains 0.3, and together they cost 0.2 more; the learning rate does nothing."""
    planted = 0.5 * cell[0] - 0.3 * cell[1] + 0.2 * cell[0] * cell[1]
    return (
        2.0
        + planted
        + NOISE[seed]
        + sum(is_on * seed_noise[seed] for is_on, seed_noise in zip(cell, (OWN, OTHER, LAST), strict=False))
    )


def table_of(
    make: Make,
    ask: Ask,
    *,
    factors: int = 2,
    states: Mapping[tuple[str, int], str] | None = None,
    edits: Mapping[tuple[str, int], Any] | None = None,
    missing: tuple[tuple[int, ...], ...] = (),
    cells: list[tuple[int, ...]] | None = None,
    **options: Any,
) -> Table:
    all_cells = cells_of(factors) if cells is None else cells
    present = [cell for cell in all_cells if cell not in missing]
    entries = []
    for cell in present:
        for seed in range(5):
            outcome: dict[str, Any] = {"loss": loss(cell, seed), "failure": {}}
            outcome |= {"state": (states or {}).get((named(cell), seed), "done")}
            outcome |= {"edits": (edits or {}).get((named(cell), seed))}
            entries.append(make(named(cell), seed, varied=varied_by(cell), **outcome))
    crossed = FactorialCells(
        factors=tuple((name,) for name, _ in LEVELS[: len(all_cells[0])]),
        cells={cell: named(cell) for cell in present},
        missing={cell: f"{named(cell)} is excluded" for cell in missing},
        regular=best_fraction(3, 1) if cells is not None else None,
    )
    return compare(entries, ask(entries, factorial=crossed, **options))


def effects(table: Table) -> dict[str, dict[str, Row]]:
    return {family.key: {row.variant: row for row in family.rows} for family in table.families}


def test_planted_effects_get_their_verdicts(make: Make, ask: Ask) -> None:
    families = effects(table_of(make, ask))
    assert [*families] == ["main_effects", "interactions", "shapley"]
    main, pairs, shares = families.values()
    assert main["mqa"].difference == pytest.approx(0.6)
    assert main["rms"].difference == pytest.approx(-0.2)
    assert pairs["mqa × rms"].difference == pytest.approx(0.2)  # noqa: RUF001  # the sign that the table has
    assert shares["mqa"].difference == pytest.approx(0.6)
    assert shares["rms"].difference == pytest.approx(-0.2)
    assert (main["mqa"].kind, main["rms"].kind) == ("worse", "better")
    assert [row.n for row in main.values()] == [5, 5]
    low, high = main["mqa"].low, main["mqa"].high
    assert low is not None
    assert high is not None
    assert low < 0.6 < high < low + 0.1


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ({("mqa + rms", 3): "diverged"}, "mqa + rms diverged on seed 3"),
        ({("rms", 1): "failed"}, "rms failed on seed 1"),
        ({("rms", seed): "pending" for seed in range(5)}, "rms has no result yet"),
        ({("baseline", 2): "diverged"}, "baseline diverged on seed 2"),
    ],
)
def test_an_effect_is_withheld_where_a_cell_that_it_needs_has_no_result(
    make: Make, ask: Ask, states: Any, words: str
) -> None:
    for family in effects(table_of(make, ask, states=states)).values():
        for row in family.values():
            assert words in row.verdict
            assert row.verdict.startswith("withheld (")
            assert (row.difference, row.low, row.p) == (None, None, None)


def test_an_effect_is_withheld_where_a_certificate_fails(make: Make, ask: Ask) -> None:
    table = table_of(make, ask, edits={("rms", 0): {"result/certificate/batches": "other"}})
    assert "rms: other batches" in effects(table)["main_effects"]["mqa"].verdict


def test_an_excluded_cell_withholds_its_effects_and_is_named(make: Make, ask: Ask) -> None:
    families = effects(table_of(make, ask, factors=2, missing=((1, 1),)))
    assert {row.verdict for family in families.values() for row in family.values()} == {
        "withheld (mqa + rms is excluded)"
    }


def test_a_seed_with_missing_cells_is_skipped(make: Make, ask: Ask) -> None:
    families = effects(table_of(make, ask, states={("rms", 4): "pending"}))
    assert {(row.n, row.planned) for family in families.values() for row in family.values()} == {(4, 5)}
    whole = [OWN[seed] for seed in range(4)]
    assert families["main_effects"]["mqa"].difference == pytest.approx(0.6 + sum(whole) / 4)


def test_cells_with_one_spec_have_one_number(make: Make, ask: Ask) -> None:
    entries = [make("baseline", seed, loss=2 + NOISE[seed]) for seed in range(5)]
    entries += [make("mqa", seed, varied={"attention": "mqa"}, loss=2.5 + NOISE[seed] + OWN[seed]) for seed in range(5)]
    cells: dict[tuple[int, ...], str] = {(0, 0): "baseline", (1, 0): "mqa", (0, 1): "baseline", (1, 1): "mqa"}
    crossed = FactorialCells(factors=(("mqa",), ("idle",)), cells=cells, missing={})
    families = effects(compare(entries, ask(entries, factorial=crossed)))
    assert families["shapley"]["mqa"].difference == pytest.approx(0.5)
    assert families["shapley"]["idle"].difference == 0.0


def test_no_effect_is_claimed_between_unlearned_models(make: Make, ask: Ask) -> None:
    entries = [
        make(named(cell), seed, varied=varied_by(cell), loss=loss(cell, seed) + 5)
        for cell in cells_of(2)
        for seed in range(5)
    ]
    crossed = FactorialCells(
        factors=(("mqa",), ("rms",)), cells={cell: named(cell) for cell in cells_of(2)}, missing={}
    )
    families = effects(compare(entries, ask(entries, factorial=crossed)))
    assert families["main_effects"]["mqa"].verdict == "withheld (did not learn: no verdict)"
    allowed = effects(compare(entries, ask(entries, factorial=crossed, allow_unlearned=True)))
    assert allowed["main_effects"]["mqa"].verdict == "worse"


def test_a_fraction_lists_aliases_and_has_no_shares(make: Make, ask: Ask) -> None:
    fraction = best_fraction(3, 1)
    assert fraction is not None
    table = table_of(make, ask, cells=list(fraction.cells()))
    families = effects(table)
    assert [*families] == ["main_effects"]
    assert families["main_effects"]["slow"].aliases == ("mqa × rms",)  # noqa: RUF001  # as above
    assert any("fraction has no Shapley shares" in line for line in table.families[-1].caption)
    assert "slow, or mqa × rms" in markdown(table)  # noqa: RUF001  # as above


def test_effects_are_in_every_output_format(make: Make, ask: Ask) -> None:
    table = table_of(make, ask, factors=3, margin=0.1)
    for width in (40, 80, 160):
        text = table_text(table, width)
        assert max(map(len, text.splitlines())) <= width
        assert all(title in text for title in ("main effects", "interactions", "Shapley shares"))
        one_line = " ".join(text.replace("·", "").split())
        assert "Holm over 3 main effects at 95 %" in one_line
        assert "all 4 together have 80 %" in one_line
    document = json.loads(json.dumps(table.to_json()))
    assert {row["name"]: row["n"] for row in document["interactions"]["rows"]} == {
        "mqa × rms": 5, "mqa × slow": 5, "rms × slow": 5  # noqa: RUF001  # as above
    }  # fmt: skip
    assert [row["verdict"] for row in document["shapley"]["rows"]] == ["worse", "better", "equivalent"]
    assert "### Shapley shares of full - none" in markdown(table)


def test_each_family_is_corrected_by_itself(make: Make, ask: Ask) -> None:
    rows = effects(table_of(make, ask, factors=3))["main_effects"].values()
    assert max(row.level or 0 for row in rows) <= 1 - 0.05 / 3 + 1e-9

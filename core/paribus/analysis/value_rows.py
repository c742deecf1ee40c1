"""Numbers by variant and seed: files, data frames, rows and mappings, read to one form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from paribus.errors import DataError, Problem, join_names
from paribus.storage.table_file import read_rows

if TYPE_CHECKING:
    from pandas import DataFrame

ValueSource: TypeAlias = (
    "Path | str | Mapping[str, Mapping[int, float] | Sequence[float]] | Sequence[Mapping[str, Any]] | DataFrame"
)
"""Values by variant and seed: a file, a mapping, rows, or a data frame."""
KEYS: Final = ("variant", "seed")
COLUMNS: Final = "the columns variant, seed, and one of a metric"
MAX_PROBLEMS: Final = 5  # that are reported at once


class ValueTable(NamedTuple):
    """Values of a metric by variant and seed; one that is not finite is of a diverged trial."""

    name: str  # of the file
    metric: str
    values: Mapping[str, Mapping[int, float]]


def read_values(source: ValueSource, metric: str = "") -> ValueTable:
    """Return the values of a file, a data frame, a list of rows, or a mapping from variants to values."""
    if isinstance(source, str | Path):
        return _from_rows(str(source), read_rows(Path(source)), metric)
    if isinstance(source, Mapping):
        columns = {str(name): _by_seed(str(name), values) for name, values in source.items()}
        if not columns:
            raise _error("", "there is no variant", "values of two variants or more")
        return ValueTable("values", metric or "value", columns)
    records = source.to_dict("records") if hasattr(source, "to_dict") else list(source)
    rows = [(f"row {number}", row) for number, row in enumerate(records)]
    if not rows:
        raise _error("", "there is no row", "one row for each variant and seed")
    return _from_rows("values", rows, metric)


def _by_seed(name: str, values: Any) -> dict[int, float]:
    pairs = values.items() if isinstance(values, Mapping) else enumerate(values)
    read = {_seed(seed): _number(value) for seed, value in pairs}
    if not read or None in read or None in read.values():
        valid = "a list of numbers in the order of the seeds, or a mapping from seeds to numbers"
        raise _error("", f"the values of `{name}` are {values!r:.60}", valid)
    return {seed: value for seed, value in read.items() if seed is not None and value is not None}


def _from_rows(name: str, rows: Sequence[tuple[str, Mapping[str, Any]]], metric: str) -> ValueTable:
    columns = [str(column) for column in rows[0][1]]
    column = _metric_column(name, columns, metric)
    values: dict[str, dict[int, float]] = {}
    problems: list[Problem] = []
    for location, row in rows:
        problem = _add(values, row, column)
        if problem:
            problems.append(Problem(code="invalid-line", location=location, message=problem[0], valid=problem[1]))
    if problems:
        raise DataError(*problems[:MAX_PROBLEMS])
    return ValueTable(Path(name).name, column, values)


def _metric_column(name: str, columns: Sequence[str], metric: str) -> str:
    """Return the column of the metric: the given one, `value`, or the only one beside those of variant and seed."""
    missing = [key for key in KEYS if key not in columns]
    column_text = f"its columns are {join_names(columns) or 'none'}"
    if missing:
        raise _error(name, f"it has no column `{missing[0]}`; {column_text}", COLUMNS)
    metrics = [column for column in columns if column not in KEYS]
    if metric:
        if metric not in metrics:
            raise _error(
                name, f"it has no column `{metric}`; {column_text}", join_names(metrics) or "a column of a metric"
            )
        return metric
    if "value" in metrics or len(metrics) == 1:
        return "value" if "value" in metrics else metrics[0]
    if not metrics:
        raise _error(name, f"it has no column of a metric; {column_text}", COLUMNS)
    raise _error(name, f"it has several columns: {join_names(metrics)}", "`metric` names one of them")


def _add(values: dict[str, dict[int, float]], row: Mapping[str, Any], column: str) -> tuple[str, str] | None:
    """Add the value of a row; return what is wrong with it, and what is valid."""
    variant, seed, value = str(row.get("variant") or "").strip(), _seed(row.get("seed")), _number(row.get(column))
    if not variant:
        return "it has no variant", "a name"
    if seed is None:
        return f"`seed` is {row.get('seed')!r}", "a whole number"
    if value is None:
        return f"`{column}` is {row.get(column)!r}", "a number; nan for a diverged trial"
    by_seed = values.setdefault(variant, {})
    if seed in by_seed:
        return f"`{variant}` has a value of seed {seed} already", "one row for each variant and seed"
    by_seed[seed] = value
    return None


def _seed(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and math.isfinite(number) and number == int(number) else None


def _number(value: Any) -> float | None:
    """Return a number, or text of one, as a float; None for anything else."""
    if value is None or isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _error(location: str, message: str, valid: str) -> DataError:
    return DataError(Problem(code="invalid-table", location=location, message=message, valid=valid))

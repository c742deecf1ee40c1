"""Metrics of a program, from the file that it writes or from its output: points with a step and numbers by name."""

from __future__ import annotations

import csv
import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from paribus.errors import DataError, Problem, join_names
from paribus.program.witness_file import witness_files, witness_lines
from paribus.specs.tree import get_path

OUTPUT: Final = "stdout"
TENSORBOARD: Final = "tensorboard"
WANDB: Final = "wandb"
WITNESS: Final = "witness"
SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
VALID: Final = (
    "a file metrics.jsonl, .csv, .tsv or .json, `*` in it for any name; witness; tensorboard; wandb; or stdout"
)
STEPS: Final = ("step", "_step", "global_step", "iteration", "iter", "epoch")  # columns of the step, the first is used
LOG_HEADER: Final = 7  # bytes of a file of W&B before its records
LOG_BLOCK: Final = 1 << 15
PART_HEADER: Final = 7  # bytes before a part of a record: checksum, length, kind
FULL: Final = 1  # kind of a part that is a whole record
LAST: Final = 4
MAX_NAMES: Final = 12  # of metrics in a message
_ESCAPE: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colours and cursor movements of a terminal

Point = dict[str, Any]  # `step`, and numbers by name


def source_problem(source: str, pattern: str) -> tuple[str, str, str]:
    """Return the key of the metric that is wrong, the message, and what is valid; empty texts if nothing is."""
    if source == OUTPUT:
        try:
            groups = re.compile(pattern).groups if pattern else 0
        except re.error as error:
            return "pattern", f"`{pattern}` is no regular expression: {error}", "one such as `val loss ([0-9.]+)`"
        if not groups:
            return "pattern", "the value in a line of output is found by a group", "a pattern: val loss ([0-9.]+)"
    elif source in (TENSORBOARD, WANDB) and find_spec(source) is None:
        return "from", f"its files need `{source}`, which is not installed", f"pip install 'paribus[{source}]'"
    elif source not in (TENSORBOARD, WANDB, WITNESS) and Path(source).suffix not in SUFFIXES:
        return "from", f"`{source}` has no known format", VALID
    elif pattern:
        return "pattern", f"`{source}` is not searched, so `pattern` would be ignored", "from: stdout"
    return "", "", ""


def read_points(folder: Path, source: str, metric: str, output: Sequence[Point] = ()) -> list[Point]:
    """Return the points at which a program has measured the metric, in order.

    `folder` is that of the trial, `source` a file or kind of file in it. `output` are points of its printed lines.
    They are in the order of their steps, so that the last one is of the largest step; of equal steps, the last in the
    file. A file without the metric is an error that lists what it has.
    """
    name = "its output" if source == OUTPUT else source
    points = list(output) if source == OUTPUT else _numbered(_points(folder, source, metric))
    with_metric = [point for point in points if metric in point]
    if with_metric:
        return sorted(with_metric, key=lambda point: point["step"])
    names = join_names(sorted({key for point in points for key in point} - {"step"}), MAX_NAMES)
    found = f"{name} has {names}, and no `{metric}`" if names else f"{name} has no number"
    raise DataError(Problem(code="no-metric", message=f"the program ended without a value of `{metric}`: {found}"))


def printed_point(line: str, pattern: re.Pattern[str], metric: str, count: int) -> Point | None:
    """Return the point of a printed line that matches the pattern, the last match of several; `count` came before."""
    match = next(reversed(list(pattern.finditer(_ESCAPE.sub("", line)))), None)
    if match is None:
        return None
    groups = match.groupdict()
    value = number_of(groups.get("value", match[1] if match.groups() else None))
    step = number_of(groups.get("step"))
    return None if value is None else {"step": count + 1 if step is None else int(step), metric: value}


def number_of(value: Any) -> float | None:
    """Return a number, or text of one, as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _points(folder: Path, source: str, metric: str) -> Iterable[Mapping[str, Any]]:
    if source == TENSORBOARD:
        return _event_points(folder)
    if source == WANDB:
        return _history_points(_newest(folder, "**/run-*.wandb", source))
    if source == WITNESS:
        return _logged_points(folder)
    path = _newest(folder, source, source)
    match path.suffix:
        case ".csv" | ".tsv":
            return _table_points(path)
        case ".json":
            return _document_points(path, metric)
    return _line_points(path)


def _logged_points(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Yield what a script has logged with its witness."""
    files = witness_files(folder)
    if not files:
        message = "the program ended, and has no witness: `from paribus import witness; witness().log(step, loss=…)`"
        raise DataError(Problem(code="no-metric", message=message))
    yield from (
        {key: value for key, value in line.items() if key != "rank"}
        for file in files
        for line in witness_lines(file)
        if "step" in line
    )


def _newest(folder: Path, pattern: str, source: str) -> Path:
    """Return the file of this name, or the newest one that matches a pattern."""
    is_pattern = any(sign in pattern for sign in "*?[")
    files = [path for path in folder.glob(pattern) if path.is_file()] if is_pattern else [folder / pattern]
    existing = [path for path in files if path.is_file()]
    if not existing:
        witnesses = witness_files(folder)
        written = (it for it in folder.rglob("*") if it.is_file() and not it.is_symlink() and it not in witnesses)
        names = join_names(sorted(str(path.relative_to(folder)) for path in written), MAX_NAMES)
        message = f"the program ended, and wrote no `{source}`, but {names or 'no file'}"
        raise DataError(Problem(code="no-metric", message=message))
    return max(existing, key=lambda path: path.stat().st_mtime_ns)


def _line_points(path: Path) -> Iterator[Mapping[str, Any]]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except ValueError as error:
            raise _invalid(path, number, f"this is not JSON: {line[:60]!r}") from error
        if not isinstance(document, dict):
            raise _invalid(path, number, f"expected an object, got {line[:60]!r}")
        yield _flat_numbers(document)


def _invalid(path: Path, number: int, message: str) -> DataError:
    return DataError(
        Problem(code="invalid-line", location=f"{path.name}:{number}", message=message, valid="JSON lines")
    )


def _table_points(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a table with the cells that are numbers; Lightning leaves others empty."""
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        delimiter = "\t" if path.suffix == ".tsv" else ","
        for row in csv.DictReader(file, delimiter=delimiter):
            yield {key: number for key, cell in row.items() if key and (number := number_of(cell)) is not None}


def _document_points(path: Path, metric: str) -> Iterator[Mapping[str, Any]]:
    """Yield the numbers of a JSON document: of a list in it that has the metric, or else its own."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        message = f"this is not JSON: {error}"
        raise DataError(
            Problem(code="invalid-line", location=path.name, message=message, valid="a document")
        ) from error
    lists = [document, *(document.values() if isinstance(document, dict) else ())]
    for rows in lists:
        if isinstance(rows, list) and any(isinstance(row, dict) and metric in _flat_numbers(row) for row in rows):
            yield from (_flat_numbers(row) for row in rows if isinstance(row, dict))
            return
    if isinstance(document, dict):
        point = _flat_numbers(document)
        value = number_of(get_path(document, metric))
        yield point if value is None else {**point, metric: value}


def _event_points(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the scalars of the newest folder of TensorBoard's event files, step by step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    newest = _newest(folder, "**/events.out.tfevents.*", TENSORBOARD).parent
    events = EventAccumulator(str(newest), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    by_step: dict[int, dict[str, Any]] = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            by_step.setdefault(event.step, {"step": event.step})[tag] = event.value
    for tag in events.Tags().get("tensors", ()):  # scalars of TensorFlow 2 and JAX
        with suppress(ValueError, TypeError):
            from tensorboard.util.tensor_util import make_ndarray

            for event in events.Tensors(tag):
                by_step.setdefault(event.step, {"step": event.step})[tag] = float(make_ndarray(event.tensor_proto))
    yield from (by_step[step] for step in sorted(by_step))


def _history_points(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of the history in the file of a run of W&B."""
    from wandb.proto import wandb_internal_pb2

    for data in _log_records(path.read_bytes()):
        record: Any = vars(wandb_internal_pb2)["Record"]()  # its module has no types
        record.ParseFromString(data)
        if record.HasField("history"):
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            yield _flat_numbers(items)


def _log_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format, which W&B writes after a header of 7 bytes.

    A block has 32 KiB; a record that does not fit into one is in parts: first, middle, last.
    """
    position, parts = LOG_HEADER, b""
    while position + PART_HEADER <= len(data):
        left = LOG_BLOCK - position % LOG_BLOCK
        if left < PART_HEADER:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        position += PART_HEADER
        parts += data[position : position + length]
        position += length
        if kind in (FULL, LAST):
            yield parts
            parts = b""


def _flat_numbers(document: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers of a document, those in mappings by dotted name."""
    numbers: dict[str, float] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            numbers |= _flat_numbers(value, f"{prefix}{key}.")
        elif (number := number_of(value)) is not None:
            numbers[f"{prefix}{key}"] = number
    return numbers


def _numbered(points: Iterable[Mapping[str, Any]]) -> list[Point]:
    """Return the points with a whole number as their step: that of a column of `STEPS`, or else their place."""
    numbered: list[Point] = []
    for place, point in enumerate(points, start=1):
        given = next((point[name] for name in STEPS if name in point), math.nan)
        step = int(given) if math.isfinite(given) and given >= 0 else place
        numbered.append({**{key: value for key, value in point.items() if key not in STEPS}, "step": step})
    return numbered

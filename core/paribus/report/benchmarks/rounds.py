"""Reports of pytest-benchmark: which benchmarks they have, and the rounds of each in the order they were run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from paribus.errors import DataError, Problem
from paribus.report.words import clean

CONTESTANTS: Final = "microseconds"  # in `extra_info`: the rounds of several that took turns, by name
MOST_BYTES: Final = 2**30
_VALID: Final = "the JSON that `pytest --benchmark-json=FILE` or `--benchmark-save-data` writes"


@final
@dataclass(frozen=True, kw_only=True)
class Bench:
    """One benchmark of a report. Without `--benchmark-save-data` a report has medians, and no rounds."""

    key: str  # what it is paired by: its full name, with the values of its parameters
    name: str
    full: str
    rounds: tuple[float, ...]  # seconds of each, in time order
    median: float
    count: int
    clock: str  # the timer, and whether garbage was collected meanwhile


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Report:
    """One run of a suite of benchmarks, on one machine."""

    name: str
    machine: Mapping[str, Any]
    commit: Mapping[str, Any]
    date: str
    version: str
    benches: Mapping[str, Bench]

    @property
    def code(self) -> str:
        """`commit 463b1eeca092, with changes that are not committed`."""
        found = str(self.commit.get("id") or "")
        if not found or found == "unversioned":
            return "of no commit"
        changed = ", with changes that are not committed" if self.commit.get("dirty") else ""
        return f"commit {clean(found)[:12]}{changed}"

    @property
    def label(self) -> str:
        when = f", {clean(self.date)[:16].replace('T', ' ')} UTC" if self.date else ""
        return f"{clean(self.name)}: {self.code}{when}"


def is_report(path: Path) -> bool:
    """Whether a file is JSON and not a study; one that only claims to be is told of when it is read."""
    if not path.is_file():
        return False
    if path.suffix == ".json":
        return True
    try:
        with path.open("rb") as file:
            start = file.read(4096).lstrip()
        return start.startswith(b"{") and b'"machine_info"' in start
    except OSError:
        return False


def read_report(path: Path) -> Report:
    """A `DataError` where the file is no such report."""
    document = _document(path)
    if not isinstance(document, Mapping) or not isinstance(document.get("benchmarks"), list):
        raise _wrong(path, "this JSON is no report of pytest-benchmark: it has no list `benchmarks`")
    benches: dict[str, Bench] = {}
    for at, node in enumerate(document["benchmarks"]):
        try:
            found = list(_benches(node))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            what = f"{type(error).__name__}: {error}"
            raise _wrong(path, f"benchmark {at} of this report cannot be read ({what})") from error
        for bench in found:
            if bench.key in benches:
                raise _wrong(path, f"the benchmark `{bench.full}` is in this report twice")
            benches[bench.key] = bench
    if not benches:
        raise _wrong(path, "this report holds no benchmark", "a run in which some benchmark was measured")
    return Report(
        name=str(path),
        machine=_mapping(document.get("machine_info")),
        commit=_mapping(document.get("commit_info")),
        date=str(document.get("datetime") or ""),
        version=str(document.get("version") or ""),
        benches=benches,
    )


def _document(path: Path) -> Any:
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise _wrong(path, f"this file of {size:,} bytes is too large for a report", f"at most {MOST_BYTES:,}")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise _wrong(path, f"this file could not be read: {error.strerror or error}", "a file") from error
    except (ValueError, RecursionError) as error:
        first = next(iter(str(error).splitlines()), "it is nested too deeply")
        raise _wrong(path, f"this is no JSON: {first}") from error


def _benches(node: Mapping[str, Any]) -> Iterator[Bench]:
    """The benchmark itself, or in its place the contestants that took turns in each of its rounds."""
    stats, options = node["stats"], _mapping(node.get("options"))
    full = str(node["fullname"])
    common: dict[str, Any] = {"clock": f"{options.get('timer')}, gc {'off' if options.get('disable_gc') else 'on'}"}
    params = json.dumps(node.get("params"), sort_keys=True)
    contestants = _mapping(node.get("extra_info")).get(CONTESTANTS)
    if isinstance(contestants, Mapping) and contestants:
        for contestant, times in contestants.items():
            rounds = _rounds([float(each) / 1e6 for each in times])
            yield Bench(
                key=json.dumps([full, params, contestant]),
                name=f"{node['name']} {contestant}",
                full=f"{full} {contestant}",
                rounds=rounds,
                median=_median(rounds) if rounds else math.nan,
                count=len(rounds),
                **common,
            )
        return
    rounds = _rounds(stats.get("data") or [])
    median = float(stats["median"])
    if not 0 <= median < math.inf:
        raise ValueError(f"a median of {median} s")
    yield Bench(
        key=json.dumps([full, params, ""]),
        name=str(node["name"]),
        full=full,
        rounds=rounds,
        median=median,
        count=len(rounds) or int(stats["rounds"]),
        **common,
    )


def _rounds(times: Any) -> tuple[float, ...]:
    found = tuple(float(each) for each in times)
    if wrong := [each for each in found if not 0 <= each < math.inf]:
        raise ValueError(f"a round of {wrong[0]} s")
    return found


def _median(values: tuple[float, ...]) -> float:
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(values) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _wrong(path: Path, what: str, valid: str = _VALID) -> DataError:
    return DataError(Problem(code="no-report", where=str(path), what=what, valid=valid))

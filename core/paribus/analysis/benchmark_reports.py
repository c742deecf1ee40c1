"""Reports of pytest-benchmark: their benchmarks with rounds in time order, and the check of two for one machine."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from paribus.analysis.formatting import clean
from paribus.errors import DataError, NotComparableError, Problem, join_names
from paribus.specs.tree import flatten

CONTESTANTS: Final = "microseconds"  # key of `extra_info`: name -> rounds of several contestants that took turns
MAX_BYTES: Final = 2**30
_VALID: Final = "the JSON that `pytest --benchmark-json=FILE` or `--benchmark-save-data` writes"
MAX_FACTS: Final = 4
VERSIONS: Final = re.compile(r"version|python_(build|compiler|implementation)|^pytest-benchmark$")
IGNORED: Final = re.compile(r"^cpu\.(hz_|flags$|cpuinfo_version|microcode)")  # facts that vary from run to run
HOST: Final = re.compile(r"^(node|release)$")  # facts of a host, which may differ between equal machines
_VALID_MACHINES: Final = "reports of one machine, or --across-machines, which shows them under a warning"

Facts = Mapping[str, str]


@final
@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One benchmark of a report. Without `--benchmark-save-data` a report has medians, and no rounds."""

    key: str  # full name with parameters, by which benchmarks of two reports are paired
    name: str
    full_name: str
    rounds: tuple[float, ...]  # seconds of each round, in time order
    median: float
    count: int
    clock: str  # name of the timer, and whether garbage was collected


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Report:
    """One run of a suite of benchmarks, on one machine."""

    name: str
    machine: Mapping[str, Any]
    commit: Mapping[str, Any]
    date: str
    version: str
    benchmarks: Mapping[str, Benchmark]

    @property
    def code(self) -> str:
        """The measured code: `commit 463b1eeca092, with changes that are not committed`."""
        commit_id = str(self.commit.get("id") or "")
        if not commit_id or commit_id == "unversioned":
            return "of no commit"
        changed = ", with changes that are not committed" if self.commit.get("dirty") else ""
        return f"commit {clean(commit_id)[:12]}{changed}"

    @property
    def label(self) -> str:
        """The name, the code and the date."""
        date = f", {clean(self.date)[:16].replace('T', ' ')} UTC" if self.date else ""
        return f"{clean(self.name)}: {self.code}{date}"


def read_report(path: Path) -> Report:
    """Read a report; raise a `DataError` if the file is not one."""
    document = _document(path)
    if not isinstance(document, Mapping) or not isinstance(document.get("benchmarks"), list):
        raise _error(path, "this JSON is no report of pytest-benchmark: it has no list `benchmarks`")
    benchmarks: dict[str, Benchmark] = {}
    for index, node in enumerate(document["benchmarks"]):
        try:
            node_benchmarks = list(_benchmarks(node))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            message = f"{type(error).__name__}: {error}"
            raise _error(path, f"benchmark {index} of this report cannot be read ({message})") from error
        for benchmark in node_benchmarks:
            if benchmark.key in benchmarks:
                raise _error(path, f"the benchmark `{benchmark.full_name}` is in this report twice")
            benchmarks[benchmark.key] = benchmark
    if not benchmarks:
        raise _error(path, "this report holds no benchmark", "a run in which some benchmark was measured")
    return Report(
        name=str(path),
        machine=_mapping(document.get("machine_info")),
        commit=_mapping(document.get("commit_info")),
        date=str(document.get("datetime") or ""),
        version=str(document.get("version") or ""),
        benchmarks=benchmarks,
    )


def _document(path: Path) -> Any:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise _error(path, f"this file of {size:,} bytes is too large for a report", f"at most {MAX_BYTES:,}")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise _error(path, f"this file could not be read: {error.strerror or error}", "a file") from error
    except (ValueError, RecursionError) as error:
        first_line = next(iter(str(error).splitlines()), "it is nested too deeply")
        raise _error(path, f"this is no JSON: {first_line}") from error


def _benchmarks(node: Mapping[str, Any]) -> Iterator[Benchmark]:
    """Yield the benchmark of a node; or each contestant, if several took turns in its rounds."""
    stats, options = node["stats"], _mapping(node.get("options"))
    full_name = str(node["fullname"])
    common: dict[str, Any] = {"clock": f"{options.get('timer')}, gc {'off' if options.get('disable_gc') else 'on'}"}
    params = json.dumps(node.get("params"), sort_keys=True)
    contestants = _mapping(node.get("extra_info")).get(CONTESTANTS)
    if isinstance(contestants, Mapping) and contestants:
        for contestant, times in contestants.items():
            rounds = _rounds([float(microseconds) / 1e6 for microseconds in times])
            yield Benchmark(
                key=json.dumps([full_name, params, contestant]),
                name=f"{node['name']} {contestant}",
                full_name=f"{full_name} {contestant}",
                rounds=rounds,
                median=statistics.median(rounds) if rounds else math.nan,
                count=len(rounds),
                **common,
            )
        return
    rounds = _rounds(stats.get("data") or [])
    median = float(stats["median"])
    if not 0 <= median < math.inf:
        raise ValueError(f"a median of {median} s")
    yield Benchmark(
        key=json.dumps([full_name, params, ""]),
        name=str(node["name"]),
        full_name=full_name,
        rounds=rounds,
        median=median,
        count=len(rounds) or int(stats["rounds"]),
        **common,
    )


def _rounds(times: Any) -> tuple[float, ...]:
    rounds = tuple(float(seconds) for seconds in times)
    if invalid := [seconds for seconds in rounds if not 0 <= seconds < math.inf]:
        raise ValueError(f"a round of {invalid[0]} s")
    return rounds


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _error(path: Path, message: str, valid: str = _VALID) -> DataError:
    return DataError(Problem(code="missing-report", location=str(path), message=message, valid=valid))


def check_same_machine(reports: Sequence[Report], *, across: bool = False) -> list[str]:
    """Return warnings about different machines; without `across`, raise a `NotComparableError` with all differences."""
    problems: list[Problem] = []
    warnings: list[str] = []
    reference = reports[0]
    for report in reports[1:]:
        differences = list(_machine_problems(reference, report))
        problems += [problem for problem in differences if str(problem) not in map(str, problems)]
        hosts = _difference_lines(_facts(reference, HOST), _facts(report, HOST))
        if hosts and not differences:
            warnings.append(
                f"The hosts differ, but have the same hardware: {join_names(hosts, MAX_FACTS)}; "
                "differences of a few percent may come from the hosts"
            )
    if problems and not across:
        raise NotComparableError(*problems)
    if problems:
        summary = "; ".join(dict.fromkeys(problem.message for problem in problems))
        warnings.insert(0, f"ACROSS MACHINES: {summary}: the differences below may not come from the code")
    return list(dict.fromkeys(warnings))


def _machine_problems(reference: Report, report: Report) -> Iterator[Problem]:
    """Yield differences of machine, versions or clock."""
    kinds = (
        ("other-machine", "their machine", _machine(reference), _machine(report)),
        ("other-versions", "their versions", _versions(reference, report), _versions(report, reference)),
        ("other-clock", "their clock", _clocks(reference, report), _clocks(report, reference)),
    )
    for code, subject, reference_facts, report_facts in kinds:
        lines = _difference_lines(reference_facts, report_facts)
        if lines:
            message = (
                f"{clean(reference.name)} and {clean(report.name)} differ in {subject}: {join_names(lines, MAX_FACTS)}"
            )
            yield Problem(code=code, message=message, valid=_VALID_MACHINES)


def _difference_lines(reference: Facts, candidate: Facts) -> list[str]:
    """Return the differences; a difference that several keys share is listed once."""
    lines: dict[tuple[str, str], str] = {}
    for key in dict.fromkeys([*reference, *candidate]):
        values = reference.get(key, "none"), candidate.get(key, "none")
        if values[0] != values[1]:
            lines.setdefault(values, f"{clean(key)} {clean(values[0])} against {clean(values[1])}")
    return list(lines.values())


def _machine_entries(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the dotted keys and texts of the machine of a report; a list is one text."""
    return ((key, str(value)) for key, value in flatten(report.machine, has_lists=False))


def _machine(report: Report) -> Facts:
    return {
        key: value
        for key, value in _machine_entries(report)
        if not (VERSIONS.search(key) or IGNORED.search(key) or HOST.search(key))
    }


def _versions(report: Report, paired_report: Report) -> Facts:
    """Return the versions of a report, without the version of the measured project."""
    project_names = {"paribus", *(str(item.commit.get("project")) for item in (report, paired_report))}
    versions = {
        key: value for key, value in _machine_entries(report) if VERSIONS.search(key) and not IGNORED.search(key)
    }
    return {
        **{key: value for key, value in versions.items() if key.rpartition(".")[2] not in project_names},
        "pytest-benchmark": report.version,
    }


def _clocks(report: Report, paired_report: Report) -> Facts:
    return {
        benchmark.full_name: benchmark.clock
        for key, benchmark in report.benchmarks.items()
        if key in paired_report.benchmarks
    }


def _facts(report: Report, names: re.Pattern[str]) -> Facts:
    return {key: value for key, value in _machine_entries(report) if names.search(key)}


def read_reports(path: Path) -> list[Report]:
    """Return the report of a file, or the reports of a folder; raise a `DataError` if there is none."""
    if not path.is_dir():
        return [read_report(path)]
    reports = [read_report(file) for file in sorted(path.glob("*.json")) if file.is_file()]
    if not reports:
        raise _error(path, "this folder has no `*.json` file", "a folder with a report for each run")
    return reports

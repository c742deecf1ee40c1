"""Whether benchmark reports are of one machine, one set of versions and one clock, so that only code lies between."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from paribus.errors import NotComparableError, Problem, listed
from paribus.report.benchmarks.rounds import Report
from paribus.report.words import clean

Facts = Mapping[str, str]

MOST: Final = 4
VERSIONS: Final = re.compile(r"version|python_(build|compiler|implementation)|^pytest-benchmark$")
NOTHING: Final = re.compile(
    r"^cpu\.(hz_|flags$|cpuinfo_version|microcode)"
)  # it is not the same twice, or says nothing
HOST: Final = re.compile(r"^(node|release)$")  # two hosts with the same hardware are not refused, and told of
_VALID: Final = "reports of one machine, or --across-machines, which shows them under a warning"


def refuse_unlike(reports: Sequence[Report], *, across: bool = False) -> list[str]:
    """What weakens a comparison; a `NotComparableError` with all that forbids it, unless `across` was asked for."""
    problems: list[Problem] = []
    warnings: list[str] = []
    first = reports[0]
    for other in reports[1:]:
        found = list(_unlike(first, other))
        problems += [problem for problem in found if str(problem) not in map(str, problems)]
        hosts = [line for line in _lines(_facts(first, HOST), _facts(other, HOST)) if line]
        if hosts and not found:
            warnings.append(
                f"The hosts only look alike: {listed(hosts, MOST)}; differences of a few percent say little"
            )
    if problems and not across:
        raise NotComparableError(*problems)
    if problems:
        said = "; ".join(dict.fromkeys(problem.what for problem in problems))
        warnings.insert(0, f"ACROSS MACHINES: {said}: no difference below is known to be the code's")
    return list(dict.fromkeys(warnings))


def _unlike(first: Report, other: Report) -> Iterator[Problem]:
    kinds = (
        ("other-machine", "a machine", _machine(first), _machine(other)),
        ("other-versions", "their versions", _versions(first, other), _versions(other, first)),
        ("other-clock", "a clock", _clocks(first, other), _clocks(other, first)),
    )
    for code, what, before, after in kinds:
        lines = _lines(before, after)
        if lines:
            said = f"{clean(first.name)} and {clean(other.name)} do not share {what}: {listed(lines, MOST)}"
            yield Problem(code=code, what=said, valid=_VALID)


def _lines(before: Facts, after: Facts) -> list[str]:
    """What differs; the same difference under several names is told once."""
    found: dict[tuple[str, str], str] = {}
    for key in dict.fromkeys([*before, *after]):
        values = before.get(key, "none"), after.get(key, "none")
        if values[0] != values[1]:
            found.setdefault(values, f"{clean(key)} {clean(values[0])} against {clean(values[1])}")
    return list(found.values())


def _machine(report: Report) -> Facts:
    return {
        key: value
        for key, value in _flat(report.machine)
        if not (VERSIONS.search(key) or NOTHING.search(key) or HOST.search(key))
    }


def _versions(report: Report, other: Report) -> Facts:
    """What is measured may have a version of its own: it is what changed."""
    own = {"paribus", *(str(each.commit.get("project")) for each in (report, other))}
    found = {key: value for key, value in _flat(report.machine) if VERSIONS.search(key) and not NOTHING.search(key)}
    return {
        **{key: value for key, value in found.items() if key.rpartition(".")[2] not in own},
        "pytest-benchmark": report.version,
    }


def _clocks(report: Report, other: Report) -> Facts:
    return {bench.full: bench.clock for key, bench in report.benches.items() if key in other.benches}


def _facts(report: Report, names: re.Pattern[str]) -> Facts:
    return {key: value for key, value in _flat(report.machine) if names.search(key)}


def _flat(value: Any, way: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inside in value.items():
            yield from _flat(inside, f"{way}.{key}" if way else str(key))
    else:
        yield way, str(value)

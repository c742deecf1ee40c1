"""Table of benchmark results: `python benchmarks/report.py RESULTS.json` prints it and writes it to GOALS.md."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))  # run as a script, this file is not in a package

from benchmarks import machine  # noqa: E402  # the line above lets it be found
from benchmarks.claims import Claim, from_json  # noqa: E402  # the same
from benchmarks.paired import Estimate  # noqa: E402  # the same

PAGE = HERE / "GOALS.md"
BEGIN, END = "<!-- written by report.py: begin -->", "<!-- written by report.py: end -->"
GOAL_COLUMNS = ("goal", "what", "limit", "measured, 95 %", "A/A", "contrast", "")
OTHER_COLUMNS = ("what", "measured, 95 %", "")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="*", type=Path, help="files that `make bench` wrote")
    parser.add_argument("--print", action="store_true", dest="print_only", help="do not write GOALS.md")
    parser.add_argument("--name", action="store_true", help="print the path of today's results of this machine")
    options = parser.parse_args(argv)
    if options.name:
        print(HERE / "results" / name())
        return 0
    if not options.results:
        parser.error("missing RESULTS; valid: files of benchmarks/results/, or --name")
    blocks: list[str] = []
    for results in options.results:
        document = json.loads(results.read_text(encoding="utf-8"))
        claims = [claim for bench in document["benchmarks"] for claim in from_json(bench["extra_info"]["claims"])]
        print(text(document, claims))
        blocks.append(markdown(document, claims, results.name))
    if not options.print_only:
        write(PAGE, "\n\n".join(blocks))
    return 0


def name() -> str:
    return f"{datetime.datetime.now(tz=datetime.UTC).date()}-{machine.slug()}.json"


def text(document: dict[str, Any], claims: Sequence[Claim]) -> str:
    """Return the table for a terminal, with the number of goals that are met."""
    rows = [GOAL_COLUMNS, *(goal_row(claim) for claim in claims if claim.limit is not None)]
    other_rows = [OTHER_COLUMNS, *(other_row(claim) for claim in claims if claim.limit is None)]
    counts = Counter(claim.verdict for claim in claims if claim.limit is not None)
    tally = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("met", "not met", "inconclusive"))
    blocks = [columns(rows), columns(other_rows) if len(other_rows) > 1 else [], [tally]]
    return "\n".join(["", *provenance(document), *(line for block in blocks if block for line in ("", *block))])


def markdown(document: dict[str, Any], claims: Sequence[Claim], source: str) -> str:
    rows = [goal_row(claim) for claim in claims if claim.limit is not None]
    other_rows = [other_row(claim) for claim in claims if claim.limit is None]
    details = [f"- {line}" for line in provenance(document)]
    lines = [
        f"Measured on (raw rounds in [`{source}`](results/{source})):",
        "",
        *details,
        "",
        *table(GOAL_COLUMNS, rows),
    ]
    if other_rows:
        lines += ["", "Without a goal, for each attention that is registered:", "", *table(OTHER_COLUMNS, other_rows)]
    return "\n".join(lines)


def provenance(document: dict[str, Any]) -> list[str]:
    """Return lines with machine, versions and commit."""
    info, commit = document["machine_info"], document["commit_info"]
    versions = ", ".join(f"{package} {version}" for package, version in info["versions"].items())
    changed = ", with changes that are not committed" if commit.get("dirty") else ""
    return [
        f"{info['processor']}, {info['cores']} cores, {info['memory_gib']} GiB, {info['system']}",
        f"{versions}; threads: {info['threads']}",
        f"commit {commit['id'][:12]}{changed}, {document['datetime'][:16].replace('T', ' ')} UTC",
    ]


def goal_row(claim: Claim) -> tuple[str, ...]:
    assert claim.limit is not None, "a claim with a goal has a limit"
    limit = f"{'≤' if claim.at_most else '≥'} {claim.limit:g} {claim.unit}".rstrip()
    twin = interval(claim.twin) if claim.twin else ""
    contrast = f"{claim.contrast.figure:.4g}" if claim.contrast else ""
    return claim.goal, claim.what, limit, figure(claim.measured), twin, contrast, f"{claim.verdict}{note_suffix(claim)}"


def other_row(claim: Claim) -> tuple[str, ...]:
    return claim.what, f"{figure(claim.measured)} {claim.unit}".rstrip(), claim.note


def note_suffix(claim: Claim) -> str:
    return f" ({claim.note})" if claim.note else ""


def figure(measured: Estimate) -> str:
    """Format an estimate, without the interval of a count or single measurement."""
    if measured.low == measured.high:
        return f"{measured.figure:.4g}"
    return f"{measured.figure:.4g} {interval(measured)}"


def interval(measured: Estimate) -> str:
    return f"[{measured.low:.4g}, {measured.high:.4g}]"


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = [heads, ("---",) * len(heads), *rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]


def write(path: Path, content: str) -> None:
    """Replace the text between the two marks."""
    prefix, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, suffix = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path}: expected the marks {BEGIN} … {END}")
    path.write_text(f"{prefix}{BEGIN}\n\n{content}\n\n{END}{suffix}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

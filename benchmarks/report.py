"""What was measured, as a table: `python benchmarks/report.py RESULTS.json` prints it and writes it into README.md."""

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
sys.path.insert(0, str(HERE.parent))  # run by its path, this is no part of a package

from benchmarks import machine  # noqa: E402  # the line above lets it be found
from benchmarks.claims import Claim, from_json  # noqa: E402  # the same
from benchmarks.paired import Estimate  # noqa: E402  # the same

README = HERE / "README.md"
BEGIN, END = "<!-- written by report.py: begin -->", "<!-- written by report.py: end -->"
HELD = ("goal", "what", "limit", "measured, 95 %", "A/A", "contrast", "")
TOLD = ("what", "measured, 95 %", "")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="*", type=Path, help="what `make bench` wrote, one file or several")
    parser.add_argument("--print", action="store_true", dest="only", help="leave README.md as it is")
    parser.add_argument("--name", action="store_true", help="print where today's results on this machine belong")
    asked = parser.parse_args(argv)
    if asked.name:
        print(HERE / "results" / name())
        return 0
    if not asked.results:
        parser.error("which results? valid: a file of benchmarks/results/, or --name")
    blocks: list[str] = []
    for results in asked.results:
        document = json.loads(results.read_text(encoding="utf-8"))
        claims = [claim for bench in document["benchmarks"] for claim in from_json(bench["extra_info"]["claims"])]
        print(text(document, claims))
        blocks.append(markdown(document, claims, results.name))
    if not asked.only:
        write(README, "\n\n".join(blocks))
    return 0


def name() -> str:
    return f"{datetime.datetime.now(tz=datetime.UTC).date()}-{machine.slug()}.json"


def text(document: dict[str, Any], claims: Sequence[Claim]) -> str:
    """For a terminal: columns, then how many goals are met."""
    rows = [HELD, *(held(claim) for claim in claims if claim.limit is not None)]
    others = [TOLD, *(told(claim) for claim in claims if claim.limit is None)]
    counted = Counter(claim.verdict for claim in claims if claim.limit is not None)
    tally = ", ".join(f"{counted[verdict]} {verdict}" for verdict in ("met", "not met", "inconclusive"))
    shown = [columns(rows), columns(others) if len(others) > 1 else [], [tally]]
    return "\n".join(["", *where(document), *(line for block in shown if block for line in ("", *block))])


def markdown(document: dict[str, Any], claims: Sequence[Claim], source: str) -> str:
    rows = [held(claim) for claim in claims if claim.limit is not None]
    others = [told(claim) for claim in claims if claim.limit is None]
    said = [f"- {line}" for line in where(document)]
    lines = [f"Measured on (raw rounds in [`{source}`](results/{source})):", "", *said, "", *table(HELD, rows)]
    if others:
        lines += ["", "Without a goal, for each attention that is registered:", "", *table(TOLD, others)]
    return "\n".join(lines)


def where(document: dict[str, Any]) -> list[str]:
    """On what, with what, of which commit."""
    about, commit = document["machine_info"], document["commit_info"]
    versions = ", ".join(f"{package} {version}" for package, version in about["versions"].items())
    changed = ", with changes that are not committed" if commit.get("dirty") else ""
    return [
        f"{about['processor']}, {about['cores']} cores, {about['memory_gib']} GiB, {about['system']}",
        f"{versions}; threads: {about['threads']}",
        f"commit {commit['id'][:12]}{changed}, {document['datetime'][:16].replace('T', ' ')} UTC",
    ]


def held(claim: Claim) -> tuple[str, ...]:
    assert claim.limit is not None, "what has no limit is held against none"
    limit = f"{'≤' if claim.at_most else '≥'} {claim.limit:g} {claim.unit}".rstrip()
    twin = interval(claim.twin) if claim.twin else ""
    contrast = f"{claim.contrast.figure:.4g}" if claim.contrast else ""
    return claim.goal, claim.what, limit, figure(claim.measured), twin, contrast, f"{claim.verdict}{noted(claim)}"


def told(claim: Claim) -> tuple[str, ...]:
    return claim.what, f"{figure(claim.measured)} {claim.unit}".rstrip(), claim.note


def noted(claim: Claim) -> str:
    return f" ({claim.note})" if claim.note else ""


def figure(measured: Estimate) -> str:
    """An interval only where there is one: what is counted, or taken once, has none."""
    if measured.low == measured.high:
        return f"{measured.figure:.4g}"
    return f"{measured.figure:.4g} {interval(measured)}"


def interval(measured: Estimate) -> str:
    return f"[{measured.low:.4g}, {measured.high:.4g}]"


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    lines = [heads, ("---",) * len(heads), *rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]


def write(path: Path, found: str) -> None:
    """Replaces what stands between the two marks, and nothing else."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path} has no place for results: {BEGIN} … {END}")
    path.write_text(f"{before}{BEGIN}\n\n{found}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

"""`make numerics`: prove by replay that the engine of this tree computes the numbers of the latest epoch.

Golden trials run under the tree of the commit at which the epoch began and under this tree, at the same time on the
same machine. If all their numbers are bitwise equal, the hash of the engine is added to `epochs.json`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import click
from tests.numerics.comparison import Difference, GoldenResults, compare, difference_table
from tests.numerics.epoch_file import Begin, EpochEntry, EpochFile, NoHistoryError
from tests.numerics.lines import coverage_problems

from paribus.storage.engine import engine_files, hash_of_engine

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).resolve().parent
TRIALS: Final = HERE / "trials.yaml"
REASONS: Final = HERE / "unreached.yaml"
ARCHIVED: Final = ("core", "plugins", "pyproject.toml")
KEPT_VARIABLES: Final = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SSL_CERT_FILE")
ADVICE: Final = """\
Mend the edit, or, if the new numbers are meant, begin a new epoch, which makes all records stale:
    make numerics ARGS='--raise "what changed"'"""


class Source(NamedTuple):
    """Folders of the code that golden trials run."""

    core: Path
    plugins: Path

    @classmethod
    def of(cls, tree: Path) -> Source:
        return cls(tree / "core", tree / "plugins")


def start(source: Source, folder: Path, names: Sequence[str], files: Sequence[Path] = ()) -> subprocess.Popen[bytes]:
    """Start a process that runs golden trials with the code of a tree, with caches of its own."""
    folder.mkdir(parents=True)
    environment = {key: os.environ[key] for key in KEPT_VARIABLES if key in os.environ} | {
        "PYTHONPATH": os.pathsep.join(map(str, (source.core, source.plugins, ROOT))),
        "PARIBUS_CACHE_DIR": str(folder / "cache" / "paribus"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PARIBUS_GOLDEN_LINES": "\n".join(map(str, files)),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "tests.numerics.golden", str(TRIALS), str(folder / "trials"), *names]
    with (folder / "log.txt").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)


def finish(process: subprocess.Popen[bytes], source: Source, folder: Path) -> GoldenResults:
    """Wait for a process that `start` started, and return its results."""
    if process.wait():
        log = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")
        raise click.ClickException(f"the golden trials of {source.core.parent} ended with an error:\n{log[-4000:]}")
    results = GoldenResults.read(folder / "trials" / "golden.json")
    if Path(results.paribus) != source.core / "paribus":
        raise click.ClickException(f"imported {results.paribus}, but expected {source.core / 'paribus'}")
    return results


class Replay(NamedTuple):
    """Results of golden trials under two trees."""

    differences: list[Difference]
    results: GoldenResults  # of this tree
    notes: list[str]


def replay(old: Path, new: Path, work: Path, names: Sequence[str] = (), *, with_lines: bool = False) -> Replay:
    """Run golden trials under two trees, and compare them.

    Where they differ, they run once more with the engine of the old tree and the plugins of the new one: a component
    that changed has another identity by itself, so its numbers are no matter of the engine.
    """
    files = engine_files(new / "core" / "paribus") if with_lines else ()
    sources = (Source.of(old), Source.of(new))
    folders = (work / "old", work / "new")
    processes = [start(sources[0], folders[0], names), start(sources[1], folders[1], names, files)]
    try:
        old_results, new_results = (finish(*item) for item in zip(processes, sources, folders, strict=True))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    differences, notes = compare(old_results, new_results)
    differing = [difference.trial for difference in differences]
    if differing and differing != list(new_results.failures):
        mixed, folder = Source(sources[0].core, sources[1].plugins), work / "mixed"
        with suppress(click.ClickException):  # the old engine may not run the new plugins at all
            mixed_results = finish(start(mixed, folder, differing), mixed, folder)
            of_engine = {difference.trial for difference in compare(mixed_results, new_results, differing)[0]}
            of_plugins = [name for name in differing if name not in of_engine]
            notes += [f"{name} differs by the plugins only, not by the engine" for name in of_plugins]
            differences = [difference for difference in differences if difference.trial not in of_plugins]
    return Replay(differences, new_results, notes)


def archive(tree: Path, commit: str, target: Path) -> None:
    """Write the core and the plugins of a commit to a folder."""
    target.mkdir(parents=True)
    packed = subprocess.run(["git", "-C", str(tree), "archive", commit, *ARCHIVED], check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", str(target)], check=True, input=packed.stdout)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--check", is_flag=True, help="Write nothing; fail unless the engine is in the list, and equal.")
@click.option("--raise", "raised", metavar="TEXT", help="Begin a new epoch; TEXT is what changed.")
@click.option(
    "--only", multiple=True, metavar="TRIAL", help="Run this golden trial only, and write nothing; repeatable."
)
@click.option("--tree", type=click.Path(path_type=Path), default=ROOT, help="The tree to prove, instead of this one.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep both trees' results in this new folder.")
def main(check: bool, raised: str | None, only: tuple[str, ...], tree: Path, keep: Path | None) -> None:
    """Prove that the engine computes the numbers of the latest epoch, and add its hash to `epochs.json`."""
    if raised is not None and (check or only or not raised.strip()):
        raise click.UsageError("--raise needs a TEXT, and no --check or --only")
    tree = tree.resolve()
    epochs, engine = EpochFile(tree), hash_of_engine(tree / "core" / "paribus")
    is_known, writes = engine in epochs.entries[-1].engines, not check and not only
    if is_known and writes and raised is None:
        click.echo(f"the engine {engine} is proven already: epoch {epochs.entries[-1].epoch}")
        return
    begin, result = replay_from_begin(epochs, keep, only, with_lines=not only)
    lines = result.results.lines
    problems = coverage_problems(tree / "core" / "paribus", lines, REASONS) if lines else []
    for line in (*(f"note: {note}" for note in result.notes), *problems):
        click.echo(line)
    if raised is not None:
        message = raise_epoch(epochs, begin.epoch, raised, engine, result.differences)
    elif epochs.entries[-1].epoch > begin.epoch:
        message = confirm_raise(epochs, engine, result.differences, write=writes)
    else:
        message = confirm_equality(epochs, engine, result, write=writes)
    if check and not is_known:
        advice = "run `make numerics`, and commit its change"
        raise click.ClickException(f"the engine {engine} is not in {epochs.path.name}: {advice}")
    if problems:
        raise click.ClickException(f"add golden trials to {TRIALS.name}, or reasons to {REASONS.name}")
    click.echo(message)


def replay_from_begin(
    epochs: EpochFile, keep: Path | None, names: Sequence[str], *, with_lines: bool
) -> tuple[Begin, Replay]:
    """Return the commit at which the epoch began, and the results of golden trials under it and under this tree."""
    try:
        begin = epochs.begin()
    except NoHistoryError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"comparing with epoch {begin.epoch}, which began at {begin.commit[:10]}")
    work = (keep or Path(tempfile.mkdtemp(prefix="paribus-numerics-"))).resolve()
    try:
        archive(epochs.tree, begin.commit, work / "tree")
        return begin, replay(work / "tree", epochs.tree, work, names, with_lines=with_lines)
    finally:
        if keep is None:
            shutil.rmtree(work, ignore_errors=True)


def confirm_equality(epochs: EpochFile, engine: str, replayed: Replay, *, write: bool) -> str:
    """Return a message on an engine that computes the numbers of the epoch, and add it to the list."""
    latest = epochs.entries[-1]
    if replayed.differences:
        click.echo(difference_table(replayed.differences))
        raise click.ClickException(f"the engine computes other numbers than epoch {latest.epoch}.\n{ADVICE}")
    message = f"{len(replayed.results.trials)} golden trials are bitwise equal to those of epoch {latest.epoch}"
    if write and engine not in latest.engines:
        epochs.write([*epochs.entries[:-1], latest.with_engine(engine)])
        message += f"; {engine} is added to {epochs.path.relative_to(epochs.tree)}"
    return message


def raise_epoch(epochs: EpochFile, previous: int, changed: str, engine: str, differences: Sequence[Difference]) -> str:
    """Begin a new epoch, or describe anew the one that is not committed yet."""
    if not differences:
        raise click.ClickException(f"no golden trial differs from epoch {previous}, so there is nothing to raise")
    click.echo(difference_table(differences))
    names = tuple(difference.trial for difference in differences)
    kept = [entry for entry in epochs.entries if entry.epoch <= previous]
    epochs.write([*kept, EpochEntry(previous + 1, changed.strip(), (engine,), names)])
    return f"epoch {previous + 1} begins. CHANGELOG.md needs this line: {changed.strip()}"


def confirm_raise(epochs: EpochFile, engine: str, differences: Sequence[Difference], *, write: bool) -> str:
    """Return a message on an epoch that is not committed yet: this engine is its first, and it must differ."""
    latest = epochs.entries[-1]
    if not differences:
        message = f"epoch {latest.epoch} is raised, but no golden trial differs from epoch {latest.epoch - 1}"
        raise click.ClickException(f"{message}: remove it from {epochs.path.name}")
    if write:
        names = tuple(difference.trial for difference in differences)
        epochs.write([*epochs.entries[:-1], latest._replace(engines=(engine,), differs=names)])
    return f"epoch {latest.epoch} is not committed yet, and differs in {len(differences)} golden trials"


if __name__ == "__main__":
    main()

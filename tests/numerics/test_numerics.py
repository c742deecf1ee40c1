"""The engine belongs to the latest epoch, and `make numerics` finds the edits that change a number, and no others."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.numerics import replay
from tests.numerics.comparison import Difference, GoldenResults, compare, difference_table
from tests.numerics.epoch_file import FILE, EpochEntry, EpochFile, NoHistoryError
from tests.numerics.lines import KINDS, LineRecorder, coverage_problems, unreached

from paribus.storage.engine import ROOT as PACKAGE
from paribus.storage.engine import engine_files, engine_hash, epochs, hash_of_engine

ROOT: Final = Path(__file__).parents[2]
FEW_TRIALS: Final = ("precision-64", "decoder")

Edit = tuple[str, str, str]  # file of the engine, text, and what replaces it

NEUTRAL_EDITS: Final[Mapping[str, tuple[Edit, ...]]] = {
    "a private function has another name": (("parts/chunked_loss.py", "_leaves(", "_parameters_of("),),
    "a loop is a reduction": (
        (
            "parts/visibility.py",
            "    mask = conditions[0].all()\n    for relation in conditions[1:]:\n"
            "        mask = mask & relation.all()\n",
            "    mask = functools.reduce(torch.logical_and, (relation.all() for relation in conditions))\n",
        ),
        ("parts/visibility.py", "import torch\n", "import functools\n\nimport torch\n"),
    ),
    "a new option has the old behaviour by default": (
        ("datamodule/data.py", "    bucket: int = 0  #", "    newest_first: bool = False\n    bucket: int = 0  #"),
    ),
    "an annotation is added": (("train/trial.py", "DEFAULT_STEPS = ", "DEFAULT_STEPS: Final = "),),
    "imports are in another order": (
        ("evidence/digests.py", "import hashlib\nfrom collections.abc", "from collections.abc"),
        ("evidence/digests.py", "import numpy as np\n", "import hashlib\n\nimport numpy as np\n"),
    ),
    "a comparison is written in another way": (
        ("assembly/initialise.py", "if parameter.ndim >= 2", "if parameter.ndim > 1"),
    ),
    "a text is joined in another way": (
        ("evidence/digests.py", 'f"{previous}{current}".encode()', "(previous + current).encode()"),
    ),
    "an equal path is faster": (
        (
            "models/averaged_weights.py",
            "    return min(decay, step / ",
            "    if step > 10**6:\n        return decay\n    return min(decay, step / ",
        ),
    ),
    "a slice has its start": (("random_keys.py", "_hash(parts)[:4]", "_hash(parts)[0:4]"),),
}  # fmt: skip
LOSS: Final = "return (loss if auxiliary is None"
MOVED: Final = ("constant_tensor", "tensor_constant")  # a module of `parts`


def edit(tree: Path, *edits: Edit) -> None:
    """Replace texts in files of a tree's engine."""
    for name, text, replacement in edits:
        path = tree / "core" / "paribus" / name
        source = path.read_text()
        assert text in source, f"{name} has changed: {text}"
        path.write_text(source.replace(text, replacement))


def test_every_edit_has_its_text() -> None:
    for edits in NEUTRAL_EDITS.values():
        assert edits[0][1] in (PACKAGE / edits[0][0]).read_text(), edits[0]
    assert LOSS in (PACKAGE / "models/lightning_module.py").read_text()


def move_module(tree: Path) -> None:
    """Rename a module of the engine, and all imports of it."""
    old, new = MOVED
    for path in (tree / "core").rglob("*.py*"):
        if path.suffix in (".py", ".pyi"):
            path.write_text(path.read_text().replace(f"parts.{old} ", f"parts.{new} "))
    (tree / "core/paribus/parts" / f"{old}.py").rename(tree / "core/paribus/parts" / f"{new}.py")


def git(tree: Path, *arguments: str) -> None:
    name = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    subprocess.run(["git", "-C", str(tree), *name, *arguments], check=True, capture_output=True)


def commit(tree: Path) -> str:
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "-m", "test")
    result = subprocess.run(["git", "-C", str(tree), "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return result.stdout.strip()


def write_epochs(tree: Path, *entries: EpochEntry) -> EpochFile:
    path = tree / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([entry.to_json() for entry in entries]))
    return EpochFile(tree)


def results(
    trials: Mapping[str, Any], failures: Mapping[str, str] | None = None, new: tuple[str, ...] = ()
) -> GoldenResults:
    return GoldenResults("", trials, failures or {}, new, {}, {})


# --- the engine of this tree ---


def test_the_engine_is_proven() -> None:
    assert engine_hash() in epochs()[-1].engines, "run `make numerics`, and commit core/paribus/storage/epochs.json"


def test_the_changelog_names_every_epoch_after_the_first() -> None:
    changelog = " ".join((ROOT / "CHANGELOG.md").read_text().split())
    assert [epoch.changed for epoch in epochs() if epoch.number > 1 and epoch.changed not in changelog] == []


@pytest.mark.thorough
def test_reasons_are_of_the_engine_and_of_known_kinds() -> None:
    reasons = yaml.safe_load(replay.REASONS.read_text())
    files = {path.relative_to(PACKAGE).as_posix(): unreached(path, ()) for path in engine_files(PACKAGE)}
    for file, given in reasons.items():
        assert set(given) <= set(files[file]), file
        assert {reason.partition(" ")[2].partition(":")[0] for reason in given.values()} <= set(KINDS), file


# --- epochs and their commits ---


def test_an_epoch_begins_with_the_first_commit_that_has_it(tmp_path: Path) -> None:
    first, second = EpochEntry(1, "the first", ("a",)), EpochEntry(2, "other sums", ("b",), ("decoder",))
    git(tmp_path, "init", "-q")
    write_epochs(tmp_path, first)
    first_commit = commit(tmp_path)
    write_epochs(tmp_path, first.with_engine("c"))
    commit(tmp_path)
    assert EpochFile(tmp_path).begin() == (1, first_commit)
    epoch_file = write_epochs(tmp_path, first, second)
    assert epoch_file.begin() == (1, first_commit)  # the second is not committed yet
    second_commit = commit(tmp_path)
    assert EpochFile(tmp_path).begin() == (2, second_commit)


def test_without_its_history_an_epoch_has_no_beginning(tmp_path: Path) -> None:
    epoch_file = write_epochs(tmp_path, EpochEntry(1, "the first", ("a",)))
    with pytest.raises(NoHistoryError, match="whole history"):
        epoch_file.begin()
    git(tmp_path, "init", "-q")
    (tmp_path / "other").touch()
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "-q", "-m", "test")
    with pytest.raises(NoHistoryError, match="whole history"):
        epoch_file.begin()


def test_epochs_are_written_with_one_engine_a_line(tmp_path: Path) -> None:
    entry = EpochEntry(1, "the first", ("a",))
    epoch_file = write_epochs(tmp_path, entry)
    epoch_file.write([entry.with_engine("b")])
    lines = [line.strip(" ,") for line in epoch_file.path.read_text().splitlines()]
    assert {'"a"', '"b"'} <= set(lines)
    assert EpochFile(tmp_path).entries == [entry.with_engine("b")]


def test_an_epoch_is_raised_only_for_a_difference(tmp_path: Path) -> None:
    first = EpochEntry(1, "the first", ("a",))
    epoch_file = write_epochs(tmp_path, first)
    difference = Difference("decoder", "loss at step 1", "1.0", "2.0", 3)
    with pytest.raises(Exception, match="nothing to raise"):
        replay.raise_epoch(epoch_file, 1, "other sums", "b", [])
    assert EpochFile(tmp_path).entries == [first]
    message = replay.raise_epoch(epoch_file, 1, "other sums", "b", [difference])
    assert "CHANGELOG" in message
    assert EpochFile(tmp_path).entries == [first, EpochEntry(2, "other sums", ("b",), ("decoder",))]
    with pytest.raises(Exception, match="no golden trial differs"):
        replay.confirm_raise(epoch_file, "c", [], write=True)
    replay.confirm_raise(epoch_file, "c", [difference], write=True)
    assert EpochFile(tmp_path).entries[-1].engines == ("c",)


# --- comparison ---


def test_the_first_difference_is_named_with_all_digits() -> None:
    old = {"initial tensor w": "ab", "loss at step 1": (0.1).hex(), "loss at step 2": (0.2).hex()}
    new = {**old, "loss at step 1": (0.1 + 2e-17).hex(), "loss at step 2": "x"}
    (difference,), notes = compare(results({"decoder": old}), results({"decoder": new}))
    assert difference == ("decoder", "loss at step 1", "0.1", "0.10000000000000002", 2)
    assert notes == []
    assert "0.10000000000000002" in difference_table([difference])


def test_a_corpus_of_other_code_is_no_difference_of_the_engine() -> None:
    old, new = ({"decoder": {"result data corpus": code, "loss at step 1": "0x1.0p+0"}} for code in ("a", "b"))
    assert compare(results(old), results(new)) == ([], [])
    new["decoder"]["result data tokens"] = "c"
    (difference,), _ = compare(results(old), results(new))
    assert difference.place == "result data tokens"


def test_a_place_that_is_missing_differs() -> None:
    (difference,), _ = compare(results({"decoder": {"a": 1, "b": 2}}), results({"decoder": {"a": 1}}))
    assert difference[:4] == ("decoder", "b", "2", "none")


def test_new_evidence_in_a_certificate_is_no_difference_and_is_noted() -> None:
    old = {"result certificate losses": "ab", "result metrics val/clm/loss": 1}
    added = {**old, "result certificate rates 0": "c", "result certificate rates 1": "d"}
    differences, notes = compare(results({"decoder": old}), results({"decoder": added}))
    assert differences == []
    assert notes == ["decoder: the certificate has `rates` since, which is not compared"]
    assert compare(results({"decoder": added}), results({"decoder": old}))[0], "evidence must not be lost"
    other = {**added, "result metrics val/clm/accuracy": 1}
    assert compare(results({"decoder": old}), results({"decoder": other}))[0], "numbers are compared"


def test_a_trial_that_fails_differs_unless_it_is_new_and_runs_now() -> None:
    failed = results({}, {"decoder": "SpecError"})
    assert compare(failed, results({"decoder": {}}))[0][0].place == "error"
    assert compare(failed, failed)[0][0].place == "error"
    differences, notes = compare(failed, results({"decoder": {}}, new=("decoder",)))
    assert differences == []
    assert "decoder is new" in notes[0]


# --- reached lines ---

SOURCE: Final = '''
def reached(x):
    """Return a number."""
    if x < 0:
        text = "error"
        raise ValueError(text)
    assert x < 9, (
        "too large"
    )
    return 1 if x else 2


def in_part(x):
    if x:
        return 1
    return 2


def gone():
    return [x for x in range(3)]
'''


def test_functions_with_lines_that_are_not_reached(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    namespace: dict[str, Callable[[int], int]] = {}
    recorder = LineRecorder([path])
    recorder.start()
    exec(compile(SOURCE, str(path), "exec"), namespace)
    namespace["reached"](1)
    namespace["in_part"](0)
    lines = recorder.stop()[str(path)]
    assert unreached(path, lines) == {"in_part": [15], "gone": [20]}
    reasons = tmp_path / "reasons.yaml"
    reasons.write_text(
        'module.py: {in_part: "1 large: it takes long", reached: "1 large: no", gone: "1 why"}\nother.py: {}\n'
    )
    problems = coverage_problems(tmp_path, {str(path): lines}, reasons)
    assert [problem.partition(":")[0] for problem in problems] == ["module.py", "module.py", "other.py"]
    reasons.write_text('module.py: {in_part: "0 large: it takes long", gone: "1 large: it takes long"}')
    (problem,) = coverage_problems(tmp_path, {str(path): lines}, reasons)
    assert "no golden trial reaches 1 lines of `in_part`, 15; the list has 0" in problem
    reasons.write_text("{}")
    assert len(coverage_problems(tmp_path, {str(path): lines}, reasons)) == 2
    reasons.write_text(
        'module.py: {in_part: "1 version: p", gone: "1 version: p", reached: "1 version: p", absent: "1 version: p"}'
    )
    (problem,) = coverage_problems(tmp_path, {str(path): lines}, reasons)
    assert problem.startswith("module.py: all lines of `absent` are reached, or it is gone")


# --- replay ---


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of this tree whose engine began an epoch, and replay few golden trials."""
    folder = tmp_path / "copy"
    for name in ("core", "plugins"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    write_epochs(folder, EpochEntry(1, "the first", (hash_of_engine(folder / "core/paribus"),)))
    git(folder, "init", "-q")
    commit(folder)
    document = yaml.safe_load(replay.TRIALS.read_text())
    few = {name: document["trials"][name] for name in FEW_TRIALS}
    table = tmp_path / "trials.yaml"
    table.write_text(yaml.safe_dump({**document, "trials": few}))
    monkeypatch.setattr(replay, "TRIALS", table)
    return folder


def numerics(tree: Path, *arguments: str) -> Result:
    return CliRunner().invoke(replay.main, ["--tree", str(tree), *arguments])


def test_a_proven_engine_is_not_replayed(tree: Path) -> None:
    result = numerics(tree)
    assert result.exit_code == 0
    assert "proven already" in result.output


@pytest.mark.slow
def test_edits_that_change_no_number_join_the_list(tree: Path) -> None:
    began = EpochFile(tree).entries[0].engines
    edit(tree, *(change for edits in NEUTRAL_EDITS.values() for change in edits))
    move_module(tree)
    engine = hash_of_engine(tree / "core/paribus")
    assert numerics(tree, "--raise", "nothing").exit_code == 1
    assert EpochFile(tree).entries[0].engines == began
    result = numerics(tree)
    assert result.exit_code == 0, result.output
    assert EpochFile(tree).entries[0].engines == (*began, engine)


@pytest.mark.slow
def test_an_edit_in_the_fifteenth_digit_is_found_and_begins_an_epoch(tree: Path) -> None:
    edit(tree, ("models/lightning_module.py", LOSS, "return (loss * (1 + 2e-15) if auxiliary is None"))
    result = numerics(tree, "--only", "precision-64")
    assert result.exit_code == 1
    assert "loss at step 1" in result.output
    assert "--raise" in result.output
    result = numerics(tree, "--raise", "larger losses")
    assert result.exit_code == 0, result.output
    assert "precision-64" in EpochFile(tree).entries[1].differs


@pytest.mark.slow
def test_a_component_that_changed_is_no_matter_of_the_engine(tree: Path, tmp_path: Path) -> None:
    path = tree / "plugins/paribus_norm/layer_norm.py"
    source = path.read_text()
    assert "self.bias, self.eps)" in source
    path.write_text(source.replace("self.bias, self.eps)", "self.bias, 2 * self.eps)"))
    work = tmp_path / "work"
    replayed = replay.replay(ROOT, tree, work, ["precision-64"])
    assert replayed.differences == []
    assert replayed.notes == ["precision-64 differs by the plugins only, not by the engine"]
    imported = [GoldenResults.read(work / name / "trials/golden.json").paribus for name in ("old", "new", "mixed")]
    assert imported == [str(folder / "core/paribus") for folder in (ROOT, tree, ROOT)]

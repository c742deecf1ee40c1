"""A comment, a docstring or a message makes no record stale; a change of what is computed does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import paribus
from paribus.planning import identity
from paribus.storage import code_hash
from paribus.storage import engine as engines
from paribus.storage.code_hash import CodeHashes, dependencies, tree_hash
from paribus.storage.engine import (
    ENGINE,
    UNHASHED,
    Epoch,
    engine_files,
    hash_of_engine,
    is_proven_equal,
    numbers_of_engine,
)

CORE = Path(paribus.__file__).parent
DESCRIBING = {"__init__.py", "errors.py", "schema.py", "hookspecs.py"}
DESCRIBING_PACKAGES = {"registry", "specs", "storage", "conversion"}  # what they make of a spec is in the identity

COMPUTATION = """
def scale(values: Annotated[float, "a factor", Range(0)]) -> float:
    if not values:
        raise SpecError(Problem(code="empty", what=f"{values} is empty"), "nothing")
    assert values > 0, "negative"
    warnings.warn(f"scaled by {factor}")
    message = "done" if values else f"no {values}"
    return values * 2 + len("abc")
"""
KEPT = {
    "a comment": ("    if not", "    # why\n    if not"),
    "a comment behind a line": ('len("abc")', 'len("abc")  # three'),
    "a docstring": ("    if not", '    """Scale values."""\n    if not'),
    "layout": ("values * 2", "(\n        values  *  2\n    )"),
    "line endings": ("\n", "\r\n"),
    "a problem": ('code="empty", what=f"{values} is empty"', 'code="no-values", what=f"no values in {place()}"'),
    "the text of an error": ('"nothing"', 'f"nothing at {place}"'),
    "the text of an assert": ('"negative"', '"not positive"'),
    "a warning": ('f"scaled by {factor}"', '"scaled"'),
    "a message": ('"done"', '"finished"'),
    "an option's description": ('"a factor"', '"a positive factor"'),
}
CHANGED = {
    "a number": ("* 2", "* 3"),
    "an operator": ("* 2", "/ 2"),
    "a type": ("* 2", "* 2.0"),
    "a string that is read": ('"abc"', '"abcd"'),
    "an error's type": ("raise SpecError", "raise DataError"),
    "an assert": ("values > 0", "values >= 0"),
    "a condition of a message": ('"done" if values', '"done" if factor'),
    "an option's limit": ("Range(0)", "Range(1)"),
}


@pytest.mark.parametrize("edit", KEPT.values(), ids=list(KEPT))
def test_an_edit_that_computes_nothing_keeps_the_hash(edit: tuple[str, str]) -> None:
    edited = COMPUTATION.replace(*edit)
    assert edited != COMPUTATION
    assert tree_hash(edited.encode()) == tree_hash(COMPUTATION.encode())


@pytest.mark.parametrize("edit", CHANGED.values(), ids=list(CHANGED))
def test_an_edit_that_computes_changes_the_hash(edit: tuple[str, str]) -> None:
    edited = COMPUTATION.replace(*edit)
    assert edited != COMPUTATION
    assert tree_hash(edited.encode()) != tree_hash(COMPUTATION.encode())


@pytest.fixture
def engine(tmp_path: Path) -> Callable[[], str]:
    """The hash of a copy of the engine in `tmp_path`."""
    for name in ENGINE:
        if (CORE / name).is_dir():
            shutil.copytree(CORE / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(CORE / name, tmp_path / name)
    return lambda: hash_of_engine(tmp_path)


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_comment_a_docstring_and_a_progress_bar_keep_every_identity(
    tmp_path: Path, engine: Callable[[], str]
) -> None:
    previous = engine()
    replace(tmp_path / "random_keys.py", "def key32", "# a comment\ndef key32")
    replace(tmp_path / "train" / "trial.py", '"""', '"""Other words. ')
    replace(tmp_path / "datamodule" / "progress.py", "1.0", "2.0")
    replace(tmp_path / "datamodule" / "worker_pool.py", "1.0", "2.0")
    replace(tmp_path / "train" / "trial_options.py", "30.0", "60.0")
    assert engine() == previous


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("random_keys.py", '"little"', '"big"'),  # random draws
        ("inference/generation_strategies.py", "def ", "CONSTANT = 1\n\n\ndef "),  # BLEU and chrF
        ("models/training_clock.py", "10_000", "1_000"),  # schedules of a budget in seconds
    ],
)
def test_a_change_of_what_is_computed_changes_every_identity(
    file: str, old: str, new: str, tmp_path: Path, engine: Callable[[], str]
) -> None:
    previous = engine()
    replace(tmp_path / file, old, new)
    assert engine() != previous


def test_engines_of_one_epoch_have_one_name_and_any_other_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "epochs", lambda: (Epoch(1, "", frozenset("a")), Epoch(2, "", frozenset("bc"))))
    names = {}
    for name in "abcd":
        monkeypatch.setattr(engines, "engine_hash", lambda name=name: name)
        names[name] = numbers_of_engine(), identity.code_of({})
    assert names["b"] == names["c"]
    assert names["b"][0] == "epoch 2"
    assert len(set(names.values())) == 3
    assert not is_proven_equal("b")  # the present engine is d
    monkeypatch.setattr(engines, "engine_hash", lambda: "b")
    assert is_proven_equal("c")
    assert not is_proven_equal("a")
    assert not is_proven_equal("d")


def test_all_that_training_and_measuring_import_is_hashed_or_named() -> None:
    reached = _reached(CORE / "train" / "trial.py", CORE / "inference" / "generate.py")
    hashed = set(engine_files(CORE))
    names = {path.relative_to(CORE).as_posix() for path in reached - hashed}
    unexplained = {name for name in names - UNHASHED - DESCRIBING if name.partition("/")[0] not in DESCRIBING_PACKAGES}
    assert not unexplained
    assert len(hashed & reached) > 60


def test_every_unhashed_module_exists() -> None:
    assert not [name for name in UNHASHED if not (CORE / name).is_file()]


def _reached(*files: Path) -> set[Path]:
    return {*dependencies(files, CodeHashes(), external=False).files}


def test_a_file_is_parsed_once_for_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARIBUS_CACHE_DIR", str(tmp_path / "cache"))
    source = tmp_path / "module.py"
    source.write_text("x = 1\n")
    initial = CodeHashes()
    expected = initial.hash(source)
    initial.save()
    monkeypatch.setattr(code_hash, "tree_hash", lambda source: pytest.fail("parsed again"))
    assert CodeHashes().hash(source) == expected


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"body":{},"schema":1,"sha256":"0"}'])
def test_a_damaged_cache_is_computed_again(damage: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARIBUS_CACHE_DIR", str(tmp_path / "cache"))
    source = tmp_path / "module.py"
    source.write_text("x = 1\n")
    hashes = CodeHashes()
    expected = hashes.hash(source)
    hashes.save()
    (file,) = (tmp_path / "cache" / "code").iterdir()
    file.write_bytes(damage)
    repeated = CodeHashes()
    assert repeated.hash(source) == expected
    repeated.save()
    assert CodeHashes().hash(source) == expected


def test_without_a_writable_cache_the_hash_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "module.py"
    source.write_text("x = 1\n")
    expected = CodeHashes().hash(source)
    (tmp_path / "file").touch()
    monkeypatch.setenv("PARIBUS_CACHE_DIR", str(tmp_path / "file"))
    hashes = CodeHashes()
    assert hashes.hash(source) == expected
    hashes.save()

"""No edit of a file that a trial runs through goes unseen, though imports are found without parsing whole files."""

from __future__ import annotations

import ast
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import paribus
from paribus.planning.identity import source_hash
from paribus.storage.code_hash import CodeHashes, closure, imports
from paribus.storage.engine import ENGINE, engine_files, hash_of_engine

CORE = Path(paribus.__file__).parent
OURS = sorted(path for folder in (CORE, *CORE.parents[1].glob("plugins/*")) for path in folder.rglob("*.py"))
STATEMENTS = (
    "import one",
    "import one as two, three.four",
    "from mine import one",
    "from mine.two import (\n    one,  # why (really)\n    two as three,\n)",
    "from . import one",
    "from ..mine import one as two",
    "from mine import *",
    "from mine import one  # import two",
    "if True: import one",
    "x = 1; import one",
    "import one; import two",
    "from mine \\\n    import one",
    "from mine import one, \\\n    two",
    "def f():\n    from mine import one\n    return one",
    '"""import one\nimport the whole of it\nfrom mine import one\n"""',
    "# import one",
    "important = 1",
    "def f():\r\n\timport one\r\n",
    "class A:\n    import one",
    "from mine import(one)",
)


def parsed(source: bytes) -> set[tuple[str, str]]:
    """Return the imports that Python finds: the reference."""
    result = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            result |= {("", alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            result |= {("." * node.level + (node.module or ""), alias.name) for alias in node.names}
    return result


def told(source: bytes) -> set[tuple[str, str]]:
    return {(base, name) for base, names in imports(source) for name in names}


@settings(max_examples=60)
@given(st.lists(st.sampled_from(STATEMENTS), max_size=4))
@example([*STATEMENTS])
def test_no_import_is_missed_however_it_is_written(statements: list[str]) -> None:
    source = "\n".join(statements).encode()
    assert parsed(source) <= told(source)


@pytest.mark.thorough
def test_no_import_of_ours_is_missed() -> None:
    assert len(OURS) > 300
    missed = {path: missing for path in OURS[::10] if (missing := parsed(source := path.read_bytes()) - told(source))}
    assert not missed


def test_text_like_an_import_in_a_docstring_hides_no_import(tmp_path: Path) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text(
        '"""How to\nimport it (see below\n"""\nfrom mine.two import (  # as said)\n    two,\n)\n'
    )
    (package / "two.py").write_text("two = 2\n")
    assert {path.name for path in closure(package / "one.py")} == {"one.py", "two.py"}


def test_a_file_outside_of_a_package_is_followed_within_its_folder(tmp_path: Path) -> None:
    files = {
        "mine.py": "import torch, helpers\nfrom tools.scales import double",
        "helpers.py": "import os",
        "other.py": "",
        "tools/__init__.py": "",
        "tools/scales.py": "from tools import words",
        "tools/words.py": "",
        "tools/others.py": "",
    }
    (tmp_path / "tools").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = {path.relative_to(tmp_path).as_posix() for path in closure(tmp_path / "mine.py")}
    assert found == {"mine.py", "helpers.py", "tools/scales.py", "tools/words.py"}


def edits(path: Path) -> list[Callable[[], object]]:
    """Edits of a file: change its code at the same length and time, move it, delete it."""
    text = path.read_bytes()
    edited = text.replace(b"import annotations", b"import annotationz", 1)
    if edited == text:
        edited = text + b"\nx = 1\n"

    def same_size_and_time() -> None:
        previous = path.stat()
        path.write_bytes(edited)
        os.utime(path, ns=(previous.st_atime_ns, previous.st_mtime_ns))

    return [same_size_and_time, lambda: path.rename(path.with_name(f"other_{path.name}")), path.unlink]


def test_every_edit_of_a_file_of_the_engine_changes_its_hash(tmp_path: Path) -> None:
    for name in ENGINE:
        if (CORE / name).is_dir():
            shutil.copytree(CORE / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(CORE / name, tmp_path / name)
    whole = hash_of_engine(tmp_path)
    files = engine_files(tmp_path)
    assert len(files) > 70
    for number, path in enumerate(files):
        text = path.read_bytes()
        edits(path)[number % 3]()
        assert hash_of_engine(tmp_path) != whole, path
        path.with_name(f"other_{path.name}").unlink(missing_ok=True)
        path.write_bytes(text)
    assert hash_of_engine(tmp_path) == whole
    (tmp_path / "train" / "new.py").touch()
    assert hash_of_engine(tmp_path) != whole


def test_every_edit_of_a_components_files_changes_its_code(tmp_path: Path) -> None:
    plugin = next(path for path in OURS if path.parent.name == "paribus_objective").parent
    shutil.copytree(plugin, tmp_path / plugin.name, ignore=shutil.ignore_patterns("__pycache__"))
    component = tmp_path / plugin.name / "masked_language_modelling.py"
    behind = closure(component)
    whole = source_hash([component], CodeHashes())
    assert len(behind) > 3
    for path in behind:
        text = path.read_bytes()
        edits(path)[0]()
        assert source_hash([component], CodeHashes()) != whole, path
        path.write_bytes(text)
    assert source_hash([component], CodeHashes()) == whole

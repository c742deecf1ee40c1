"""Rules of the repository's layout, checked against its files."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SOURCE_ROOTS = ("core", "plugins", "tests", "benchmarks", "tools")


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def plugins() -> set[str]:
    return {init.parent.name for init in (ROOT / "plugins").glob("*/__init__.py")}


def packages() -> Iterator[Path]:
    for pattern in ("core/*/__init__.py", "plugins/*/__init__.py"):
        yield from (init.parent for init in ROOT.glob(pattern))


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines)}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("folder", SOURCE_ROOTS)
def test_a_source_root_is_not_a_package(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_every_text_file_is_read_and_written_with_an_encoding() -> None:
    """Without one, it is that of the locale: ASCII in many containers, where a command would end with a traceback."""
    files = [file for folder in ("core", "plugins") for file in (ROOT / folder).rglob("*.py")]
    calls = ((file, call) for file in files for call in ast.walk(ast.parse(file.read_text("utf-8"))))
    found = [
        f"{file.relative_to(ROOT)}:{call.lineno}"
        for file, call in calls
        if isinstance(call, ast.Call) and needs_encoding(call)
    ]
    assert not found


def needs_encoding(call: ast.Call) -> bool:
    """Return whether a call reads or writes text without an encoding."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    name = method or getattr(call.func, "id", "")
    words = [argument.value if isinstance(argument, ast.Constant) else None for argument in call.args]
    words += [keyword.value.value for keyword in call.keywords if isinstance(keyword.value, ast.Constant)]
    if name == "open" and all(isinstance(word, str) for word in words[:1] if method):  # of a path, or the function
        has_text = not any("b" in word for word in words if isinstance(word, str) and len(word) <= 3)
    else:
        has_text = bool(method) and len(call.args) < {"read_text": 1, "write_text": 2}.get(name, 0)
    return has_text and all(keyword.arg != "encoding" for keyword in call.keywords)


def test_the_public_stub_is_ascii() -> None:
    assert (ROOT / "core" / "paribus" / "__init__.pyi").read_bytes().isascii()  # lazy_loader reads it in the locale


def test_every_plugin_has_an_entry_point() -> None:
    assert set(pyproject()["project"]["entry-points"]["paribus"].values()) == plugins()


def test_import_linter_covers_every_package() -> None:
    linter = pyproject()["tool"]["importlinter"]
    (contract,) = (contract for contract in linter["contracts"] if contract["id"] == "plugins-are-independent")
    assert set(contract["protected_modules"]) == plugins()
    assert set(linter["root_packages"]) == {"paribus"} | plugins()


def test_the_citation_agrees_with_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [citation[key] for key in ("version", "authors", "keywords")] == [
        project[key] for key in ("version", "authors", "keywords")
    ]
    assert project["license"] == f"{citation['license']} AND Python-2.0"  # the second is of a text that a wheel carries
    assert citation["cff-version"] == "1.2.0"


def test_every_package_is_typed() -> None:
    assert [package.name for package in packages() if not (package / "py.typed").exists()] == []


def test_constraints_pin_every_dependency() -> None:
    project = pyproject()["project"]
    named = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    names = {canonical(re.match(r"[\w.-]+", line)[0]) for line in named}  # type: ignore[index]  # each has one
    names -= {"paribus", "triton"}  # torch for CUDA demands a version of its own of triton
    assert names - set(pins()) == set()


def test_constraints_pin_exact_versions() -> None:
    # torch 2.13.0+cpu satisfies ==2.13.0, and not the other way round
    assert {name: version for name, version in pins().items() if not re.fullmatch(r"\d+(\.\w+)*", version)} == {}


@pytest.mark.parametrize("folder", SOURCE_ROOTS)
def test_every_lint_exception_has_a_rule_and_a_reason(folder: str) -> None:
    exception = re.compile(r"#\s*(noqa|type:\s*ignore)\b(?P<rest>.*)")
    reasoned = re.compile(r"(: [A-Z]+\d+(, ?[A-Z]+\d+)*|\[[\w, -]+\])\W+\w.*")
    bare = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in (ROOT / folder).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if "independent_plugins" not in path.parts  # as their authors wrote them
        and (match := exception.search(line))
        and "re.compile" not in line
        and not reasoned.match(match["rest"])
    ]
    assert bare == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names of the files in the wheel."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return set(archive.namelist())


@pytest.mark.thorough
def test_the_wheel_has_only_our_packages(wheel: set[str]) -> None:
    tops = {name.partition("/")[0] for name in wheel if ".dist-info/" not in name}
    assert tops == {package.name for package in packages()}


def test_the_wheel_has_every_source_file(wheel: set[str]) -> None:
    sources = {
        path.relative_to(root).as_posix()
        for root in (ROOT / "core", ROOT / "plugins")
        for path in root.rglob("*")
        if path.suffix in {".py", ".yaml", ".txt", ".gz"} or path.name == "py.typed"
    }
    assert sources - wheel == set()


def test_the_wheel_has_every_shipped_study_and_no_record(wheel: set[str]) -> None:
    studies = {path.relative_to(ROOT).as_posix() for path in (ROOT / "ablations").rglob("study.yaml")}
    shipped = {name.removeprefix("paribus/shipped/") for name in wheel if name.startswith("paribus/shipped/")}
    assert studies - shipped == set()
    assert [name for name in shipped if "/records/" in name] == []

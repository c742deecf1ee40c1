"""Folder with all that a GPU machine without a network needs: `python benchmarks/gpu_bundle.py --python 3.12`.

It has wheels of Paribus and of each dependency that torch does not require itself, the benchmarks and tests for a GPU,
the commit, and `run.sh`, which installs the wheels into the folder and starts a part. The machine needs Python, pip and
torch. `--present` names further packages that it has; what these require is left out as well.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "paribus"
BROUGHT = ("torch",)  # by the machine
TESTED_WITH = ("pytest", "pytest-timeout", "hypothesis", "tqdm", "fla-core")  # tests/conftest.py, tests/gpu, kernels
FILES = ("benchmarks/*.py", "tests/conftest.py", "tests/fixtures/*.py", "tests/gpu/*.py", "pyproject.toml", "LICENSE")
LINUX = "manylinux_2_{}_x86_64"
OLDEST_GLIBC, NEWEST_GLIBC = 5, 28  # pip matches the names of platforms exactly


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="version of Python on the machine; default: 3.12")
    parser.add_argument(
        "--platform", nargs="+", help="its platform tags; default: Linux x86-64 with glibc 2.28 or newer"
    )
    parser.add_argument("--present", nargs="*", default=[], help="packages that it has, beside torch")
    parser.add_argument("--add", nargs="*", default=[], help="more packages, such as transformers")
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "gpu", help="default: dist/gpu")
    options = parser.parse_args(argv)
    platforms = options.platform or [LINUX.format(number) for number in range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1)]
    names = carried(options.python, options.present, options.add)
    if options.output.exists():
        shutil.rmtree(options.output)
    wheels = options.output / "wheels"
    build(wheels)
    download(names, wheels, options.python, platforms)
    copy_files(options.output)
    size = sum(path.stat().st_size for path in options.output.rglob("*") if path.is_file())
    print(f"{options.output}: Python {options.python}, {len(names) + 1} wheels, {size / 2**20:.1f} MiB")
    return 0


def carried(python: str, present: Iterable[str] = (), add: Iterable[str] = ()) -> list[str]:
    """Return the installed packages that the machine lacks, with their versions: those of constraints.txt."""
    excluded = {*closure([*BROUGHT, *present], python)}
    included = closure([PROJECT, *TESTED_WITH, *add], python)
    return [f"{name}=={importlib.metadata.version(name)}" for name in sorted({*included} - excluded - {PROJECT})]


def closure(lines: Iterable[str], python: str) -> set[str]:
    """Return the names of packages, and of all that they require on Linux with a version of Python.

    A package that is not installed here has no known requirements.
    """
    names: set[str] = set()
    waiting = [Requirement(line) for line in lines]
    known: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key not in known:
            known.add(key)
            names.add(name)
            waiting += required(requirement, python)
    return names


def required(requirement: Requirement, python: str) -> Iterator[Requirement]:
    """Yield what a package requires by itself and with the extras that are named."""
    try:
        lines = importlib.metadata.requires(requirement.name) or []
    except importlib.metadata.PackageNotFoundError:
        return
    environment = {
        "python_version": python, "python_full_version": f"{python}.0", "platform_machine": "x86_64",
        "platform_system": "Linux", "sys_platform": "linux", "os_name": "posix",
    }  # fmt: skip
    for line in lines:
        candidate = Requirement(line)
        extras = ["", *requirement.extras]
        if candidate.marker is None or any(
            candidate.marker.evaluate({**environment, "extra": extra}) for extra in extras
        ):
            yield candidate


def build(wheels: Path) -> None:
    """Build the wheel of this checkout."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def download(names: Sequence[str], wheels: Path, python: str, platforms: Sequence[str]) -> None:
    """Download wheels for the machine; pip reports a package without one."""
    command = [
        sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-qq", "--no-deps",
        "--dest", str(wheels), "--only-binary=:all:", "--implementation", "cp", "--python-version", python,
    ]  # fmt: skip
    for platform in platforms:
        command += ["--platform", platform]
    subprocess.run([*command, *names], check=True)


def copy_files(folder: Path) -> None:
    """Copy benchmarks, tests and the script, and write the commit."""
    for path in (path for pattern in FILES for path in ROOT.glob(pattern)):
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    shutil.copy(ROOT / "benchmarks" / "gpu_run.sh", folder / "run.sh")
    (folder / "run.sh").chmod(0o755)
    (folder / "COMMIT").write_text(commit() + "\n", encoding="utf-8")


def commit() -> str:
    """Return the commit of this checkout, which `+changes` follows if files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+changes"]
    git = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return git.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())

"""Requirements at the lower bounds that pyproject.toml declares, with the tools of the tests, for `make test-lowest`.

torch stays pinned, as the gate has one wheel for the CPU only. `transformers` is left out, since each of its versions
needs other tokenizers; tests that use it are not collected without it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
EXTRAS: Final = ("figures", "pandas", "slurm")  # of users, and in the environment of the tests
OMITTED: Final = ("paribus", "transformers")
_NEED: Final = re.compile(r"([\w.-]+)(?:\[[^]]*])?>=([\w.]+)")


def requirements(project: dict[str, Any], pinned: str) -> Iterator[str]:
    """Yield each dependency at its lower bound, and each tool at its pinned version."""
    extras = project["optional-dependencies"]
    versions = dict(line.split("==") for line in pinned.splitlines() if "==" in line)
    for need in (*project["dependencies"], *(need for name in EXTRAS for need in extras[name])):
        name, version = _split(need)
        yield f"{name}=={versions[name] if name == 'torch' else version}"
    for need in extras["test"]:
        name, version = _split(need) if ">=" in need else ("paribus", "")
        if name == "scipy":  # must fit the lowest numpy
            yield f"{name}=={version}"
        elif name not in OMITTED:
            yield f"{name}=={versions[name]}"


def _split(need: str) -> tuple[str, str]:
    match = _NEED.match(need)
    assert match is not None, f"no lower bound: {need}"
    return match[1], match[2]


if __name__ == "__main__":
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    print(*requirements(document, (ROOT / "constraints.txt").read_text()), sep="\n")  # noqa: T201  # its result

"""Location of study files: shipped with Paribus, installed by a plugin, or at a path."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import paribus
from paribus.errors import Problem, SpecError, closest_match, join_names
from paribus.registry import Index
from paribus.registry.component_index import NAME
from paribus.storage.atomic import digest

FILE = "study.yaml"
RUN_KEYS = ("name", "seeds", "stop", "launcher", "loggers", "timeout")
"""Keys that do not change what a study compares: with more seeds, its trials stay in the same folder."""


def available_studies(index: Index) -> Mapping[str, Path]:
    """Return the file of every named study."""
    shipped = {folder.name: folder / FILE for folder in sorted(_shipped().glob("*")) if (folder / FILE).is_file()}
    return {**shipped, **index.studies}


def locate_study(source: str | Path, index: Index) -> tuple[Path, str]:
    """Return the file of a study and its default name."""
    if isinstance(source, Path) or source.endswith((".yaml", ".yml")) or "/" in source:
        path = Path(source)
        if path.is_dir():
            path = path / FILE
        name = (path.resolve().parent.name if path.name == FILE else path.stem).lower()
        if not NAME.fullmatch(name):
            message = f"`{name}` cannot be the name of a study"
            raise SpecError(
                Problem(code="bad-name", location=str(path), message=message, valid=f"a file name like {NAME.pattern}")
            )
        return path, name
    files = available_studies(index)
    if source not in files:
        valid = f"{join_names(files) or 'none is installed'}, or a path that ends in .yaml"
        message = f'unknown study "{source}"'
        raise SpecError(
            Problem(code="unknown-study", message=message, valid=valid, suggestion=closest_match(source, files))
        )
    return files[source], source


def default_name(study: Mapping[str, Any]) -> str:
    """Return the name of a study given as a dictionary: a digest of what it compares, whatever its number of seeds."""
    compared = {key: value for key, value in study.items() if key not in RUN_KEYS}
    return f"study-{digest(json.dumps(compared, sort_keys=True, default=repr).encode())[:8]}"


def _shipped() -> Path:
    """Return the folder of the shipped studies: inside the package in a wheel, beside it in a checkout."""
    package = Path(paribus.__file__).resolve().parent
    inside = package / "shipped" / "ablations"
    return inside if inside.is_dir() else package.parents[1] / "ablations"

"""What a launcher takes besides paribus: imported where it is used, and its absence says which extra to install."""

from __future__ import annotations

import importlib
from typing import Any

from paribus import Problem, SpecError


def library(name: str, *, launcher: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        what = f"the launcher `{launcher}` takes the library `{name}`, which is not installed"
        valid = f"pip install 'paribus[{launcher}]'"
        raise SpecError(Problem(code="not-installed", path="launcher", message=what, valid=valid)) from error

"""Import of a launcher's optional library, with the extra to install in the error."""

from __future__ import annotations

import importlib
from typing import Any

from paribus import Problem, SpecError


def import_extra(name: str, *, launcher: str) -> Any:
    """Import the module `name`, or raise an error that names the launcher's extra."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        message = f"launcher `{launcher}` needs `{name}`, which is not installed"
        hint = f"pip install 'paribus[{launcher}]'"
        raise SpecError(Problem(code="not-installed", path="launcher", message=message, hint=hint)) from error

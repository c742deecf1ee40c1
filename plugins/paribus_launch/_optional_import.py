"""Import of a launcher's optional library, with the extra to install in the error."""

from __future__ import annotations

import importlib
from typing import Any

from paribus import SpecError, missing_package


def import_extra(name: str, *, launcher: str) -> Any:
    """Import the module `name`, or raise an error that names the launcher's extra."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        problem = missing_package(name, launcher, f"the launcher `{launcher}`", path="launcher")
        raise SpecError(problem) from error

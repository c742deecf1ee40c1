"""The spec of a command: a preset or a file, or the saved model of `from=`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paribus.errors import Problem, SpecError
from paribus.storage.saved_model import RUNS, find_model

if TYPE_CHECKING:
    from paribus.specs.load import Source


def parse_source(spec: str, overrides: Sequence[str], store: Path = RUNS) -> tuple[Source, list[str]]:
    """Return the source and overrides to resolve; without a spec, the source is the saved model of `from=`.

    A trial in `store` may be named by its identity or by a prefix of it.
    """
    words = [_with_trial_folder(word, store) for word in ((spec, *overrides) if "=" in spec else overrides)]
    if "=" not in spec:
        return spec, words
    name = next((word.partition("=")[2] for word in words if word.startswith(("from=", "from.name="))), None)
    if name is None:
        message = f"missing SPEC before the override `{spec}`"
        raise SpecError(Problem(code="missing", message=message, valid="a preset, a file, or from=RUN"))
    return {"from": name}, words


def _with_trial_folder(word: str, store: Path) -> str:
    """Replace the identity of a trial in an override by its folder."""
    key, _, value = word.partition("=")
    if key not in ("from", "from.name", "teacher", "teacher.name"):
        return word
    folder = find_model(value, store)
    return word if str(folder) == value else f"{key}={folder}"

"""What an unknown name may mean: an abbreviation in the documentation of a component, or the name of a file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from paribus.schema import Option

if TYPE_CHECKING:
    from paribus.registry.component_index import Entry

MAX_SEARCHED: Final = 64  # Python files of a folder that are searched for the name of a component
MAX_SEARCHED_BYTES: Final = 1 << 18  # of each


def suggest_name(word: str, entries: Iterable[Entry], similar: Callable[[], str]) -> str:
    """Return what an unknown word probably means, or an empty string.

    That is the one component whose documentation has the word, `attention.gated-linear` for `gla`; else the one option,
    `attention.scores.exclusive` for `xsa`; else a name that is `similar`.
    """
    parts = [re.escape(part) for part in re.split(r"[-_ ]+", word) if part]
    pattern = re.compile(rf"(?<![\w-]){'[-_ ]?'.join(parts)}(?![\w-])", re.IGNORECASE)
    entries = [*entries] if len(word) > 1 and parts else []
    summaries = [f"{entry.slot}.{entry.name}" for entry in entries if pattern.search(entry.summary)]
    docs = [f"{entry.slot}.{entry.name}" for entry in entries if pattern.search(entry.doc)]
    options = [f"{entry.slot}.{option}" for entry in entries for option in _documented(entry.options, pattern)]
    return _only(summaries) or _only(docs) or _only(options) or similar()


def _only(names: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(names))
    return distinct[0] if len(distinct) == 1 else ""


def _documented(options: Sequence[Option], pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the dotted names of options whose documentation matches."""
    for option in options:
        if pattern.search(option.doc):
            yield option.name
        yield from (f"{option.name}.{name}" for name in _documented(option.kind.options, pattern))


def file_hint(name: str, location: str) -> str:
    """Return advice to load a file that seems to register a component of this name, by its text; it is not executed.

    Searched are the folder of the YAML file in `location`, such as `study.yaml:9`, and the working folder.
    """
    yaml_file = location.partition(":")[0]
    study_folder = Path(yaml_file).parent if yaml_file.endswith((".yaml", ".yml")) else Path()
    quoted = re.compile(rf"""(["']){re.escape(name)}\1""")
    for folder in dict.fromkeys((study_folder, Path())):
        for path in sorted(folder.glob("*.py"))[:MAX_SEARCHED]:
            with suppress(OSError):
                text = path.read_bytes()[:MAX_SEARCHED_BYTES].decode(errors="replace")
                if "hookimpl" in text and quoted.search(text):
                    relative = path.name if folder == study_folder else os.path.relpath(path, study_folder)
                    return f"{path} has this name: `plugins: [./{relative}]` in the study, or `--plugin {path}`"
    return ""

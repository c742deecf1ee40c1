"""Files of the splits of a published data set, found by name in its folder."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

from paribus import Problem, Split
from paribus_text.text_files import FileSet

Patterns = Mapping[Split, Sequence[str]]  # patterns of the names of the files of each split


@final
class SplitFolders:
    """Patterns of files for both splits: those that are named, or those that are found in one folder."""

    def __init__(self, path: Sequence[str], validation: Sequence[str] | None, names: Patterns) -> None:
        self._path = tuple(path)
        self._validation = validation
        self._names = names
        self.has_validation = validation is not None or self._folder() is not None

    def patterns(self, split: Split, files: FileSet) -> tuple[str, ...]:
        """Return the patterns of a split; a folder without one file of it is a problem of `files`."""
        folder = self._folder()
        if split == "val" and self._validation is not None:
            return tuple(self._validation)
        if folder is None:
            return self._path if split == "train" else ()
        found = find_files(folder, self._names[split])
        if len(found) != 1:
            names = ", ".join(sorted(path.name for path in (found or folder.iterdir()))[:8]) or "nothing"
            message = f"expected one file of the {split} split in the folder, found {len(found)}"
            valid = (
                f"a file {' or '.join(self._names[split])}, or files by name instead of the folder, which has {names}"
            )
            files.add_problem("missing-file", folder, message, valid)
        return tuple(glob.escape(str(path)) for path in found[:1])

    def _folder(self) -> Path | None:
        """Return the folder if the path is one; files for validation make its training files the only question."""
        return Path(self._path[0]) if len(self._path) == 1 and Path(self._path[0]).is_dir() else None


def find_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """Return the files of a folder whose name matches a pattern, in any case."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file()] if folder.is_dir() else []
    return [path for path in files if any(Path(path.name.lower()).match(name) for name in names)]


def missing_folder(option: str, folder: Path) -> Problem:
    message = f"the folder {str(folder)!r} does not exist in {Path.cwd()}"
    return Problem(code="missing-file", path=option, message=message, valid="a folder with the files of the task")

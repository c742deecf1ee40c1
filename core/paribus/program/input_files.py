"""Files that a program reads: what its command names, what a Python script imports, and the inputs of the study.

They are part of the identity of a trial. Python files are compared by their syntax tree, so that an edited comment
changes nothing; other files by their bytes.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, final

from paribus.errors import PluginError, Problem, SpecError, StoreError, closest_match, join_names
from paribus.program.command import SEED, Spec, placeholders
from paribus.specs.program_spec import PROGRAM
from paribus.storage.atomic import cache_folder, digest, digest_json, make_folder, read_json, write_json
from paribus.storage.code_hash import CodeHashes, dependencies
from paribus.storage.store import Trial

PREFIX: Final = "input."  # of an input among the hashes of a trial: input.train.py
VERSION: Final = 1  # of how a program is run and measured: part of the identity
SKIPPED: Final = frozenset({"__pycache__", ".git", ".hg", ".ipynb_checkpoints"})
SCRIPTS: Final = frozenset({".py", ".sh", ".R", ".jl", ".js", ".pl", ".rb", ".lua"})
BLOCK: Final = 1 << 20
_MISSING: Final = re.compile(  # of Python; of a shell, awk and others: `cat: data/a.txt: No such file or directory`
    r"No such file or directory: '([^'\n]+)'|No module named '([\w.]+)'"
    r"|(?:^|[\s'`\"(])([^\s'`\"():]+)['`\")]*: No such file or directory",
    re.MULTILINE,
)
LARGE: Final = 1 << 20  # bytes of a file whose digest is kept, by its size and times


def named_files(command: str, folder: Path, written: str = "") -> list[str]:
    """Return the files and packages that a command names, as it names them: train.py, and the module of `-m`.

    Those that match `written`, which the program writes, are no inputs: they are left from a run by hand.
    """
    words = [word for word in shlex.split(command) if not placeholders(word)]
    names = [word for word in words if not Path(word).is_absolute() and (folder / word).is_file()]
    for option, module in pairwise(words):
        top = module.partition(".")[0]
        if option == "-m":
            names += [name for name in (f"{top}.py", top) if (folder / name).exists()]
    return [name for name in dict.fromkeys(names) if not fnmatch(os.path.normpath(name), written)]


def missing_script(command: str, folder: Path) -> str:
    """Return the script that a command runs if it is not in the folder, or an empty string.

    It is the first word that ends like a script; the words after it may name files that the program writes.
    """
    with suppress(ValueError):  # a quote without its end, which is reported
        words = (word for word in shlex.split(command) if Path(word).suffix in SCRIPTS and " " not in word)
        name = next(words, "")
        if name and not placeholders(name) and not (folder / name).exists():
            return name
    return ""


def check_program(command: str, folder: Path) -> None:
    """Raise an error if the first word of a command is no program on the PATH, and none in the folder."""
    first = shlex.split(command)[0]
    if not (placeholders(first) or shutil.which(first) or (folder / first).exists()):
        message = f"there is no program `{first}` on the PATH"
        raise SpecError(
            Problem(code="no-file", path=PROGRAM, message=message, valid="a program on the PATH, or a path")
        )


def input_problems(inputs: Sequence[str], folder: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the place, the message and what is valid for each input that is not there, or outside of the folder."""
    for place, name in enumerate(inputs):
        path = Path(os.path.normpath(name))
        if path == Path():
            yield place, f"`{name}` is the whole folder, in which the records are, too", "the files and folders in it"
        elif not path.is_absolute() and path.parts[:1] == ("..",):
            yield place, f"`{name}` is outside of {folder}", "a path below it, or an absolute one"
        elif not (folder / name).exists():
            yield place, f"there is no `{name}` in {folder}", "files and folders, relative to where the command runs"


def unlisted_input(output: str, home: Path, work: Path, inputs: Sequence[str]) -> str:
    """Return what to add to `inputs`, if the output of a program in `work` names a missing file that is in `home`."""
    for names in _MISSING.findall(output):
        name = next(filter(None, names))
        for path in (Path(name), Path(*name.split(".")), Path(*name.split(".")).with_suffix(".py")):
            with suppress(ValueError, OSError):
                relative = Path(os.path.normpath((work / path).relative_to(work)))
                places = [relative, *relative.parents][-2::-1]  # from the first folder to the file
                place = next((place for place in places if not (work / place).exists()), None)
                if place is not None and ".." not in place.parts and (home / relative).exists():
                    listed = ", ".join([*inputs, str(place)])
                    return f"`{place}` is in {home}, and is no input of the study; add `inputs: [{listed}]`"
    return ""


@final
class ProgramCode:
    """Hashes of the files behind the specs of programs, as `ComponentCode` has those of components."""

    def __init__(self, folder: Path | None = None) -> None:
        """`folder` is the one where the study is run."""
        self.folder = folder or Path.cwd()
        self._hashes: dict[str, Mapping[str, str]] = {}

    def hash(self, spec: Spec) -> str:
        """Return one hash of all files of a program."""
        return digest_json([VERSION, dict(self.components(spec))])

    def components(self, spec: Spec) -> Mapping[str, str]:
        """Return a hash of each input of a program, by its name with a prefix."""
        program = spec[PROGRAM]
        key = digest_json([program["command"], program["inputs"], program["metric"]["from"]])
        if key not in self._hashes:
            self._hashes[key] = dict(self._inputs(program))
        return self._hashes[key]

    def plugins(self, spec: Spec) -> Mapping[str, Mapping[str, str]]:
        """Return the plugins of a program's components: it has none."""
        return {}

    def _inputs(self, program: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        named = named_files(program["command"], self.folder, program["metric"]["from"])
        for name in dict.fromkeys([*named, *program["inputs"]]):
            yield f"{PREFIX}{name}", self._digest(self.folder / name)

    def _digest(self, path: Path) -> str:
        if path.is_dir():
            files = sorted(_files_of(path))
            return digest_json([[str(file.relative_to(path)), file_digest(file)] for file in files])
        if path.suffix != ".py":
            return file_digest(path)
        try:
            code = dependencies([path], CodeHashes(), external=True)
        except (SyntaxError, ValueError):  # the program will say so
            return file_digest(path)
        imported = {file for module in code.files for file in (module, *_package_files(module))}
        return digest_json([sorted(map(file_digest, imported)), sorted(code.versions)])


def unidentified_program(trial: Trial) -> Iterator[str]:
    """Yield a warning if no file of a program is in the identity of its trials."""
    if not trial.components:
        command = trial.spec[PROGRAM]["command"]
        yield f"a change of `{command}` keeps old records, as no file is known to be part of it: `inputs` lists files"


def doubtful_options(
    program: Mapping[str, Any], base: Sequence[str], varied: Sequence[str], folder: Path
) -> Iterator[str]:
    """Yield a warning for each option that the program's files do not name, though they name one that is much alike.

    `base` are the options of the baseline, and `varied` those that vary.
    """
    files = [folder / name for name in named_files(program["command"], folder)]
    text = "\n".join(_text(file) for file in files if file.is_file() and file.stat().st_size < LARGE)
    seed = program["seed_option"]
    pairs = [
        *((key, closest_match(key, base)) for key in varied if key not in base),
        (seed, closest_match(seed, [SEED])),
    ]
    for option, meant in pairs:
        if meant and meant != option and _names_option(text, meant) and not _names_option(text, option):
            yield f"{join_names(file.name for file in files)} names no option `{option}`: did you mean `{meant}`?"


def _text(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace")
    return ""


def _names_option(text: str, option: str) -> bool:
    """Return whether a program's text has the last part of an option as a word: `max-steps` may be `max_steps`."""
    words = re.split(r"[-_]", option.rpartition(".")[2])
    return re.search(rf"(?<![A-Za-z0-9]){'[-_]'.join(map(re.escape, words))}(?![A-Za-z0-9])", text, re.I) is not None


def input_names(components: Mapping[str, str]) -> list[str]:
    """Return the inputs of a program from the hashes of a trial."""
    return [name.removeprefix(PREFIX) for name in components if name.startswith(PREFIX)]


def changed_inputs(planned: Mapping[str, str], spec: Spec) -> PluginError | None:
    """Return an error if an input is not what it was when the study was planned."""
    current = ProgramCode().components(spec)
    changed = sorted(name for name in {*planned, *current} if planned.get(name) != current.get(name))
    if not changed:
        return None
    return PluginError(
        *(
            Problem(
                code="component-differs",
                path=name.removeprefix(PREFIX),
                message="it was edited after the study was planned",
                hint="plan and run the study again",
            )
            for name in changed
        )
    )


def file_digest(path: Path) -> str:
    """Return the digest of a file: of the syntax tree of Python, or of its bytes."""
    try:
        if path.suffix == ".py":
            return _code_digest(path.read_bytes())
        status = path.stat()
        if status.st_size < LARGE:
            return digest(path.read_bytes())
        return _kept_digest(path, [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ino])
    except OSError as error:
        message = f"it cannot be read: {error.strerror or error}"
        raise SpecError(Problem(code="unreadable", location=str(path), message=message, valid="a file")) from error


def _code_digest(source: bytes) -> str:
    with suppress(SyntaxError, ValueError, RecursionError):
        return digest(ast.dump(ast.parse(source)).encode())
    return digest(source)


def _kept_digest(path: Path, key: list[str | int]) -> str:
    """Return the digest of a large file, from the cache as long as its size and times are the same."""
    kept = cache_folder() / "files" / f"{digest_json(key)}.json"
    with suppress(StoreError):
        return str(read_json(kept)["digest"])
    value = _streamed_digest(path)
    with suppress(StoreError):
        make_folder(kept.parent)
        write_json(kept, {"digest": value})
    return value


def _streamed_digest(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            sha.update(block)
    return sha.hexdigest()


def _package_files(file: Path) -> Iterator[Path]:
    """Yield the `__init__` of each package that a module is in: an import of the module runs them."""
    folder = file.parent
    while (folder / "__init__.py").is_file():
        yield folder / "__init__.py"
        folder = folder.parent


def _files_of(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if name not in SKIPPED)
        yield from (Path(root) / name for name in names)

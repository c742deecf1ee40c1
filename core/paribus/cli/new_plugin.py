"""`paribus new-plugin`: a whole plugin to begin with, of one component that works."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final, final

import click

import paribus
from paribus.cli.console import Session, out, out_json
from paribus.errors import EXIT_OK, Problem, SpecError, StoreError, closest_match, join_names
from paribus.hookspecs import SLOTS

if TYPE_CHECKING:
    from paribus.registry import Index

TEMPLATES: Final = Path(__file__).with_name("templates")
PREFIX: Final = "paribus-"


@click.command("new-plugin")
@click.argument("name")
@click.option("--slot", required=True, metavar="SLOT", help="What it fills: attention, norm, tokenizer …")
@click.option("-o", "--output", "folder", type=click.Path(path_type=Path), help="Where; paribus-NAME, unless told.")
@click.option("--json", "as_json", is_flag=True, help="What was written, and what to do next, as data.")
@click.pass_obj
def verb(session: Session, name: str, slot: str, folder: Path | None, as_json: bool) -> int:
    """Write a plugin that offers a component NAME of one SLOT: small, whole, and tested, to be changed into yours.

    `paribus new-plugin cosine --slot attention` writes the distribution paribus-cosine into a folder of that name.
    """
    plugin = Plugin.named(name, slot)
    _unclaimed(plugin, session.index())
    place = folder if folder is not None else Path(plugin.distribution)
    files = dict(plugin.files())
    _write(place, files)
    commands = [f"cd {shlex.quote(str(place))}", *plugin.commands]
    if as_json:
        out_json({"component": plugin.topic, "folder": str(place), "files": [*files], "commands": commands})
        return EXIT_OK
    for file in files:
        out(str(place / file))
    out()
    for command in commands:
        out(f"$ {command}")
    return EXIT_OK


@final
@dataclass(frozen=True)
class Plugin:
    """What one name becomes: in a spec, on an index of packages, in an import, in a file."""

    slot: str
    name: str  # cosine.v2: in specs, and of the entry point
    distribution: str  # paribus-cosine.v2
    module: str  # paribus_cosine_v2
    stem: str  # cosine_v2
    cls: str  # CosineV2Attention
    contract: str  # Attention

    @classmethod
    def named(cls, given: str, slot: str) -> Plugin:
        """The plugin, or an error that says what is wrong with either word."""
        if slot not in SLOTS:
            what, valid = f'unknown slot "{slot}"', join_names(SLOTS)
            raise SpecError(
                Problem(code="unknown-slot", message=what, valid=valid, suggestion=closest_match(slot, SLOTS))
            )
        from paribus.registry.component_index import NAME

        name = given.removeprefix(PREFIX)
        if not NAME.fullmatch(name) or not name[-1].isalnum():
            what = f"`{given}` is no name for a component and a distribution"
            valid = (
                "lower-case letters, digits, dots, hyphens and underscores, at most 64, a letter or digit at the end"
            )
            raise SpecError(Problem(code="bad-name", message=what, valid=f"{valid}, and first"))
        stem = re.sub(r"\W", "_", name)
        contract = next(public for public in paribus.__all__ if public.lower() == slot)
        words = "".join(part.capitalize() for part in stem.split("_"))
        own = words if words.endswith(contract) and words != contract else words + contract
        return cls(
            slot,
            name,
            distribution=PREFIX + name,
            module=f"paribus_{stem}",
            stem=stem if stem.isidentifier() and not keyword.iskeyword(stem) else f"{slot}_{stem}",
            cls=own if own.isidentifier() else contract + own,
            contract=contract,
        )

    @property
    def key(self) -> tuple[str, str]:
        return self.slot, self.name

    @property
    def topic(self) -> str:
        return f"{self.slot}.{self.name}"

    @property
    def commands(self) -> tuple[str, str, str]:
        """The three that the README shows: have it, try it, use it."""
        use = f"paribus train gpt-tiny {self.slot}={self.name} trainer.max_steps=20"
        if self.slot == "launcher":  # a study names it, and no spec
            use = f"paribus explain {self.topic}"
        return "pip install -e .", f"paribus conform {self.topic}", use

    def files(self) -> Iterator[tuple[str, str]]:
        """Each file's path in the plugin's folder, and its text."""
        words = {**vars(self), "use": self.commands[-1], "version": paribus.__version__}
        for path, template in (
            ("pyproject.toml", "pyproject.toml"),
            ("README.md", "README.md"),
            (f"{self.module}/__init__.py", "package.py"),
            (f"{self.module}/{self.stem}.py", f"slots/{self.slot}.py"),
            (f"tests/test_{self.stem}.py", "test.py"),
        ):
            yield path, Template((TEMPLATES / f"{template}.txt").read_text("utf-8")).substitute(words)
        yield f"{self.module}/py.typed", ""


def _unclaimed(plugin: Plugin, index: Index) -> None:
    """Refuses what something that is installed is called already: two claimants of one name would hide each other."""
    taken = [f"`{plugin.topic}` is there already, from {entry.source}" for entry in index.claims.get(plugin.key, ())]
    doors = dict.fromkeys(piece.source for piece in index.plugins if piece.source.distribution)
    same = (door for door in doors if door.name == plugin.name or door.distribution == plugin.distribution)
    taken += [f"a plugin of this name is installed: {door}" for door in same]
    if not taken and importlib.util.find_spec(plugin.module) is not None:
        taken.append(f"a module `{plugin.module}` is there already, and one would hide the other")
    if taken:
        valid = "a name that nothing else has"
        raise SpecError(
            *(Problem(code="name-taken", path=plugin.distribution, message=what, valid=valid) for what in taken)
        )


def _write(folder: Path, files: dict[str, str]) -> None:
    """Writes all files, into a folder that is new or empty."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            found = "holds files already" if folder.is_dir() else "is a file"
            what = f"a plugin is written into a folder of its own, and this {found}"
            valid = "a new or an empty folder, named with -o"
            raise SpecError(Problem(code="folder-taken", location=str(folder), message=what, valid=valid))
        for name, text in files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
    except OSError as error:
        what = f"the plugin could not be written: {error.strerror or error}"
        raise StoreError(Problem(code="cannot-write", location=str(folder), message=what)) from error

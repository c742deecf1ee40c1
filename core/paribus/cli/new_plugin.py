"""`paribus new-plugin`: write a complete plugin with one working component."""

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
FORMULA: Final = """

No check knows what you want to compute, so the test has it once more, slowly, in its function `reference`. Write your
formula there too, from the paper and not from the component:

```console
$$ paribus conform $slot.$name --reference tests/test_$stem.py
```"""


@click.command("new-plugin")
@click.argument("name")
@click.option("--slot", required=True, metavar="SLOT", help="Slot of the component: attention, norm, tokenizer …")
@click.option("-o", "--output", "folder", type=click.Path(path_type=Path), help="New folder; default: paribus-NAME.")
@click.option("--json", "as_json", is_flag=True, help="Print the files and the next commands as JSON.")
@click.pass_obj
def verb(session: Session, name: str, slot: str, folder: Path | None, as_json: bool) -> int:
    """Write a new plugin with one working component.

    `paribus new-plugin cosine --slot attention`

    The plugin is a small, tested distribution for you to change: paribus-NAME, in a folder of that name, with a
    component NAME of SLOT.
    """
    plugin = Plugin.named(name, slot)
    _validate_unused(plugin, session.index())
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
    out()
    out(f"in a study that needs it: `plugins: [{plugin.distribution}]`")
    return EXIT_OK


@final
@dataclass(frozen=True)
class Plugin:
    """Names derived from the name of a plugin: in specs, as a distribution, as a module, as a class."""

    slot: str
    name: str  # cosine.v2: in specs, and of the entry point
    distribution: str  # paribus-cosine.v2
    module: str  # paribus_cosine_v2
    stem: str  # cosine_v2
    cls: str  # CosineV2Attention
    contract: str  # Attention

    @classmethod
    def named(cls, text: str, slot: str) -> Plugin:
        """Derive all names from a name and a slot, which are validated."""
        if slot not in SLOTS:
            message, valid = f'unknown slot "{slot}"', join_names(SLOTS)
            raise SpecError(
                Problem(code="unknown-slot", message=message, valid=valid, suggestion=closest_match(slot, SLOTS))
            )
        from paribus.registry.component_index import NAME

        name = text.removeprefix(PREFIX)
        if not NAME.fullmatch(name) or not name[-1].isalnum():
            message = f"invalid name `{text}` for a component and a distribution"
            valid = (
                "lower-case letters, digits, dots, hyphens and underscores, at most 64, a letter or digit at the end"
            )
            raise SpecError(Problem(code="bad-name", message=message, valid=f"{valid}, and first"))
        stem = re.sub(r"\W", "_", name)
        contract = next(public for public in paribus.__all__ if public.lower() == slot)
        words = "".join(part.capitalize() for part in stem.split("_"))
        class_name = words if words.endswith(contract) and words != contract else words + contract
        return cls(
            slot,
            name,
            distribution=PREFIX + name,
            module=f"paribus_{stem}",
            stem=stem if stem.isidentifier() and not keyword.iskeyword(stem) else f"{slot}_{stem}",
            cls=class_name if class_name.isidentifier() else contract + class_name,
            contract=contract,
        )

    @property
    def key(self) -> tuple[str, str]:
        return self.slot, self.name

    @property
    def topic(self) -> str:
        return f"{self.slot}.{self.name}"

    @property
    def has_reference(self) -> bool:
        """True if its test has the formula of the component once more, which a check compares."""
        return (TEMPLATES / "tests" / f"{self.slot}.py.txt").exists()

    @property
    def commands(self) -> tuple[str, str, str]:
        """The three commands of the README: install, test, use."""
        use = f"paribus train gpt-tiny {self.slot}={self.name} trainer.max_steps=20"
        if self.slot == "launcher":  # a launcher is named by a study, not by a spec
            use = f"paribus explain {self.topic}"
        return "pip install -e .", f"paribus conform {self.topic}", use

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield the path and text of each file of the plugin."""
        words = {**vars(self), "use": self.commands[-1], "version": paribus.__version__}
        words["formula"] = Template(FORMULA).substitute(words) if self.has_reference else ""
        for path, template in (
            ("pyproject.toml", "pyproject.toml"),
            ("README.md", "README.md"),
            (f"{self.module}/__init__.py", "package.py"),
            (f"{self.module}/{self.stem}.py", f"slots/{self.slot}.py"),
            (f"tests/test_{self.stem}.py", f"tests/{self.slot if self.has_reference else 'plain'}.py"),
        ):
            yield path, Template((TEMPLATES / f"{template}.txt").read_text("utf-8")).substitute(words)
        yield f"{self.module}/py.typed", ""


def _validate_unused(plugin: Plugin, index: Index) -> None:
    """Raise an error if an installed component, plugin or module has one of the names."""
    taken = [f"`{plugin.topic}` is already registered, by {entry.source}" for entry in index.claims.get(plugin.key, ())]
    plugins = dict.fromkeys(piece.source for piece in index.plugins if piece.source.distribution)
    same = (source for source in plugins if plugin.name == source.name or plugin.distribution == source.distribution)
    taken += [f"a plugin with this name is installed: {source}" for source in same]
    if not taken and importlib.util.find_spec(plugin.module) is not None:
        taken.append(f"a module `{plugin.module}` is already installed")
    if taken:
        valid = "an unused name"
        raise SpecError(
            *(Problem(code="name-taken", path=plugin.distribution, message=message, valid=valid) for message in taken)
        )


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write all files into a new or empty folder."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            state = "contains files" if folder.is_dir() else "is a file"
            message = f"expected a new or empty folder, but this {state}"
            valid = "a new or an empty folder, named with -o"
            raise SpecError(Problem(code="folder-not-empty", location=str(folder), message=message, valid=valid))
        for name, text in files.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
    except OSError as error:
        message = f"cannot write the plugin: {error.strerror or error}"
        raise StoreError(Problem(code="cannot-write", location=str(folder), message=message)) from error

"""Build the documentation site: `make site`.

The pages of the site are those of the repository, in the same folders, so that every link of one holds in the other.
What a page links to that is not a page (a study, its records, a plugin's code) is copied beside it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Template
from typing import Any, Final

import component_pages
import site_checks
import torch
import yaml

import paribus
from paribus.cli.new_plugin import TEMPLATES

ROOT: Final = Path(__file__).parents[1]
BUILD: Final = ROOT / "build"  # the site is in its folder `site`
SOURCES: Final = BUILD / "pages"
LINK: Final = re.compile(r"\]\((?!https?://|#)([^)\s#]+)")
TEMPLATE: Final = re.compile(r"<!-- template: (\w+) -->")
PICTURE: Final = re.compile(
    r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img alt="([^"]*)" src="([^"]+)">\s*</picture>'
)
TITLE: Final = re.compile(r"^# (.+)$", re.MULTILINE)
PAGES: Final = ("*.md", "ablations/*/*.md", "benchmarks/*.md", "docs/**/*.md")
OTHERS: Final = ("LICENSE", "NOTICE", "CITATION.cff", "pyproject.toml", "docs/images/*", "docs/site.css")


def main() -> int:
    """Copy the pages, write the settings, and run Zensical, which fails on any warning."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    for pattern in (*PAGES, *OTHERS):
        for path in sorted(ROOT.glob(pattern)):
            copy(path.relative_to(ROOT))
    torch.set_num_threads(1)  # models of pictures are small: threads would only wait for each other
    components = component_pages.write(SOURCES, paribus.installed(no_plugins=True))
    settings = read_settings()
    settings |= {
        "nav": [section for section in navigation(components) if all(section.values())],
        "docs_dir": SOURCES.name,
        "site_dir": "site",
    }
    path = BUILD / "mkdocs.yml"
    path.write_text(yaml.dump(settings, sort_keys=False), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "--config-file", str(path)]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    faults = list(site_checks.problems(BUILD / "site")) if code == 0 else []
    sys.stderr.writelines(f"{fault}\n" for fault in faults)
    return code or bool(faults)


def copy(path: Path) -> None:
    """Copy a file of the repository, and of a page what it links to."""
    target = SOURCES / path
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".md":
        shutil.copy(ROOT / path, target)
        return
    text = (ROOT / path).read_text(encoding="utf-8")
    target.write_text(site_text(path, text), encoding="utf-8")
    for link in LINK.findall(text):
        linked = (ROOT / path.parent / link).resolve().relative_to(ROOT)
        if (ROOT / linked).is_file():
            copy(linked)
        elif (ROOT / linked).is_dir():
            write_index(linked)


def write_index(folder: Path) -> None:
    """Write the page of a folder, which on the site has none: a list of the pages in it."""
    lines = [f"- [{title(path)}]({path.relative_to(folder).as_posix()})" for path in pages(f"{folder}/**")]
    target = SOURCES / folder / "README.md"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join([f"# {folder.name}", "", *lines, ""]), encoding="utf-8")


def site_text(path: Path, text: str) -> str:
    """Return the text of a page as the site shows it."""
    text = TEMPLATE.sub(lambda match: template(match[1]), text)
    # The site has a theme that the reader picks, and not only that of the system.
    text = PICTURE.sub(r"![\2](\3#only-light) ![\2](\1#only-dark)", text)
    return f"---\nhide: [navigation]\n---\n{text}" if path == Path("README.md") else text


def template(slot: str) -> str:
    """Return the component that `paribus new-plugin` writes for a slot, as a block of Python."""
    text = (TEMPLATES / "slots" / f"{slot}.py.txt").read_text(encoding="utf-8")
    return f"```python\n{Template(text).substitute(name='mine', cls='Mine')}```"


def read_settings() -> dict[str, Any]:
    """Return the settings of docs/mkdocs.yml."""
    text = (
        (ROOT / "docs" / "mkdocs.yml").read_text(encoding="utf-8").replace("paths: [core]", f"paths: [{ROOT / 'core'}]")
    )
    settings: dict[str, Any] = yaml.unsafe_load(text)
    return settings


def navigation(components: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the sections of the site, each with its pages in the order of the documentation's start page."""
    start = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    guide = [Path("docs") / page for page in re.findall(r"\((guide/[\w-]+\.md)\)", start)]
    yield {"Home": "README.md"}
    yield {"Guide": entries(guide)}
    yield {"Recipes": entries(linked("docs/recipes"))}
    yield {"Components": components}
    yield {"API": entries(linked("docs/reference"))}
    reference = ("cheat-sheet", "traits", "presets", "glossary", "troubleshooting", "parity", "baselines", "frontier")
    yield {"Reference": entries(Path("docs") / f"{name}.md" for name in reference)}
    evidence = ["docs/evidence.md", *sorted(path.as_posix() for path in relative("ablations/*/RESULTS.md"))]
    others = ("benchmarks/README.md", "benchmarks/GOALS.md", "docs/error-rates.md", "docs/reliability.md")
    yield {"Results": entries(map(Path, (*evidence, *others)))}
    about = ("CHANGELOG.md", "CONTRIBUTING.md", "docs/README.md")
    yield {"Project": [*entries(map(Path, about)), {"Decisions": entries(pages("docs/decisions"))}]}


def pages(folder: str) -> list[Path]:
    """Return the pages of a folder, its README first."""
    return sorted(relative(f"{folder}/*.md"), key=lambda path: (path.name != "README.md", path.name))


def linked(folder: str) -> list[Path]:
    """Return the README of a folder, and the pages of the folder in the order in which it links to them."""
    start = ROOT / folder / "README.md"
    names = re.findall(r"\((\w[\w-]*\.md)\)", start.read_text(encoding="utf-8")) if start.exists() else []
    return [Path(folder) / name for name in dict.fromkeys(["README.md", *names])]


def relative(pattern: str) -> Iterator[Path]:
    return (path.relative_to(ROOT) for path in ROOT.glob(pattern))


def entries(paths: Any) -> list[dict[str, str]]:
    """Return the title and the path of each page that exists."""
    return [{title(path): path.as_posix()} for path in paths if (ROOT / path).exists()]


def title(path: Path) -> str:
    """Return the first heading of a page, without its markup."""
    match = TITLE.search((ROOT / path).read_text(encoding="utf-8"))
    return match[1].replace("`", "") if match else path.stem


if __name__ == "__main__":
    sys.exit(main())

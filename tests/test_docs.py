"""Documentation: examples run, signatures match the code, and tables are current."""

import ast
import importlib
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fixtures.covering_cases import each_time
from tests.fixtures.pages import DOCS, ROOT, Block, blocks_of, check_output, check_yaml, commands

import paribus
from paribus.cli.main import main
from paribus.hookspecs import SLOTS
from paribus.registry import Index

GUIDE = DOCS / "guide"
REFERENCE = DOCS / "reference"
PAGES = sorted(page.relative_to(DOCS).as_posix() for folder in (GUIDE, REFERENCE) for page in folder.glob("*.md"))
LONG_PAGES = {  # whose examples take seconds
    f"guide/{name}.md"
    for name in (
        "complexity",
        "denoising",
        "designs",
        "fine-tuning",
        "first-study",
        "how-many-seeds",
        "hugging-face-models",
        "inference",
        "labelled-tasks",
        "matching-scales-tuning",
        "measures-and-probes",
        "reading-a-verdict",
        "specs",
        "translation",
        "write-a-plugin",
    )
}
LINK = re.compile(r"\]\((?!https?://)([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def blocks(page: str) -> Iterator[Block]:
    return blocks_of((DOCS / page).read_text())


def hooks() -> list[str]:
    """Return the signatures in `hookspecs.py`."""
    tree = ast.parse((ROOT / "core" / "paribus" / "hookspecs.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    return [
        f"def {node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}"
        for node in functions
        if node.returns
    ]


@pytest.mark.parametrize("signature", hooks())
def test_every_hook_is_in_the_guide_with_its_exact_signature(signature: str) -> None:
    assert f"\n{signature}\n" in (GUIDE / "write-a-plugin.md").read_text()


def test_every_hook_in_the_guide_exists() -> None:
    shown_lines = {
        line
        for block in blocks("guide/write-a-plugin.md")
        if block.language == "text"
        for line in block.text.splitlines()
    }
    assert {line for line in shown_lines if line.startswith("def ")} == set(hooks())


@pytest.mark.few(5)
@pytest.mark.parametrize("page", each_time(PAGES, *({*PAGES} - LONG_PAGES)))
def test_the_examples_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {"__name__": "example"}
    for block in blocks(page):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        if block.language == "yaml":
            check_yaml(block)
        elif block.language == "python" and not block.file:
            exec(compile(block.text, page, "exec"), names)
        elif block.language == "console":
            for command, output_lines in commands(block.text):
                check_command(command, output_lines, capsys)
    for module in [name for name, value in sys.modules.items() if str(tmp_path) in str(getattr(value, "__file__", ""))]:
        monkeypatch.delitem(sys.modules, module)


def check_command(command: str, output_lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run a `paribus` command, and assert that its output contains each line of the page."""
    program, *words = shlex.split(command)
    assert program == "paribus", command
    capsys.readouterr()
    assert main(words) == 0, command
    check_output(command, capsys.readouterr().out, output_lines)


BENCHMARK = {
    "name": "a",
    "fullname": "a",
    "stats": {"median": 1.0, "data": [1 + number / 1000 for number in range(40)]},
}
SHEET_FILES = {
    "my/study.yaml": "{base: gpt-tiny, vary: {position: [rope]}, seeds: 2, budget: {steps: 4}, metric: val/clm/loss}",
    **dict.fromkeys(("old.json", "new.json"), json.dumps({"benchmarks": [BENCHMARK]})),
    "SHOTS.csv": "text,label\nIt was fun.,good\nI fell asleep.,poor\n",
    "results.csv": "variant,seed,loss\nmha,0,2.41\nmha,1,2.44\ngqa,0,2.42\ngqa,1,2.43\n",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_cheat_sheet_runs(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    for name, content in SHEET_FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=64, n_embd=32, n_layer=2, n_head=4)).save_pretrained(
        tmp_path / "gpt2"
    )
    run_program(tmp_path, "paribus", "run", "quickstart")
    text = (DOCS / "cheat-sheet.md").read_text()
    sheet_commands = [
        command.partition(" #")[0].replace("DIR", "model").strip()
        for block in re.findall(r"^```console\n(\$ paribus.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
        for command in re.findall(r"^\$ (.*)$", block, flags=re.MULTILINE)
    ]
    assert len(sheet_commands) > 10
    for command in sheet_commands:
        saving = ["--save", "model"] if command.startswith("paribus train gpt-tiny") else []
        is_refused = command.startswith("paribus check")  # it shows an error
        run_program(tmp_path, *shlex.split(command), *saving, code=2 if is_refused else 0)
    (example,) = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    (study,) = re.findall(r"^```yaml\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len(paribus.study(yaml.safe_load(study), store=tmp_path).plan.variants) == 5
    trial = next(path.parent for path in (tmp_path / "runs" / "quickstart").glob("*/record.json"))
    run_program(tmp_path, "python", "-c", example.replace("runs/quickstart/HASH", str(trial)))


def run_program(folder: Path, program: str, *arguments: str, code: int = 0) -> None:
    """Run a program of this environment, and assert that it ends with an exit code."""
    path = Path(sys.executable).with_name(program)
    environment = {**os.environ, "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    ended = subprocess.run([path, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == code, f"{program} {shlex.join(arguments)}\n{ended.stdout}\n{ended.stderr}"


MARKDOWN = [
    *ROOT.glob("*.md"),
    *(path for folder in ("ablations", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.md")),
]


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_has_a_target(page: Path) -> None:
    broken = [link for link in LINK.findall(page.read_text()) if not has_target(page, link)]
    assert broken == []


def has_target(page: Path, link: str) -> bool:
    """Return True if the file of a link exists, and has the heading that the link names."""
    file, _, anchor = link.partition("#")
    target = page.parent / file if file else page
    return target.exists() and (not anchor or anchor in map(anchor_of, HEADING.findall(target.read_text())))


@pytest.mark.parametrize("page", sorted((ROOT / "ablations").glob("*/RESULTS.md")), ids=lambda page: page.parent.name)
def test_no_verdict_of_a_shipped_study_is_withheld(page: Path) -> None:
    withheld = [line for line in page.read_text().splitlines() if "withheld" in line or line.startswith("- ✗")]
    assert withheld == []


def test_the_table_of_the_readme_has_the_results_of_the_quickstart() -> None:
    readme, results = ((ROOT / name).read_text() for name in ("README.md", "ablations/quickstart/RESULTS.md"))
    table = readme[readme.index("quickstart: val/clm/loss") :]
    intervals = re.findall(r"[-+]?\d[\d.]*\D? \[[^\]]*\]", table)
    assert len(intervals) == 4
    assert [interval for interval in intervals if interval not in results.replace("\\", "")] == []


def test_the_study_of_the_readme_is_the_quickstart() -> None:
    (study,) = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    assert yaml.safe_load(study) == yaml.safe_load((ROOT / "ablations" / "quickstart" / "study.yaml").read_text())


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) < 900


def test_the_readme_has_the_number_of_components() -> None:
    count = sum(map(len, paribus.installed(no_plugins=True).index.entries.values()))
    assert f"| {count} components |" in (ROOT / "README.md").read_text()


def test_every_public_name_is_in_the_reference_once() -> None:
    shown = [
        name
        for page in REFERENCE.glob("*.md")
        for name in re.findall(r"^::: paribus\.(\w+)$", page.read_text(), re.MULTILINE)
    ]
    assert sorted(shown) == sorted(name for name in paribus.__all__ if not name.startswith("__"))


@pytest.mark.parametrize("page", sorted(REFERENCE.glob("*.md")), ids=lambda page: page.stem)
def test_every_page_of_the_reference_has_an_example_and_is_listed(page: Path) -> None:
    if page.stem != "README":
        assert "```python" in page.read_text() or f"<!-- template: {page.stem} -->" in page.read_text()
        assert f"]({page.name})" in (REFERENCE / "README.md").read_text()


def anchor_of(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_the_components_of_the_frontier_exist(plugin_index: Index) -> None:
    page = (DOCS / "frontier.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z]+)\.([a-z0-9-]+)`", page)
    assert len(named) > 25
    missing = [f"{slot}.{name}" for slot, name in named if slot in SLOTS and name not in plugin_index.entries[slot]]
    assert not missing


def test_the_table_of_components_is_current() -> None:
    page = runpy.run_path(str(DOCS / "components.py"))["page"]
    committed_page = (DOCS / "components.md").read_text()
    assert committed_page == page(paribus.installed(no_plugins=True).index), "run `make docs`"


def test_the_table_of_traits_is_current() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "components.py"))["traits_page"]()
    assert (ROOT / "docs" / "traits.md").read_text() == page, "run `make docs`"


def test_the_table_of_the_keys_of_a_study_is_current() -> None:
    names = runpy.run_path(str(ROOT / "docs" / "components.py"))
    page = names["STUDIES"].read_text()
    assert names["studies_page"](page) == page, "run `make docs`"


def test_every_page_of_the_guide_and_every_decision_is_listed() -> None:
    start = (DOCS / "README.md").read_text()
    assert [page for page in PAGES if page.startswith("guide/") and f"({page})" not in start] == []
    table = (DOCS / "decisions" / "README.md").read_text()
    pages = [page for page in (DOCS / "decisions").glob("0*.md") if f"]({page.name})" not in table]
    assert pages == []


SOURCES = [path for folder in ("core", "plugins") for path in sorted((ROOT / folder).rglob("*.py"))]
MIN_FRAGMENT = 8  # characters of a message's fixed part
FOREIGN = re.compile(r"(?<=failed to load: )\w+Error: .*|(?<=accepted no job: ).*")  # reasons of other programs
MIN_SHARE = 0.4  # of a quoted message that the fixed parts must cover


@pytest.mark.thorough
def test_every_message_of_the_troubleshooting_page_exists_in_the_code() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    code = "\n".join(path.read_text() for path in SOURCES)
    codes = set(re.findall(r"error\[([\w-]+)\]", page))
    assert len(codes) > 10
    assert [name for name in sorted(codes) if f'"{name}"' not in code] == []
    fragments = sorted(set(fixed_parts()), key=len, reverse=True)
    quotes = [line for block in re.findall(r"```output\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert len(quotes) > 20
    assert [quote for quote in quotes if covered_share(quote, fragments) < MIN_SHARE] == []


def fixed_parts() -> Iterator[str]:
    """Yield the strings of the code, and the fixed parts of its f-strings."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) >= MIN_FRAGMENT:
                yield node.value.strip()


def covered_share(quote: str, fragments: list[str]) -> float:
    """Return the share of the characters of a quoted message that are fixed parts of messages in the code."""
    text = re.sub(r"^error\[[\w-]+\][^:]*: ", "", FOREIGN.sub("", quote))
    rest = text
    for fragment in fragments:
        rest = rest.replace(fragment, "\0")
    return 1 - len(rest.replace("\0", "")) / len(text)


@pytest.fixture
def component_pages(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("component_pages")


def test_the_site_has_a_page_for_every_component(component_pages: Any) -> None:
    registry = paribus.installed(no_plugins=True)
    for slot in component_pages.SLOTS:
        cases = component_pages.cases_of(registry, slot)
        assert [case.entry.name for case in cases] == list(registry.index.entries[slot])
        for case in cases:
            node = yaml.safe_load(component_pages.yaml_of(case))
            assert (node if isinstance(node, str) else node["name"]) == case.entry.name
            assert set(
                re.findall(r"^\| `([\w.]+)`", "\n".join(component_pages.option_rows(case.entry)), re.MULTILINE)
            ) == {name for name, _ in component_pages.flat_options(case.entry.options)}


def test_the_page_of_a_component_has_its_mask_and_its_costs(component_pages: Any) -> None:
    (case,) = (
        case
        for case in component_pages.cases_of(paribus.installed(no_plugins=True), "attention")
        if case.entry.name == "restricted"
    )
    figure = component_pages.pictures(case)
    causal, bidirectional = re.findall(r"<svg.*?</svg>", figure)
    assert "M0 20h4v1h-4z" not in causal  # token 20 does not see token 0
    assert "M13 20h8v1h-8z" in causal  # but the window of 8 tokens that ends with it
    assert "M13 20h11v1h-11z" in bidirectional
    page = component_pages.component_page(case, figure, ["gpt3"])
    assert "paribus summary gpt2 attention=restricted attention.window=8" in page
    assert "| attention with `restricted` | 28,348,416 | 56,918,016 | 73,728 |" in page
    assert "attention: {name: restricted, window: 8}" in page


@pytest.mark.slow
def test_the_pages_of_all_components_can_be_written(component_pages: Any, tmp_path: Path) -> None:
    registry = paribus.installed(no_plugins=True)
    component_pages.write(tmp_path, registry)
    for slot, entries in registry.index.entries.items():
        for name in entries:
            page = (tmp_path / "docs" / "components" / slot / f"{name}.md").read_text()
            assert f"# {slot}.{name}" in page
            assert ("<svg" in page) or slot != "attention"


def test_dead_links_and_outside_files_of_the_site_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    checks = importlib.import_module("site_checks")
    (tmp_path / "guide").mkdir()
    (tmp_path / "guide" / "index.html").write_text('<h2 id=run-it>Run it</h2><a href="../#top">up</a>')
    (tmp_path / "index.html").write_text(
        '<h1 id="top">Site</h1><a href="guide/#run-it">a</a><a href="guide/#stop">b</a><a href="missing/">c</a>'
        '<a href="https://example.org">d</a><script src="https://example.org/x.js"></script>'
    )
    assert sorted(checks.problems(tmp_path)) == [
        "index.html links to guide/#stop, which does not exist",
        "index.html links to missing/, which does not exist",
        "index.html loads https://example.org/x.js",
    ]

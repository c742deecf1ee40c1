"""User errors: input, exit code, required words of the message, and unchanged files.

The ids are those of the table: A are errors in specs and studies, B are broken plugins.
"""

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paribus.registry import installed

Cli = Callable[..., Any]

LINE = re.compile(r"error\[[a-z-]+\]( \S+)?( \(.+?\))?: .+")
"""Format of a line, one for each problem: `error[code] path (location): message; did you mean "…"? valid: …; hint`"""

SPECS: list[tuple[str, str | bytes | None, list[str], list[str]]] = [
    # id, content of s.yaml or None, overrides, words
    ("A1", None, ["attention=gqa", "attention.kvheads=2"], ["attention.kvheads", "kv_heads", "did you mean"]),
    ("A1", "preset: encoder-tiny\nattention: {name: gqa, kvheads: 2}\n", [], ["attention.kvheads (s.yaml:2)"]),
    ("A1", "preset: encoder-tiny\natention: gqa\n", [], ["atention (s.yaml:2)", "did you mean \"attention\"?"]),
    ("A2", None, ["attention=gqaa"], ["unknown attention \"gqaa\"", "(attention of paribus", "did you mean \"gqa\""]),
    ("A3", None, ["dims.heads=four"], ["dims.heads (override 1)", 'the text "four"', "a whole number ≥ 1"]),
    ("A3", None, ["dims.heads=8.5"], ["the number 8.5", "a whole number ≥ 1"]),
    ("A3", None, ["dims.heads=true"], ["got true", "a whole number ≥ 1"]),
    ("A3", None, ["dims.heads=null"], ["got null", "a whole number ≥ 1"]),
    ("A3", None, ["dims.heads=[1]"], ["got a list", "a whole number ≥ 1"]),
    ("A4", None, ["dims.width=65"], ["dims.heads", "`dims.width` (65)", "64 or 68"]),
    ("A5", None, ["attention=gqa", "attention.kv_heads=3"], ["attention.kv_heads", "`dims.heads` (4)", "valid: 1, 2,"]),
    ("A5", None, ["attention=gqa", "attention.kv_heads=0"], ["`kv_heads` must be ≥ 1, got 0", "valid: 1, 2, 4"]),
    ("A5", None, ["attention=gqa", "attention.kv_heads=8"], ["`dims.heads` (4), got 8", "valid: 1, 2, 4"]),
    ("A6", None, ["attention=restricted", "attention.window=65"], ["`dims.length` (64), got 65", "≤ 64 (dims.length)"]),
    ("A6", None, ["attention=restricted", "attention.window=0"], ["`window` must be ≥ 1, got 0"]),
    ("A6", None, ["attention=restricted", "attention.window=-3"], ["`window` must be ≥ 1, got -3"]),
    ("A6", None, ["attention=restricted"], ["error[missing] attention.window"]),
    (
        "A7", "preset: gpt-tiny\n", ["objective=span-corruption"],
        ["reads the stack `encoder`", "with topology decoder", "encoder-decoder with objective span-corruption"],
    ),
    ("A7", None, ["objective=span-corruption"], ["topology `encoder` does not have", "tlm with topology encoder; "]),
    ("A7", "preset: seq2seq-tiny\n", ["objective=clm"], ["error[does-not-fit] objective", "topology decoder"]),
    ("A8", "preset: gpt-tiny\n", ["objective=mlm"], ["error[does-not-fit] objective", "needs bidirectional attention"]),
    ("A8", None, ["objective=clm"], ["error[does-not-fit] objective", "the loss would be trivial"]),
    ("A9", None, ["position=learned", "position.length=10"], ["position.length", "`dims.length` (64), got 10"]),
    ("A10", None, ["dims.vocabulary=20"], ["dims.vocabulary", "6 specials, 32 sentinels", "39"]),
    ("A12", None, ["optimizer.lr=.nan"], ["optimizer.lr", "error[not-finite]", "a number > 0"]),
    ("A12", None, ["optimizer.lr=nan"], ["error[not-finite]"]),
    ("A12", None, ["optimizer.lr=.inf"], ["error[not-finite]"]),
    ("A12", None, ["optimizer.lr=-inf"], ["error[not-finite]"]),
    ("A12", None, ["optimizer.lr=0"], ["`lr` must be > 0, got 0"]),
    ("A12", None, ["optimizer.lr=-1"], ["`lr` must be > 0, got -1"]),
    ("A12", None, ["dropout=1"], ["`dropout` must be ≥ 0 and < 1, got 1"]),
    ("A12", None, ["dropout=-0.1"], ["`dropout` must be ≥ 0 and < 1, got -0.1"]),
    ("A12", None, ["objective.rate=0"], ["objective.rate", "> 0, got 0"]),
    ("A12", None, ["objective.rate=1.5"], ["objective.rate", "≤ 1 and > 0, got 1.5"]),
    ("A12", "preset: seq2seq-tiny\n", ["objective.mean_span=0.5"], ["objective.mean_span", "≥ 1, got 0.5"]),
    ("A13", "preset: encoder-tiny\nnorm: no\n", [], ["norm (s.yaml:2:7)", "YAML read `no` as a boolean (false); quot"]),
    ("A13", "preset: encoder-tiny\nattention: {name: on}\n", [], ["YAML read `on` as a boolean (true); quote it"]),
    ("A14", None, ["dims.heads=010"], ["`010` would be read as 8"]),
    ("A14", None, ["seed=1_000"], ["`1_000` would be read as 1000"]),
    ("A14", None, ["seed=12:30"], ["`12:30` would be read as 750"]),
    ("A14", None, ["seed=0x10"], ["`0x10` would be read as 16"]),
    ("A17", None, ["dims.width=1" + "0" * 9], ["error[too-large] dims"]),
    ("A17", None, ["dims.width=1" + "0" * 15], ["`width` must be ≥ 1 and ≤ 1e+09"]),
    ("A18", "a: [1\n", [], ["(s.yaml:2:1)", "error[syntax]"]),
    ("A18", "a:\n\tb: 1\n", [], ["(s.yaml:2:1)", "indent with spaces"]),
    ("A18", "preset: encoder-tiny\nseed: 1\nseed: 2\n", [], ["seed (s.yaml:3:1)", "error[duplicate-key]"]),
    ("A18", "preset: encoder-tiny\n---\nseed: 2\n", [], ["(s.yaml:2:1)", "error[multiple-documents]"]),
    ("A18", b"\xef\xbb\xbfpreset: encoder-tiny\n", [], ["(s.yaml:1:1)", "byte-order mark"]),
    ("A18", b"preset: encoder\x00tiny\n", [], ["(s.yaml:1:16)", "control character"]),
    ("A18", b"preset: \xff\n", [], ["(s.yaml:1:9)", "expected UTF-8"]),
    ("A18", "", [], ["(s.yaml:1:1)", "expected a mapping, got empty"]),
    ("A18", "encoder-tiny\n", [], ["(s.yaml:1:1)", 'got the text "encoder-tiny"']),
    ("A19", "a: " + "[" * 2000 + "]" * 2000, [], ["too deep", "at most 64 levels"]),
    ("A19", "a: [" + "x, " * 120_000 + "]", [], ["too many values", "at most 100,000"]),
    ("A19", "a: &a [x]\nb: [*a, *a]\n", [], ["b.0 (s.yaml:2:5)", "`*a` is an alias"]),
    ("A19", b"#" * (1 << 21), [], ["too large", "more than 1,048,576 bytes"]),
    ("A20", "a: !!python/object/apply:os.system ['touch marker']\n", [], ["a (s.yaml:1:4)", "error[tag]"]),
    ("A21", None, ["attention={name: mha, _target_: os.system}"], ["attention._target_", "never name Python objects"]),
    ("A21", "preset: encoder-tiny\nhydra: {}\n", [], ["hydra (s.yaml:2)", "unknown key", "never name Python objects"]),
    ("A22", None, ["seed=${oc.env:PARIBUS_SECRET}"], ["seed (override 1)", "invalid-reference"]),
    ("A22", None, ["seed=${oc.decode:1}"], ["invalid-reference"]),
    ("A22", None, ["seed=${mine:1}"], ["invalid-reference"]),
    ("A22", None, ["seed=${seed}"], ["circular reference"]),
    ("A22", None, ["corpus=x${"], ["invalid reference `${`"]),
    ("A23", None, ["attention=../../x"], ["unknown attention \"../../x\""]),
    ("A23", None, ['attention="\\e[31m\\u202E"'], ["unknown attention \"\\u001b[31m\\u202e\""]),
    ("A24", None, ["dims.length=???"], ["dims.length", "error[missing]"]),
    ("A24", None, ["corpus=text", "corpus.path=???"], ["corpus.path", "folders, and patterns of .txt, .md"]),
    ("A25", "paribus: 2\npreset: encoder-tiny\n", [], ["paribus (s.yaml:1)", "expected schema 1"]),
    ("A25", "paribus: 0\npreset: encoder-tiny\n", [], ["expected schema 1, got"]),
]  # fmt: skip


def all_files() -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in Path().rglob("*")}


@pytest.mark.few(24)
@pytest.mark.parametrize(
    ("file", "overrides", "words"),
    [
        pytest.param(*row[1:], id=f"{row[0]}-{number}", marks=pytest.mark.held(row[0]))
        for number, row in enumerate(SPECS)
    ],
)
def test_an_error_in_a_spec_is_one_line_and_changes_no_file(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, file: str | bytes | None, overrides: list[str], words: list[str]
) -> None:
    monkeypatch.setenv("PARIBUS_SECRET", "a-secret")
    if file is not None:
        Path("s.yaml").write_bytes(file if isinstance(file, bytes) else file.encode())
    files_before = all_files()
    result = cli("check", "encoder-tiny" if file is None else "s.yaml", *overrides)
    assert result.code == 2
    assert result.out == ""
    assert all(LINE.fullmatch(line) for line in result.err.splitlines())
    assert [word for word in words if word not in result.err] == [], result.err
    assert "a-secret" not in result.err
    assert all_files() == files_before


@pytest.mark.held("A18", "A23")
@pytest.mark.parametrize("source", ["none.yaml", "../../x", "/no/such/file.yaml", ".", "./", "CON", "", "é", "a" * 300])
def test_a_missing_spec_is_reported(cli: Cli, source: str) -> None:
    result = cli("check", source)
    assert result.code == 2
    assert result.err.startswith("error[")
    assert result.err.count("\n") == 1


@pytest.mark.thorough
@pytest.mark.held("A15")
def test_a_number_with_an_exponent_is_parsed_in_files_and_overrides(cli: Cli) -> None:
    Path("s.yaml").write_text("preset: encoder-tiny\noptimizer.lr: 1e-3\n")
    for words in (["s.yaml"], ["encoder-tiny", "optimizer.lr=1e-3"]):
        assert "lr: 0.001," in cli("check", *words).out


def test_all_problems_of_a_spec_are_reported_at_once(cli: Cli) -> None:
    result = cli(
        "check", "encoder-tiny", "attention=gqaa", "seed=no", "dims.heads=x", "colour=1", "objective=clm", "bad"
    )
    for path in ("attention", "seed", "dims.heads", "colour", "objective"):
        assert f"] {path} (override " in result.err
    assert len(result.err.splitlines()) == 6


HEAD = "from typing import Annotated\n\nfrom paribus import Range, Schedule, hookimpl\n\n\n"
STEADY = '''
class Steady(Schedule):
    """Constant schedule."""

    def __init__(self{init}) -> None:
        {body}

    def factor(self, step, steps):
        return 1.0


@hookimpl
def schedule():
    return {{"NAME": Steady}}
'''


def plugin(init: str = "", body: str = "pass", name: str = "steady") -> str:
    return HEAD + STEADY.format(init=init, body=body).replace("NAME", name)


def add(folder: Path, distribution: str, source: str, needs: str = "") -> None:
    """Install a distribution of one module."""
    module = distribution.replace("-", "_")
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.5.dist-info"
    info.mkdir()
    requires = f"Requires-Dist: {needs}\n" if needs else ""
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n{requires}")
    (info / "entry_points.txt").write_text(f"[paribus]\n{module} = {module}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    return folder


PLUGINS: list[tuple[str, str, str, list[str]]] = [
    # id, source, requirement, words
    ("B1", "import no_such_library  # steady", "", ["ModuleNotFoundError: No module named 'no_such_library'", ".py:1"]),
    ("B1", "1 / 0  # steady", "", ["ZeroDivisionError: division by zero", ".py:1, in <module>"]),
    ("B1", "import os; os._exit(9)  # steady", "", ["the loading process ended with exit code 9"]),
    ("B3", plugin().replace("def schedule", "def shedule"), "", ["unknown hook `def she", "`def schedule() -> M"]),
    (
        "B3", plugin().replace("def schedule()", "def schedule(steps)"), "",
        ["`def schedule(steps)`", "expected the hook `def schedule() -> Mapping[str, type[Schedule]]`"],
    ),
    ("B4", plugin(), "paribus>=99", ["expected paribus >=99, got paribus 0."]),
    ("B5", plugin(", **options"), "", ["Steady.__init__ takes `**options`"]),
    ("B5", plugin(", *, level=1.0", "self.level = level"), "", ["option `level` has no annotation"]),
    ("B5", plugin(', level: Annotated[float, "x"] = 1.0', "self.x = level"), "", ["got (level)"]),
    (
        "B5", plugin(', *, level: Annotated[float, "x", Range(above=0)] = 0.0', "self.x = level"), "",
        ["option `level`: expected > 0, got the default 0.0"],
    ),
    ("B5", plugin(', *, level: Annotated[float, "x"] = 0.0'), "", ["never reads its option `level`"]),
]  # fmt: skip


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("number", "source", "needs", "words"),
    [
        pytest.param(number, *row[1:], id=f"{row[0]}-{number}", marks=pytest.mark.held(row[0]))
        for number, row in enumerate(PLUGINS)
    ],
)
def test_a_broken_plugin_is_a_warning_until_a_spec_needs_it(
    cli: Cli, site: Path, number: int, source: str, needs: str, words: list[str]
) -> None:
    add(site, f"fault-{number}", source, needs)
    if "_exit" not in source:  # also in this process, unless that would end it
        assert installed().get("attention", "mha").__name__ == "MultiHead"
    fine = cli("list")
    assert fine.code == 0
    assert "warning: plugin fault_" in fine.err
    needed = cli("check", "encoder-tiny", "schedule=steady")
    assert needed.code == 3
    for word in [*words, f"plugin fault_{number} of fault-{number} 1.5"]:
        assert word in fine.err
        assert word in needed.err
        assert word in " ".join(cli("plugins").out.split())
    assert 'unknown schedule "steady"' in needed.err
    assert cli("check", "encoder-tiny", "schedule=steadi").code == 2


@pytest.mark.thorough
@pytest.mark.held("B2")
@pytest.mark.parametrize("names", [("aaa", "zzz"), ("zzz", "aaa")])
def test_two_plugins_with_one_component_name_are_both_reported_in_any_order(
    cli: Cli, site: Path, names: tuple[str, str]
) -> None:
    for name in names:
        add(site, f"twice-{name}", plugin())
    result = cli("check", "encoder-tiny", "schedule=steady")
    assert result.code == 3
    claim = "schedule.steady is claimed by plugin twice_aaa of twice-aaa 1.5 and plugin twice_zzz of twice-zzz 1.5"
    assert claim in result.err
    assert cli("check", "encoder-tiny", "seed=x").code == 2
    assert claim in cli("list").err


@pytest.mark.thorough
@pytest.mark.held("B2")
def test_a_plugin_that_shadows_a_built_in_one_replaces_nothing(cli: Cli, site: Path) -> None:
    add(site, "shadow", plugin(name="warmup-cosine"))
    result = cli("check", "encoder-tiny")
    assert result.code == 3
    assert "schedule.warmup-cosine is claimed by plugin optim of paribus" in result.err
    assert "plugin shadow of shadow 1.5" in result.err
    assert cli("check", "encoder-tiny", "schedule=constant").code == 0
    assert cli("check", "encoder-tiny", "--no-plugins").code == 0


@pytest.mark.held("B9")
def test_a_plugin_is_never_loaded_from_the_working_folder_or_a_spec(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    add(Path(), "planted", "import pathlib; pathlib.Path('marker').touch()")
    for first_entry in ("", str(Path.cwd())):  # first entries of the path with `python -c` and `python -m`
        monkeypatch.setattr(sys, "path", [first_entry, *sys.path])
        assert "planted" not in cli("plugins").out
    result = cli("check", "encoder-tiny", "plugins=[planted]")
    assert result.code == 3
    assert 'unknown plugin "planted"' in result.err
    assert not Path("marker").exists()


@pytest.mark.held("B1", "B5", "B9")
@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        (None, 2, "mine.py): expected a plugin in one Python file"),
        ("import no_such_library", 3, "plugin mine.py failed to load: ModuleNotFoundError"),
        (plugin(", **options"), 3, "component schedule.steady, failed to load: "),
    ],
)
def test_a_plugin_file_that_fails_to_load_is_an_error(cli: Cli, source: str | None, code: int, words: str) -> None:
    if source is not None:
        Path("mine.py").write_text(source)
    result = cli("--plugin", "mine.py", "list")
    assert result.code == code
    assert words in result.err


STUDY: dict[str, Any] = {
    "base": {"preset": "encoder-tiny"},
    "vary": {"attention": ["mqa"]},
    "budget": {"steps": 3},
    "metric": "val/mlm/loss",
}
THOUSAND = [count / 10_000 for count in range(1, 1001)]

STUDIES: list[tuple[str, str, dict[str, Any], list[str]]] = [
    # id, folder of the study, changed keys, words
    ("A1", "s", {"varry": {}}, ["varry (s/study.yaml:1", "did you mean \"vary\""]),
    (
        "A16", "s", {"design": "grid", "vary": {"optimizer.lr": THOUSAND, "schedule.warmup": THOUSAND}},
        ["this is 5,000,005 trials (optimizer.lr: 1000 x schedule.warmup: 1000 x seeds: 5)", "--max-trials"],
    ),
    ("A16", "s", {"vary": {}}, ["this study varies nothing: 0 variants"]),
    ("A16", "s", {"vary": {"attention": []}}, ["vary.attention", "error[wrong-type]", "an empty list"]),
    ("A16", "s", {"seeds": 0}, ["seeds (s/study.yaml:1)", "got the number 0"]),
    ("A12", "s", {"vary": {"optimizer.lr": ["nan"]}}, ["optimizer.lr", "error[not-finite]"]),
    ("A12", "s", {"timeout": -1}, ["timeout (s/study.yaml:1)"]),
    ("A12", "s", {"metric": {"name": "val/mlm/loss", "margin": 0}}, ["metric.margin (s/study.yaml:1)"]),
    ("A21", "s", {"launcher": {"name": "local", "_target_": "os.system"}}, ["unknown key \"_target_\""]),
    ("A22", "s", {"base": {"preset": "encoder-tiny", "dropout": "${oc.env:PARIBUS_SECRET}"}}, ["invalid-reference"]),
    ("A23", "a b", {}, ["`a b` cannot be the name of a study"]),
    ("A23", "x" * 200, {}, ["cannot be the name of a study"]),
    ("A23", "e\u0301", {}, ["cannot be the name of a study"]),
    ("A23", "\u202ename", {}, ["`\\u202ename` cannot be the name of a study"]),
    ("E2", "s", {"metric": "val/clm/loss"}, ["val/clm/loss"]),
]  # fmt: skip


@pytest.mark.few(12)
@pytest.mark.parametrize("verb", ["check", "run"])
@pytest.mark.parametrize(
    ("folder", "changes", "words"),
    [
        pytest.param(*row[1:], id=f"{row[0]}-{number}", marks=pytest.mark.held(row[0]))
        for number, row in enumerate(STUDIES)
    ],
)
def test_an_error_in_a_study_is_one_line_and_runs_no_trial(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, verb: str, folder: str, changes: dict[str, Any], words: list[str]
) -> None:
    monkeypatch.setenv("PARIBUS_SECRET", "a-secret")
    Path(folder).mkdir()
    (Path(folder) / "study.yaml").write_text(json.dumps(STUDY | changes))
    files_before = all_files()
    result = cli(verb, f"{folder}/study.yaml")
    assert (result.code, result.out) == (2, "")
    assert all(LINE.fullmatch(line) for line in result.err.splitlines())
    assert [word for word in words if word not in result.err] == [], result.err
    assert "a-secret" not in result.err
    assert all_files() == files_before


@pytest.mark.held("A19", "A20")
@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60)),
        "{a: " * 2000,
        "!!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path [marker]]",
        "a: !!python/name:os.system\n",
        "? !!python/module:os\n: 1\n",
    ],
    ids=["bomb", "deep", "apply", "name", "module"],
)
def test_yaml_bombs_and_python_tags_are_rejected_within_a_second(cli: Cli, text: str) -> None:
    Path("s.yaml").write_text(text)
    start = time.process_time()
    result = cli("check", "s.yaml")
    assert (result.code, result.out) == (2, "")
    assert all(LINE.fullmatch(line) for line in result.err.splitlines())
    assert time.process_time() - start < 1.0
    assert [path.name for path in Path().iterdir()] == ["s.yaml"]


FEW = "One. Two. Three. " * 99
DATA: list[tuple[str, dict[str, str], list[str], list[str]]] = [
    # id, files, overrides, words
    ("C1", {}, [], ["no file matches 'd/*.txt'"]),
    ("C1", {"a": "", "b": "  \n\n"}, [], ["error[no-documents] corpus.path", "dropped: 2 files without text"]),
    ("C1", {"a": "One sentence, and no more."}, [], ["error[no-documents] corpus.path", "got 1"]),
    (
        "C3",
        {"a": FEW, "b": "Others. Here."},
        ["corpus.validation=[d/a.txt]"],
        ["1 of 1 validation documents (100.0%) are in the training split"],
    ),
    ("C2", {"a": "Too. Few.", "b": "Words. Here."}, [], ["data.batch"]),
    (
        "A11",
        {"a": FEW, "b": "Four."},
        ["objective=[mlm,nsp]", "embedding.segments=2", "corpus.sentences=true"],
        ["nsp", "another document"],
    ),
]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("files", "overrides", "words"),
    [
        pytest.param(*row[1:], id=f"{row[0]}-{number}", marks=pytest.mark.held(row[0]))
        for number, row in enumerate(DATA)
    ],
)
def test_an_unusable_corpus_is_reported_before_the_first_step(
    cli: Cli, files: dict[str, str], overrides: list[str], words: list[str]
) -> None:
    Path("d").mkdir()
    for name, text in files.items():
        Path("d", f"{name}.txt").write_text(text)
    result = cli("train", "encoder-tiny", "corpus=text", "corpus.path=[d/*.txt]", *overrides, "trainer.max_steps=1")
    assert (result.code, result.out) == (4, ""), result.err
    assert [word for word in words if word not in result.err] == [], result.err
    assert all(LINE.fullmatch(line) for line in result.err.splitlines() if line)
    remaining = {path.name for path in Path("runs").rglob("*")}
    assert remaining & {"record.json", "weights.safetensors", "checkpoints"} == set()

"""`paribus new-plugin`: the generated plugin of each slot works without a change."""

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fixtures.problems import raises_problem

import paribus
from paribus.cli.main import main
from paribus.cli.new_plugin import TEMPLATES, Plugin
from paribus.errors import SpecError
from paribus.hookspecs import SLOTS
from paribus.testing import examine
from paribus.testing.conformance import REFERENCE

Cli = Callable[..., Any]
ROOT = Path(__file__).parents[4]
QUICK_SLOTS = {"schedule": [], "norm": [pytest.mark.thorough], "tokenizer": [pytest.mark.thorough]}
"""Slots whose checks take seconds, with the marks of their tests; those of others are slow."""
STUDY = """
base: {preset: encoder-tiny, dims.width: 8, dims.layers: 1, dims.heads: 2, dims.length: 16, data.batch: 4, data.validation: 8}
vary: {attention: [fresh-attention]}
launcher: fresh-launcher
seeds: 1
budget: {steps: 3}
metric: val/mlm/loss
"""  # noqa: E501  # a line of YAML


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a generated plugin for each slot."""
    folder = tmp_path_factory.mktemp("written")
    for slot in SLOTS:
        assert main(["new-plugin", f"fresh-{slot}", "--slot", slot, "-o", str(folder / slot)]) == 0
    return folder


@pytest.fixture(scope="module")
def site(plugins: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder in which all generated plugins are installed: packages with metadata."""
    folder = tmp_path_factory.mktemp("site")
    for slot in SLOTS:
        module = f"paribus_fresh_{slot}"
        (folder / module).symlink_to(plugins / slot / module)
        beside = folder / f"{module}-0.1.0.dist-info"
        beside.mkdir()
        (beside / "METADATA").write_text(f"Metadata-Version: 2.1\nName: paribus-fresh-{slot}\nVersion: 0.1.0\n")
        (beside / "entry_points.txt").write_text(f"[paribus]\nfresh-{slot} = {module}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


@pytest.mark.thorough
def test_the_written_plugins_are_listed_and_explained(site: Path, cli: Cli) -> None:
    listed = json.loads(cli("list", "--json").out)
    for slot in SLOTS:
        (row,) = [row for row in listed if (row["slot"], row["name"]) == (slot, f"fresh-{slot}")]
        assert row["distribution"] == f"paribus-fresh-{slot} 0.1.0"
        assert row["summary"]
        result = cli("explain", f"{slot}.fresh-{slot}")
        assert result.code == 0
        assert f"fresh_{slot}.py" in result.out


@pytest.mark.parametrize(
    "slot", [pytest.param(slot, marks=QUICK_SLOTS.get(slot, [pytest.mark.slow])) for slot in SLOTS]
)
def test_a_written_plugin_conforms(slot: str, site: Path) -> None:
    report = examine(f"{slot}.fresh-{slot}", registry=paribus.installed())
    assert report.ok, str(report)


@pytest.mark.thorough
@pytest.mark.parametrize("slot", [slot for slot in SLOTS if slot not in ("tokenizer", "launcher")])
def test_the_formula_in_the_test_of_a_plugin_is_that_of_its_component(slot: str, plugins: Path, site: Path) -> None:
    reference = runpy.run_path(str(plugins / slot / "tests" / f"test_fresh_{slot}.py"))["reference"]
    registry = paribus.installed()
    report = examine(f"{slot}.fresh-{slot}", registry=registry, only=[REFERENCE], reference=reference)
    assert report.passed[-1] == REFERENCE, str(report)


@pytest.mark.thorough
def test_a_reference_that_cannot_be_compared_is_refused(plugins: Path, site: Path, cli: Cli, tmp_path: Path) -> None:
    file, topic = plugins / "schedule" / "tests" / "test_fresh_schedule.py", "schedule.fresh-schedule"
    assert "reference  passes" in cli("conform", topic, "--reference", str(file)).out
    other = tmp_path / "other.py"
    other.write_text(file.read_text("utf-8").replace("(steps - step)", "(steps - step - 1)"), "utf-8")
    assert "differs by" in cli("conform", topic, "--reference", str(other), "--only", REFERENCE).out
    for text, problem in (("", "defines no `reference`"), ("1 / 0", "ZeroDivisionError")):
        other.write_text(text)
        result = cli("conform", topic, "--reference", str(other))
        assert "bad-reference" in result.err
        assert problem in result.err
    assert cli("conform", "schedule", "--reference", str(file)).code == 2


def test_the_position_distinguishes_far_distances_in_bfloat16(site: Path) -> None:
    shape = paribus.Shape(width=8, heads=2, head_width=4, length=8, vocabulary=8, layers=1)
    position = paribus.installed().get("position", "fresh-position")(shape)
    keys = torch.tensor([[256, 257]])
    bias = position.bias(paribus.Pair(None, None, torch.tensor([[0]]), keys, 1.0, 2, dtype=torch.bfloat16))
    assert float(bias[0, 1, 0, 0]) > float(bias[0, 1, 0, 1])


@pytest.mark.slow
def test_a_written_plugin_installs_with_pip_and_its_test_passes(plugins: Path, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps"]
    environment = {**os.environ, "PIP_NO_INPUT": "1"}
    target = ["--no-build-isolation", "--target", str(tmp_path / "site"), str(plugins / "norm")]
    subprocess.run([*pip, *target], check=True, capture_output=True, env=environment)
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(plugins / "norm")]
    done = subprocess.run(tests, env={**environment, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout


def checked(plugins: Path, *command: str) -> None:
    environment = {**os.environ, "MYPYPATH": str(ROOT / "core"), "RUFF_NO_CACHE": "true"}
    done = subprocess.run(command, cwd=plugins, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_written_plugin_passes_the_linter(plugins: Path) -> None:
    checked(plugins, sys.executable, "-m", "ruff", "check", ".")
    checked(plugins, sys.executable, "-m", "ruff", "format", "--check", ".")


@pytest.mark.slow
def test_a_written_plugin_is_typed_strictly(plugins: Path) -> None:
    config = plugins / "norm" / "pyproject.toml"
    sources = [str(path) for slot in SLOTS for path in (plugins / slot).glob("paribus_*")]
    sources += [str(path) for path in plugins.glob("*/tests/*.py")]
    checked(plugins, sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", os.devnull, *sources)


@pytest.mark.slow
def test_an_attention_and_a_launcher_serve_a_study(site: Path, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    command = [sys.executable, "-m", "paribus", "run", "study.yaml", "--jobs", "2", "--json"]
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    table = json.loads(done.stdout)
    assert {row["variant"] for row in table["rows"]} >= {"attention=fresh-attention"}, done.stderr
    assert len(list((tmp_path / "runs").rglob("record.json"))) == 2


@pytest.mark.thorough
def test_the_next_commands_are_printed_and_in_the_json(cli: Cli) -> None:
    result = cli("new-plugin", "paribus-cosine", "--slot", "attention")
    assert result.code == 0
    assert "\n$ cd paribus-cosine\n$ pip install -e .\n$ paribus conform attention.cosine\n" in result.out
    assert "$ paribus conform attention.cosine\n" in Path("paribus-cosine/README.md").read_text()
    data = json.loads(cli("new-plugin", "cosine", "--slot", "attention", "-o", "here too", "--json").out)
    assert data["component"] == "attention.cosine"
    assert data["commands"][0] == "cd 'here too'"
    assert sorted(data["files"]) == sorted(
        path.relative_to("here too").as_posix() for path in Path("here too").rglob("*") if path.is_file()
    )


@pytest.mark.parametrize(
    ("name", "slot", "module", "stem", "cls"),
    [
        ("cosine", "attention", "paribus_cosine", "cosine", "CosineAttention"),
        ("paribus-cosine", "attention", "paribus_cosine", "cosine", "CosineAttention"),
        ("l1.v-2_b", "norm", "paribus_l1_v_2_b", "l1_v_2_b", "L1V2BNorm"),
        ("feed-forward", "feedforward", "paribus_feed_forward", "feed_forward", "FeedForwardFeedForward"),
        ("gated-attention", "attention", "paribus_gated_attention", "gated_attention", "GatedAttention"),
        ("2d", "position", "paribus_2d", "position_2d", "Position2dPosition"),
        ("import", "corpus", "paribus_import", "corpus_import", "ImportCorpus"),
    ],
)
def test_one_name_becomes_a_module_a_file_and_a_class(name: str, slot: str, module: str, stem: str, cls: str) -> None:
    plugin = Plugin.named(name, slot)
    assert (plugin.module, plugin.stem, plugin.cls) == (module, stem, cls)
    for path, text in plugin.files():
        if path.endswith(".py"):
            compile(text, path, "exec")


@pytest.mark.parametrize("name", ["", "Cosine", "-x", "x-", "x.", "a b", "../x", "é", "x" * 65, "paribus-", "x\n"])
def test_an_invalid_name_is_refused(name: str) -> None:
    with raises_problem(SpecError, "bad-name", "64"):
        Plugin.named(name, "norm")


def test_an_unknown_slot_is_refused_with_the_valid_slots(cli: Cli) -> None:
    result = cli("new-plugin", "x", "--slot", "atention")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error[unknown-slot]")
    assert '"atention"; did you mean "attention"?' in result.err


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "slot", "owner"),
    [
        ("gqa", "attention", "attention of paribus"),
        ("norm", "corpus", "norm of paribus"),
        ("optim", "corpus", "optim of paribus"),
    ],
)
def test_a_name_that_is_taken_is_refused(name: str, slot: str, owner: str, cli: Cli) -> None:
    refused = cli("new-plugin", name, "--slot", slot)
    assert refused.code == 2
    assert f"error[name-taken] paribus-{name}: " in refused.err
    assert owner in refused.err
    assert list(Path().iterdir()) == []


def test_a_name_that_hides_an_installed_module_is_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paribus_hiding.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    refused = cli("new-plugin", "hiding", "--slot", "norm")
    assert refused.code == 2
    assert "error[name-taken] paribus-hiding: " in refused.err
    assert "`paribus_hiding`" in refused.err


def test_files_of_the_user_are_never_overwritten(cli: Cli) -> None:
    Path("full").mkdir()
    Path("full/notes.txt").write_text("mine")
    Path("file").touch()
    for folder in ("full", "file"):
        result = cli("new-plugin", "x", "--slot", "norm", "-o", folder)
        assert result.code == 2
        assert f"error[folder-not-empty] ({folder}): " in result.err
    assert [path.name for path in Path("full").iterdir()] == ["notes.txt"]
    Path("empty").mkdir()
    assert cli("new-plugin", "x", "--slot", "norm", "-o", "empty").code == 0


def test_a_folder_that_cannot_be_written_is_reported(cli: Cli) -> None:
    result = cli("new-plugin", "x", "--slot", "norm", "-o", "/proc/nowhere")
    assert result.code == 5
    assert "error[cannot-write] (/proc/nowhere): " in result.err


def test_every_slot_has_exactly_one_template() -> None:
    assert {path.name for path in (TEMPLATES / "slots").iterdir()} == {f"{slot}.py.txt" for slot in SLOTS}

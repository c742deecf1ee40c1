"""Plugins that a study, a spec or a record names, in every command that reads one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import paribus
from paribus.cli.main import group
from paribus.errors import EXIT_OK, PluginError

Cli = Callable[..., Any]

PLUGIN = '''
"""A norm that doubles."""

from collections.abc import Mapping
from typing import final

from torch import Tensor

from paribus import Cost, Load, Norm, hookimpl


@final
class Twice(Norm):
    """2 x."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x

    def cost(self, load: Load) -> Cost:
        return Cost()


@hookimpl
def norm() -> Mapping[str, type[Norm]]:
    return {"twice": Twice}
'''
SPEC = {
    "preset": "encoder-tiny",
    "dims": {"width": 8, "layers": 1, "heads": 2, "length": 16},
    "data": {"batch": 4, "validation": 8},
    "trainer.max_steps": 2,
}
STUDY = {
    "base": {key: value for key, value in SPEC.items() if "." not in key},
    "vary": {"norm": ["twice"]},
    "seeds": 1,
    "budget": {"steps": 2},
    "metric": "val/mlm/loss",
}
ARGUMENTS = {
    "study": "mine/study.yaml",
    "spec": "mine/spec.yaml",
    "model": "model",
    "source": "model",
    "first": "mine/spec.yaml",
    "second": "encoder-tiny",
    "text": "Hello",
    "texts": "Hello",
    "prompts": "Hello",
}
OPTIONS = {"run": ["--plan", "--no-timing"], "convert": ["-o", "converted"]}
READ_NONE = {
    "bench", "compare-benchmarks", "compare-trials", "compare-values", "conform", "explain", "list", "new-plugin",
    "plugins", "schema",
}  # fmt: skip


def _commands() -> Iterator[Any]:
    """Yield the words of each command of the parser that reads a study, a spec or a saved model."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        arguments = [it.name for it in command.params if isinstance(it, click.Argument)]
        words = [ARGUMENTS[name] for name in arguments if name in ARGUMENTS]
        if name not in READ_NONE:
            words = [name, *words, *OPTIONS.get(name, [])]
            marks = [pytest.mark.thorough] if name == "train" else []
            yield pytest.param(words, marks=marks, id=" ".join(words))
    yield pytest.param(["check", "mine/study.yaml"], id="check a study")
    yield pytest.param(["summary", "encoder-tiny", "--against", "mine/spec.yaml"], id="summary of two")
    yield pytest.param(["summary", "from=model"], id="summary of a model")


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a plugin, a study and a spec that name it, and a saved model with its component."""
    folder = tmp_path_factory.mktemp("named")
    (folder / "mine").mkdir()
    (folder / "mine" / "twice.py").write_text(PLUGIN, encoding="utf-8")
    plugins = {"plugins": ["./twice.py"]}
    (folder / "mine" / "study.yaml").write_text(json.dumps({**STUDY, **plugins}), encoding="utf-8")
    (folder / "mine" / "spec.yaml").write_text(json.dumps({**SPEC, **plugins, "norm": "twice"}), encoding="utf-8")
    registry = paribus.installed(plugins=[folder / "mine" / "twice.py"])
    spec = paribus.spec(folder / "mine" / "spec.yaml", registry=registry)
    paribus.save(paribus.assemble(spec, registry=registry), folder / "model", registry=registry)
    return folder


@pytest.mark.parametrize("words", [*_commands()])
def test_every_command_loads_the_plugins_that_its_input_names(
    words: list[str], named: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(named)
    assert len(words) > 1, "a command that reads neither a study, a spec nor a model belongs in READ_NONE"
    result = cli(*words)
    assert "error[unknown-component]" not in result.err
    assert "error[plugin-missing]" not in result.err
    assert "error[plugin-missing]" in cli("--no-plugins", *words).err


def test_a_key_for_plugins_changes_no_identity(named: Path) -> None:
    with_key = paribus.study(named / "mine" / "study.yaml").plan.trials
    registry = paribus.installed(plugins=[named / "mine" / "twice.py"])
    without = paribus.study({**STUDY, "name": "mine"}, registry=registry).plan.trials
    assert {trial.identity for trial in with_key} == {trial.identity for trial in without}


@pytest.mark.thorough
def test_records_name_their_plugins(cli: Cli) -> None:
    """Of a study that names none; the file is loaded as long as its code is the same."""
    file = Path("twice.py")
    file.write_text(PLUGIN, encoding="utf-8")
    Path("study.yaml").write_text(json.dumps({**STUDY, "name": "mine"}), encoding="utf-8")
    unknown = cli("status", "study.yaml").err
    assert "`plugins: [./twice.py]` in the study, or `--plugin twice.py`" in unknown
    planned = paribus.study("study.yaml", registry=paribus.installed(plugins=[file]))
    for trial in planned.plan.trials:
        planned.store.create_folder(trial)
    assert f"loading the plugin {file.resolve()}" in cli("status", "study.yaml").err
    assert "twice" in cli("status", "study.yaml").out
    file.write_text(PLUGIN + "\n# A comment.\n", encoding="utf-8")
    assert cli("status", "study.yaml").code == EXIT_OK
    file.write_text(PLUGIN.replace("2 * x", "3 * x"), encoding="utf-8")
    assert "has changed since" in cli("status", "study.yaml").err
    assert cli("status", "study.yaml", "--plugin", "twice.py").code == EXIT_OK
    moved = file.rename("moved.py")
    assert "does not exist" in cli("status", "study.yaml").err
    assert cli("status", "study.yaml", "--plugin", str(moved)).code == EXIT_OK


def test_a_study_loads_the_plugins_of_the_model_that_it_starts_from(named: Path, cli: Cli) -> None:
    base = {"from": str(named / "model"), "trainer.max_steps": 2}
    study = {**STUDY, "base": base, "vary": {"norm": ["rmsnorm"]}}
    Path("study.yaml").write_text(json.dumps(study), encoding="utf-8")
    result = cli("check", "study.yaml")
    assert (result.code, "loading the plugin" in result.err) == (EXIT_OK, True)
    assert "error[plugin-missing]" in cli("--no-plugins", "check", "study.yaml").err


def test_a_plugin_given_twice_is_loaded_once(named: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.chdir(named)
    twice = ["--plugin", "mine/twice.py", "--plugin", str(named / "mine" / "twice.py")]
    assert cli("check", "mine/study.yaml", *twice).code == EXIT_OK


def test_a_missing_plugin_is_reported_where_it_is_named(cli: Cli) -> None:
    study = {**STUDY, "vary": {"norm": ["rmsnorm"]}, "plugins": ["./gone.py", "acme"]}
    Path("study.yaml").write_text(json.dumps(study, indent=1), encoding="utf-8")
    lines = cli("check", "study.yaml").err.splitlines()
    assert lines[0].startswith("error[plugin-missing] plugins.0 (study.yaml:")
    assert lines[1].startswith("error[plugin-missing] plugins.1 (study.yaml:")


def test_python_loads_named_plugins(named: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert paribus.spec(named / "mine" / "spec.yaml").norm.name == "twice"
    assert paribus.load(named / "model").spec["norm"]["name"] == "twice"
    with pytest.raises(PluginError, match="switched off"):
        paribus.load(named / "model", registry=paribus.installed(only=["paribus"]))
    monkeypatch.chdir(shutil.copytree(named / "mine", tmp_path / "copy"))
    assert [plugin.name for plugin in paribus.study("study.yaml").index.plugin_files] == ["twice.py"]

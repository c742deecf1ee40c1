"""The index on disk: derived from plugins, rebuilt when anything changes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus import registry
from paribus.errors import PluginError, SpecError
from paribus.registry import index_cache
from paribus.registry.component_index import PluginSource
from paribus.registry.plugin_loading import find_plugin_sources, load_plugin
from paribus.storage import atomic
from paribus.storage.code_hash import CodeHashes


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache without built-in plugins, which take seconds to load."""
    monkeypatch.setenv("PARIBUS_CACHE_DIR", str(tmp_path / "cache"))
    find_all = find_plugin_sources
    monkeypatch.setattr(
        index_cache,
        "find_plugin_sources",
        lambda *args, **options: tuple(s for s in find_all(*args, **options) if s.distribution != "paribus"),
    )
    return tmp_path / "cache" / "index"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of plugins that each loading process was given."""
    counts: list[int] = []
    run_build = index_cache._run_build

    def counting(keys: Any, folder: Path) -> str:
        counts.append(len(keys))
        return run_build(keys, folder)

    monkeypatch.setattr(index_cache, "_run_build", counting)
    return counts


def test_the_index_is_built_once(site: Any, poems: str, folder: Path, built: list[int]) -> None:
    site.add("once-plug", poems)
    messages: list[str] = []
    index, second = registry.index(on_message=messages.append), registry.index(on_message=messages.append)
    assert index.entries == second.entries
    assert index.names("corpus") == ("poems",)
    assert built == [1]
    assert messages == ["indexing 1 new or changed plugin …"]
    assert len(list(folder.glob("*.json"))) == 1


@pytest.mark.thorough
def test_only_changed_plugins_are_loaded_again(site: Any, poems: str, folder: Path, built: list[int]) -> None:
    site.add("still-plug", poems)
    module = site.add("moving-plug", poems.replace('"poems"', '"odes"'))
    assert registry.index().names("corpus") == ("odes", "poems")
    (site.folder / f"{module}.py").write_text(poems.replace('"poems"', '"hymns"'))
    assert registry.index().names("corpus") == ("hymns", "poems")
    assert built == [2, 1]


@pytest.mark.thorough
def test_a_change_in_another_module_of_the_package_reloads_the_plugin(
    site: Any, poems: str, folder: Path, built: list[int]
) -> None:
    site.add("pack-plug", "")
    (site.folder / "pack_plug.py").unlink()
    package = site.folder / "pack_plug"
    package.mkdir()
    (package / "__init__.py").write_text("from pack_plug.names import NAME\n" + poems.replace('"poems"', "NAME"))
    (package / "names.py").write_text('NAME = "odes"')
    assert registry.index().names("corpus") == ("odes",)
    (package / "names.py").write_text('NAME = "hymns"')
    assert registry.index().names("corpus") == ("hymns",)


@pytest.mark.thorough
def test_a_broken_plugin_is_loaded_again_after_an_installation(
    site: Any, folder: Path, built: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    site.add("missing-plug", "import a_library_that_comes_later")
    assert "failed to load" in registry.index().warnings()[0]
    (packages / "a_library_that_comes_later.py").write_text("")
    assert "it has no hook" in registry.index().warnings()[0]


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [b"", b"{}", b"\x00\xff", b'{"body": {}, "schema": 1, "sha256": ""}', b"[1]"])
def test_a_damaged_index_is_rebuilt(site: Any, poems: str, folder: Path, built: list[int], damage: bytes) -> None:
    site.add("hurt-plug", poems)
    registry.index()
    (file,) = folder.glob("*.json")
    file.write_bytes(damage)
    assert registry.index().names("corpus") == ("poems",)
    assert built == [1, 1]


@pytest.mark.thorough
def test_an_index_file_with_other_keys_is_rebuilt(site: Any, poems: str, folder: Path, built: list[int]) -> None:
    site.add("shape-plug", poems)
    registry.index()
    (file,) = folder.glob("*.json")
    atomic.write_json(file, {"source": {}}, schema=index_cache.FORMAT)
    assert registry.index().names("corpus") == ("poems",)


@pytest.mark.thorough
def test_a_plugin_that_ends_its_process_is_reported_and_hides_no_other(
    site: Any, poems: str, folder: Path, built: list[int]
) -> None:
    site.add("a-deadly-plug", "import os\nos._exit(7)")
    site.add(
        "b-deadly-plug", "import os, signal, sys\nprint('going', file=sys.stderr)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    site.add("c-whole-plug", poems)
    index = registry.index()
    assert index.names("corpus") == ("poems",)
    first_warning, second_warning = index.warnings()
    assert "a-deadly-plug 1.0 failed to load: the loading process ended with exit code 7" in first_warning
    assert "b-deadly-plug 1.0 failed to load: the loading process ended with signal 9 (going)" in second_warning


def test_a_plugin_that_never_ends_times_out(site: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_cache, "TIMEOUT", 1)
    site.add("endless-plug", "import time\ntime.sleep(600)")
    assert "did not end within 1 s" in registry.index().warnings()[0]


def test_output_of_a_plugin_does_not_change_the_index(site: Any, poems: str, folder: Path) -> None:
    site.add("loud-plug", "print('[]' * 100_000)\n" + poems)
    assert registry.index().names("corpus") == ("poems",)


@pytest.mark.thorough
def test_without_a_writable_cache_the_index_is_the_same(
    site: Any, poems: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("PARIBUS_CACHE_DIR", str(blocked))
    site.add("nowhere-plug", poems)
    assert registry.index().names("corpus") == ("poems",)
    assert blocked.read_text() == ""


@pytest.mark.thorough
def test_the_oldest_files_are_deleted(site: Any, poems: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_cache, "MAX_FILES", 2)
    folder.mkdir(parents=True)
    for age in range(5):
        file = folder / f"{age}.json"
        file.write_text("")
        os.utime(file, (age, age))
    site.add("new-plug", poems)
    registry.index()
    remaining = sorted(file.name for file in folder.glob("*.json"))
    assert len(remaining) == 2
    assert "4.json" in remaining


@pytest.mark.thorough
def test_the_index_includes_a_plugin_file(tmp_path: Path, poems: str, folder: Path, built: list[int]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(poems)
    assert registry.index(plugins=[file]).find("corpus", "poems").source.label == str(file)
    assert registry.index().names("corpus") == ()
    file.write_text(poems.replace('"poems"', '"odes"'))
    assert registry.index(plugins=[file]).names("corpus") == ("odes",)
    assert built == [1, 1]


def test_a_broken_file_is_an_error(tmp_path: Path, folder: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import no_such_library")
    with raises_problem(PluginError, "plugin-failed", "mine.py", "ModuleNotFoundError"):
        registry.index(plugins=[file])
    with raises_problem(SpecError, "not-a-plugin", "none.py"):
        registry.index(plugins=[tmp_path / "none.py"])


def test_the_index_equals_that_of_the_registry() -> None:
    cached, loaded = registry.index(no_plugins=True), registry.installed(no_plugins=True).index
    assert cached.entries == loaded.entries
    assert cached.warnings() == loaded.warnings()


def test_reading_the_index_imports_no_torch() -> None:
    registry.index()  # derived, if it was not
    code = (
        "import json, sys; from paribus import registry; registry.index(); "
        "print(json.dumps([name for name in ('torch', 'lightning', 'scipy', 'omegaconf') if name in sys.modules]))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout) == []


def test_files_may_be_opened_while_the_dependencies_of_a_plugin_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "plugin.py"
    file.write_text("import paribus\n\n\n@paribus.hookimpl\ndef norm():\n    return {}\n")
    loaded = load_plugin(PluginSource("", str(file), str(file)))
    assert not loaded.manifest.broken
    opened = {str(tmp_path / "data.json")}

    def open_another(path: Path) -> bool:
        opened.add(f"{path}{len(opened)}")
        return False

    monkeypatch.setattr(index_cache, "_is_data", open_another)
    index_cache._with_values(loaded, CodeHashes(), opened)
    assert len(opened) == 2

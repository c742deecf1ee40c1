"""The index on disk: derived, rebuilt when anything changes, and never a reason to fail."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paribus import registry
from paribus.errors import PluginError, SpecError
from paribus.registry import cache
from paribus.storage import atomic


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no built-in plugin to fill it with: those take seconds."""
    monkeypatch.setenv("PARIBUS_CACHE_DIR", str(tmp_path / "cache"))
    everything = registry.plugin_sources.doors
    monkeypatch.setattr(
        cache,
        "doors",
        lambda *args, **named: tuple(d for d in everything(*args, **named) if d.distribution != "paribus"),
    )
    return tmp_path / "cache" / "index"


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many plugins each loading process was asked to load."""
    runs: list[int] = []
    child = cache._child

    def counted(left: Any, folder: Path) -> str:
        runs.append(len(left))
        return child(left, folder)

    monkeypatch.setattr(cache, "_child", counted)
    return runs


def test_the_index_is_derived_once(site: Any, poems: str, folder: Path, built: list[int]) -> None:
    site.add("once-plug", poems)
    told: list[str] = []
    first, second = registry.index(tell=told.append), registry.index(tell=told.append)
    assert first.entries == second.entries
    assert first.names("corpus") == ("poems",)
    assert built == [1]
    assert told == ["looking at 1 plugins that are new or changed …"]
    assert len(list(folder.glob("*.json"))) == 1


def test_only_what_changed_is_loaded_again(site: Any, poems: str, folder: Path, built: list[int]) -> None:
    site.add("still-plug", poems)
    module = site.add("moving-plug", poems.replace('"poems"', '"odes"'))
    assert registry.index().names("corpus") == ("odes", "poems")
    (site.folder / f"{module}.py").write_text(poems.replace('"poems"', '"hymns"'))
    assert registry.index().names("corpus") == ("hymns", "poems")
    assert built == [2, 1]


def test_a_module_that_a_plugin_imports_from_its_package_counts_as_its_code(
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


def test_a_broken_plugin_is_looked_at_again_when_something_is_installed(
    site: Any, folder: Path, built: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    site.add("missing-plug", "import a_library_that_comes_later")
    assert "failed to load" in registry.index().warnings()[0]
    (packages / "a_library_that_comes_later.py").write_text("")
    assert "it has no hook" in registry.index().warnings()[0]


@pytest.mark.parametrize("damage", [b"", b"{}", b"\x00\xff", b'{"body": {}, "schema": 1, "sha256": ""}', b"[1]"])
def test_a_damaged_index_is_made_anew(site: Any, poems: str, folder: Path, built: list[int], damage: bytes) -> None:
    site.add("hurt-plug", poems)
    registry.index()
    (file,) = folder.glob("*.json")
    file.write_bytes(damage)
    assert registry.index().names("corpus") == ("poems",)
    assert built == [1, 1]


def test_a_body_of_another_shape_is_made_anew(site: Any, poems: str, folder: Path, built: list[int]) -> None:
    site.add("shape-plug", poems)
    registry.index()
    (file,) = folder.glob("*.json")
    atomic.write_json(file, {"door": {}}, schema=cache.FORMAT)
    assert registry.index().names("corpus") == ("poems",)


def test_a_plugin_that_ends_its_process_is_told_of_and_hides_no_other(
    site: Any, poems: str, folder: Path, built: list[int]
) -> None:
    site.add("a-deadly-plug", "import os\nos._exit(7)")
    site.add(
        "b-deadly-plug", "import os, signal, sys\nprint('going', file=sys.stderr)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    site.add("c-whole-plug", poems)
    found = registry.index()
    assert found.names("corpus") == ("poems",)
    first, second = found.warnings()
    assert "a-deadly-plug 1.0 failed to load: the process that loaded it ended with exit code 7" in first
    assert "b-deadly-plug 1.0 failed to load: the process that loaded it ended with signal 9 (going)" in second


def test_a_plugin_that_never_ends_is_given_up(site: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PATIENCE", 1)
    site.add("endless-plug", "import time\ntime.sleep(600)")
    assert "did not end within 1 s" in registry.index().warnings()[0]


def test_what_a_plugin_prints_is_not_the_index(site: Any, poems: str, folder: Path) -> None:
    site.add("loud-plug", "print('[]' * 100_000)\n" + poems)
    assert registry.index().names("corpus") == ("poems",)


def test_without_a_writable_cache_the_answer_is_the_same(
    site: Any, poems: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("PARIBUS_CACHE_DIR", str(blocked))
    site.add("nowhere-plug", poems)
    assert registry.index().names("corpus") == ("poems",)
    assert blocked.read_text() == ""


def test_old_files_are_cleared(site: Any, poems: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "KEPT", 2)
    folder.mkdir(parents=True)
    for age in range(5):
        file = folder / f"{age}.json"
        file.write_text("")
        os.utime(file, (age, age))
    site.add("new-plug", poems)
    registry.index()
    left = sorted(file.name for file in folder.glob("*.json"))
    assert len(left) == 2
    assert "4.json" in left


def test_a_file_is_a_plugin_of_the_index_as_well(tmp_path: Path, poems: str, folder: Path, built: list[int]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(poems)
    assert registry.index(plugins=[file]).find("corpus", "poems").distribution == str(file)
    assert registry.index().names("corpus") == ()
    file.write_text(poems.replace('"poems"', '"odes"'))
    assert registry.index(plugins=[file]).names("corpus") == ("odes",)
    assert built == [1, 1]


def test_a_broken_file_is_an_error(tmp_path: Path, folder: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import no_such_library")
    with pytest.raises(PluginError, match=r"mine.py failed to load: ModuleNotFoundError"):
        registry.index(plugins=[file])
    with pytest.raises(SpecError, match=r"no such file"):
        registry.index(plugins=[tmp_path / "none.py"])


def test_the_index_says_what_the_registry_says() -> None:
    told, loaded = registry.index(no_plugins=True), registry.installed(no_plugins=True).index
    assert told.entries == loaded.entries
    assert told.warnings() == loaded.warnings()


def test_asking_imports_no_torch() -> None:
    registry.index()  # derived, if it was not
    asked = (
        "import json, sys; from paribus import registry; registry.index(); "
        "print(json.dumps([name for name in ('torch', 'lightning', 'scipy', 'omegaconf') if name in sys.modules]))"
    )
    answer = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout) == []

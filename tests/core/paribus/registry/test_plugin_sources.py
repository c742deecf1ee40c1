"""Plugin sources, found without importing any plugin."""

import sys
from pathlib import Path
from typing import Any

import pytest

from paribus.errors import SpecError
from paribus.registry.plugin_sources import PluginSource, find_plugin_sources, search_path


def names(sources: tuple[PluginSource, ...]) -> set[str]:
    return {source.name for source in sources}


def test_built_in_plugins_are_entry_points() -> None:
    assert {"attention", "norm", "topology"} <= names(find_plugin_sources())


def test_sources_are_sorted(site: Any) -> None:
    site.add("zeta-plug", "")
    site.add("alpha-plug", "")
    sources = find_plugin_sources()
    assert list(sources) == sorted(sources)
    assert {"zeta_plug", "alpha_plug"} <= names(sources)


def test_no_plugins_keeps_the_built_in_ones(site: Any) -> None:
    site.add("stranger-plug", "")
    assert names(find_plugin_sources(no_plugins=True)) == names(find_plugin_sources()) - {"stranger_plug"}


@pytest.mark.parametrize("allowed", ["wanted_plug", "wanted-plug"])
def test_an_allow_list_names_entry_points_or_distributions(site: Any, allowed: str) -> None:
    site.add("wanted-plug", "")
    site.add("unwanted-plug", "")
    installed = names(find_plugin_sources(only=[allowed]))
    assert "wanted_plug" in installed
    assert "unwanted_plug" not in installed


def test_the_first_distribution_on_the_path_hides_later_ones(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add("twin-plug", "", version="1.0")
    behind = type(site)(tmp_path / "behind")
    behind.folder.mkdir()
    behind.add("twin-plug", "", version="2.0")
    monkeypatch.setattr(sys, "path", [*sys.path, str(behind.folder)])
    assert [source.version for source in find_plugin_sources() if source.name == "twin_plug"] == ["1.0"]


def test_a_distribution_in_the_working_folder_is_never_loaded(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloned = type(site)(tmp_path / "cloned")
    cloned.folder.mkdir()
    cloned.add("planted-plug", "raise SystemExit")
    monkeypatch.chdir(cloned.folder)
    for entry in ("", str(cloned.folder)):  # what `python -c` and `python -m` put first
        monkeypatch.setattr(sys, "path", [entry, *sys.path])
        assert "planted_plug" not in names(find_plugin_sources())
        assert entry not in search_path()


def test_a_file_is_named_by_its_path_and_imported_under_a_name_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "my plug-in.py"
    file.write_text("")
    (source,) = [source for source in find_plugin_sources([file]) if not source.distribution]
    assert str(source) == str(file)
    assert source.module.isidentifier()
    assert source.files() == [file]


def test_a_changed_file_is_another_module(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("")
    (source,) = [source for source in find_plugin_sources([file]) if not source.distribution]
    previous = source.module
    file.write_text("changed = True")
    assert source.module != previous


@pytest.mark.parametrize(
    ("path", "kind"), [("missing.py", "a path that does not exist"), (".", "a folder"), ("notes.txt", "another file")]
)
def test_a_plugin_that_is_not_a_python_file_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("")
    with pytest.raises(SpecError, match=f"not-a-plugin.*got {kind}"):
        find_plugin_sources([path])


def test_a_missing_module_has_no_files() -> None:
    assert PluginSource("ghost", "ghost", "no_such_module_at_all").files() == []


def test_a_package_has_all_of_its_files(site: Any) -> None:
    package = site.folder / "deep_plug"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__.py", "a.py", "inner/b.py"):
        (package / name).write_text("")
    files = PluginSource("deep-plug", "deep", "deep_plug.inner").files()
    assert [file.relative_to(package).as_posix() for file in files] == ["__init__.py", "a.py", "inner/b.py"]

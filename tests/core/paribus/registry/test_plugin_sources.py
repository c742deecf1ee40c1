"""Which plugins there are, before anything of them is imported."""

import sys
from pathlib import Path
from typing import Any

import pytest

from paribus.errors import SpecError
from paribus.registry.plugin_sources import Door, doors, search_path


def named(found: tuple[Door, ...]) -> set[str]:
    return {door.name for door in found}


def test_built_in_plugins_come_through_entry_points() -> None:
    assert {"attention", "norm", "topology"} <= named(doors())


def test_doors_are_sorted_whatever_the_order_of_installation(site: Any) -> None:
    site.add("zeta-plug", "")
    site.add("alpha-plug", "")
    found = doors()
    assert list(found) == sorted(found)
    assert {"zeta_plug", "alpha_plug"} <= named(found)


def test_no_plugins_leaves_the_built_in_ones(site: Any) -> None:
    site.add("stranger-plug", "")
    assert named(doors(no_plugins=True)) == named(doors()) - {"stranger_plug"}


@pytest.mark.parametrize("allowed", ["wanted_plug", "wanted-plug"])
def test_an_allow_list_names_entry_points_or_distributions(site: Any, allowed: str) -> None:
    site.add("wanted-plug", "")
    site.add("unwanted-plug", "")
    found = named(doors(only=[allowed]))
    assert "wanted_plug" in found
    assert "unwanted_plug" not in found


def test_what_comes_first_on_the_path_hides_the_same_distribution_behind_it(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add("twin-plug", "", version="1.0")
    behind = type(site)(tmp_path / "behind")
    behind.folder.mkdir()
    behind.add("twin-plug", "", version="2.0")
    monkeypatch.setattr(sys, "path", [*sys.path, str(behind.folder)])
    assert [door.version for door in doors() if door.name == "twin_plug"] == ["1.0"]


def test_a_distribution_in_the_working_folder_is_never_loaded(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = type(site)(tmp_path / "cloned")
    here.folder.mkdir()
    here.add("planted-plug", "raise SystemExit")
    monkeypatch.chdir(here.folder)
    for first in ("", str(here.folder)):  # what `python -c` and `python -m` put first
        monkeypatch.setattr(sys, "path", [first, *sys.path])
        assert "planted_plug" not in named(doors())
        assert first not in search_path()


def test_a_file_is_named_by_its_path_and_imported_under_a_name_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "my plug-in.py"
    file.write_text("")
    (door,) = [door for door in doors([file]) if not door.distribution]
    assert str(door) == str(file)
    assert door.module.isidentifier()
    assert door.files() == [file]


def test_a_changed_file_is_another_module(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("")
    (door,) = [door for door in doors([file]) if not door.distribution]
    before = door.module
    file.write_text("changed = True")
    assert door.module != before


@pytest.mark.parametrize(
    ("path", "found"), [("missing.py", "no such file"), (".", "a folder"), ("notes.txt", "no Python file")]
)
def test_a_plugin_that_is_no_python_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, found: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("")
    with pytest.raises(SpecError, match=f"a plugin is one Python file, but this is {found}"):
        doors([path])


def test_the_files_of_a_module_that_cannot_be_found_are_none() -> None:
    assert Door("ghost", "ghost", "no_such_module_at_all").files() == []


def test_a_package_has_all_of_its_files(site: Any) -> None:
    package = site.folder / "deep_plug"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__.py", "a.py", "inner/b.py"):
        (package / name).write_text("")
    files = Door("deep-plug", "deep", "deep_plug.inner").files()
    assert [file.relative_to(package).as_posix() for file in files] == ["__init__.py", "a.py", "inner/b.py"]

"""Finding of plugins without an import, and loading: a failure of one plugin does not affect the others."""

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.problems import raises_problem

from paribus.errors import SpecError
from paribus.registry.component_index import PluginSource
from paribus.registry.plugin_loading import find_plugin_sources, lifecycle_hooks, load_plugin, search_path


def loaded(site: Any, source: str, **metadata: Any) -> Any:
    count = len(list(site.folder.glob("*.py")))
    module = site.add(f"plug-{site.folder.parent.name}-{count}".replace("_", "-"), source, **metadata)
    (plugin_source,) = [entry for entry in find_plugin_sources() if entry.value == module]
    return load_plugin(plugin_source)


def problem(site: Any, source: str, **metadata: Any) -> str:
    (broken,) = loaded(site, source, **metadata).manifest.broken
    return str(broken)


def test_a_plugin_registers_its_components_with_options_and_source(site: Any, poems: str) -> None:
    plugin = loaded(site, poems)
    (entry,) = plugin.manifest.entries
    assert (entry.slot, entry.name, entry.summary) == ("corpus", "poems", "Poems, which nobody reads.")
    assert [option.name for option in entry.options] == ["lines"]
    assert Path(entry.file).parent == site.folder
    assert plugin.classes["corpus", "poems"]().lines == 4


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("def broken(:\n    pass", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def deep():\n    raise RuntimeError('far down\\nand long')\ndeep()", "RuntimeError: far down"),
        ("from paribus import no_such_thing", "ImportError"),
    ],
)
def test_an_import_that_fails_names_the_plugin_its_version_and_the_last_frame(
    site: Any, source: str, expected: str
) -> None:
    message = problem(site, source, version="2.5")
    assert expected in message
    assert "2.5 failed to load" in message
    assert ".py:" in message
    assert "\n" not in message


def test_the_last_frame_is_the_one_that_raised(site: Any) -> None:
    message = problem(site, "def deep():\n    raise RuntimeError('down')\ndeep()")
    assert message.endswith(".py:2, in deep)")


def test_a_keyboard_interrupt_is_not_a_failed_plugin(site: Any) -> None:
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        loaded(site, "raise KeyboardInterrupt")


HOOK = "from paribus import hookimpl\n\n\n@hookimpl\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = 1", "it has no hook: mark its functions with `@paribus.hookimpl`"),
        (
            HOOK + "def atention():\n    return {}",
            "unknown hook `def atention()`; did you mean `def attention() -> Mapping[str, type[Attention]]`?",
        ),
        (HOOK + "def zzzzzz():\n    return {}", "unknown hook `def zzzzzz()`; valid: attention, "),
        (
            HOOK + "def corpus(names):\n    return {}",
            "expected the hook `def corpus() -> Mapping[str, type[Corpus]]`, got `def corpus(names)`",
        ),
        (
            HOOK + "def corpus():\n    return None",
            "the hook `corpus`: expected Mapping[str, type[Corpus]], got NoneType",
        ),
        (HOOK + "def corpus():\n    return ['a']", "the hook `corpus`: expected Mapping[str, type[Corpus]], got list"),
        (HOOK + "def corpus():\n    return 1 / 0", "ZeroDivisionError: division by zero"),
        (HOOK + "def presets():\n    return 'here'", "the hook `presets`: expected a Path, got str"),
        (
            "from pathlib import Path\n" + HOOK + "def studies():\n    return Path('no/such/folder')",
            "the hook `studies`: expected a folder, got no/such/folder",
        ),
    ],
)
def test_an_invalid_hook_is_reported_with_its_expected_signature(site: Any, source: str, expected: str) -> None:
    assert expected in problem(site, source)


def test_a_hook_may_accept_fewer_arguments(site: Any) -> None:
    plugin = loaded(site, HOOK + "def trial_finished(record):\n    record['seen'] = True")
    assert plugin.manifest.broken == ()
    assert plugin.manifest.hooks == ("trial_finished",)
    record: dict[str, Any] = {}
    lifecycle_hooks([plugin]).trial_finished(spec={}, record=record)
    assert record == {"seen": True}


@pytest.mark.parametrize(
    ("needs", "is_satisfied"),
    [("paribus>=0.0.1", True), ("paribus>=99", False), ("paribus>=99; python_version < '3'", True)],
)
def test_a_required_version_of_paribus_is_checked(site: Any, poems: str, needs: str, is_satisfied: bool) -> None:
    plugin = loaded(site, poems, needs=needs)
    assert bool(plugin.manifest.entries) == is_satisfied
    if not is_satisfied:
        assert "expected paribus >=99, got paribus " in str(plugin.manifest.broken[0])


def test_a_requirement_of_a_similar_name_is_ignored(site: Any, poems: str) -> None:
    assert loaded(site, poems, needs="paribus-extras>=99").manifest.broken == ()


def test_an_invalid_component_does_not_affect_the_others(site: Any, poems: str) -> None:
    bad = poems.replace('{"poems": Poems}', '{"poems": Poems, "Bad Name": Poems, "prose": int}')
    plugin = loaded(site, bad)
    assert [entry.name for entry in plugin.manifest.entries] == ["poems"]
    assert [broken.name for broken in plugin.manifest.broken] == ["Bad Name", "prose"]
    assert "component corpus.prose, failed to load: int: expected a subclass of Corpus" in str(
        plugin.manifest.broken[1]
    )


def test_a_plugin_file_is_loaded_once(tmp_path: Path, poems: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(poems)
    source = PluginSource("", str(file), str(file))
    plugin, loaded_again = load_plugin(source), load_plugin(source)
    assert plugin.classes["corpus", "poems"] is loaded_again.classes["corpus", "poems"]


def test_a_plugin_file_that_failed_is_loaded_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("raise ValueError('first')")
    source = PluginSource("", str(file), str(file))
    assert "first" in load_plugin(source).manifest.broken[0].message
    assert "first" in load_plugin(source).manifest.broken[0].message


def test_the_manifest_has_the_preset_folder_of_a_hook(site: Any) -> None:
    plugin = loaded(site, "from pathlib import Path\n" + HOOK + "def presets():\n    return Path(__file__).parent")
    assert plugin.manifest.presets == str(site.folder.resolve())
    hooks: Mapping[tuple[str, str], type] = plugin.classes
    assert hooks == {}


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


@pytest.mark.parametrize(
    "loop",
    [
        "while True:\n    pass",
        "import time\ntime.sleep(600)",
        "while True:\n    try:\n        import time\n        time.sleep(1)\n    except Exception:\n        pass",
        "from paribus import hookimpl\n@hookimpl\ndef corpus():\n    while True:\n        pass",
    ],
)
def test_a_plugin_that_never_finishes_loading_is_stopped_and_named(tmp_path: Path, loop: str) -> None:
    file = tmp_path / "endless.py"
    file.write_text(loop)
    timer, handler = signal.getitimer(signal.ITIMER_REAL), signal.getsignal(signal.SIGALRM)
    (source,) = find_plugin_sources([file], no_plugins=True)[:1]
    (failure,) = load_plugin(source, seconds=0.2).manifest.broken
    assert f"plugin {file} failed to load: it did not finish loading within 0.2 s ({file}:" in str(failure)
    assert signal.getsignal(signal.SIGALRM) is handler
    assert (signal.getitimer(signal.ITIMER_REAL)[0] > 0) == (timer[0] > 0)


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
    with raises_problem(SpecError, "not-a-plugin", kind):
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

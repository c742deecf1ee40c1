"""Loading of plugins: each one is loaded separately, and its failure does not affect the others."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paribus.registry.plugin_loading import lifecycle_hooks, load_plugin
from paribus.registry.plugin_sources import PluginSource, find_plugin_sources


def loaded(site: Any, source: str, **about: Any) -> Any:
    count = len(list(site.folder.glob("*.py")))
    module = site.add(f"plug-{site.folder.parent.name}-{count}".replace("_", "-"), source, **about)
    (plugin_source,) = [entry for entry in find_plugin_sources() if entry.value == module]
    return load_plugin(plugin_source)


def problem(site: Any, source: str, **about: Any) -> str:
    (broken,) = loaded(site, source, **about).manifest.broken
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
    assert "component corpus.prose, failed to load: builtins.int: expected a subclass of Corpus" in str(
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

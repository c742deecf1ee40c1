"""The registry object: classes by slot and name, immutable."""

from pathlib import Path
from typing import Annotated, Any, final

import pytest
from tests.fixtures.problems import raises_problem

from paribus import Schedule
from paribus.errors import PluginError, SpecError
from paribus.registry import LazyRegistry, Registry, installed


@final
class Steady(Schedule):
    """Constant schedule."""

    def __init__(self, *, level: Annotated[float, "the factor"] = 1.0) -> None:
        self.level = level

    def factor(self, step: int, steps: int) -> float:
        return self.level


@pytest.fixture(scope="module")
def registry() -> Registry:
    return installed(no_plugins=True)


def test_built_in_components_are_registered(registry: Registry) -> None:
    assert registry.get("attention", "mha").__name__ == "MultiHead"
    assert registry.index.find("attention", "mha").source.label.startswith("paribus ")


def test_every_entry_of_the_index_has_its_class(registry: Registry) -> None:
    for slot, entries in registry.index.entries.items():
        for name, entry in entries.items():
            assert registry.get(slot, name).__doc__ is not None
            assert entry.summary


def test_the_repr_counts_the_components(registry: Registry) -> None:
    assert f"attention {len(registry.index.entries['attention'])}, " in repr(registry)
    assert len(repr(registry)) < 400


def test_a_lazy_registry_has_the_same_classes(registry: Registry) -> None:
    lazy = LazyRegistry(registry.index)
    for slot, entries in registry.index.entries.items():
        assert [lazy.get(slot, name) for name in entries] == [registry.get(slot, name) for name in entries]


def test_an_unknown_name_raises_the_error_of_the_index(registry: Registry) -> None:
    with raises_problem(SpecError, "unknown-component", "attention", "gqaa", "gqa"):
        registry.get("attention", "gqaa")


def test_with_components_returns_a_new_registry(registry: Registry) -> None:
    extended = registry.with_components(schedule={"steady": Steady})
    assert extended.get("schedule", "steady") is Steady
    assert extended.get("attention", "mha") is registry.get("attention", "mha")
    assert extended.local == ("schedule.steady",)
    assert registry.local == ()
    with raises_problem(SpecError, "unknown-component", "schedule", "steady"):
        registry.get("schedule", "steady")


def test_with_components_may_be_called_twice(registry: Registry) -> None:
    extended = registry.with_components(schedule={"steady": Steady}).with_components(schedule={"level": Steady})
    assert extended.local == ("schedule.level", "schedule.steady")


def test_with_components_rejects_a_taken_name(registry: Registry) -> None:
    with raises_problem(PluginError, "duplicate-name", "schedule.constant", "with_components"):
        registry.with_components(schedule={"constant": Steady})


def test_with_components_rejects_invalid_classes(registry: Registry) -> None:
    with raises_problem(PluginError, "plugin-failed", "attention.steady"):
        registry.with_components(attention={"steady": Steady})
    with raises_problem(PluginError, "plugin-failed", "schedules"):
        registry.with_components(schedules={"steady": Steady})


def test_the_registry_lists_plugin_files_for_other_processes(tmp_path: Path, poems: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(poems)
    registry = installed(plugins=[file], no_plugins=True)
    assert registry.get("corpus", "poems")(lines=2).lines == 2
    assert registry.files == (file.resolve(),)


def test_a_broken_plugin_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("raise ValueError('no')")
    with raises_problem(PluginError, "plugin-failed", "mine.py", "ValueError", "mine.py:1", "<module>"):
        installed(plugins=[file], no_plugins=True)


def test_a_broken_plugin_hides_no_other(site: Any, poems: str) -> None:
    site.add("broken-a-plug", "raise ValueError('a')")
    site.add("whole-b-plug", poems.replace('"poems"', '"b-poems"'))
    site.add("broken-c-plug", "import no_such_library")
    registry = installed()
    assert registry.get("corpus", "b-poems").__name__ == "Poems"
    assert registry.get("attention", "mha").__name__ == "MultiHead"
    warnings = "\n".join(registry.index.warnings())
    assert "broken-a-plug 1.0 failed to load: ValueError: a" in warnings
    assert "broken-c-plug 1.0 failed to load: ModuleNotFoundError" in warnings


def test_lifecycle_hooks_are_called_through_the_registry(site: Any) -> None:
    site.add(
        "life-plug",
        """
        from paribus import hookimpl


        @hookimpl
        def configure_trainer(spec):
            return {"max_steps": spec["seed"]}
        """,
    )
    assert {"max_steps": 7} in installed().hook.configure_trainer(spec={"seed": 7})

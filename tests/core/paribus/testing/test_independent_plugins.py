"""Plugins of authors who had not read the kit: they conform, and their mistakes are found as recorded."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.core.paribus.testing.seeded_faults import PLUGINS, Fault, plugin_table

from paribus.registry import installed
from paribus.testing import Report, examine

FOLDER = Path(__file__).parent / "independent_plugins"
PAGE = Path(__file__).parents[4] / "docs" / "reliability.md"
SOURCES = {fault.source: fault.component for fault in PLUGINS}
Examine = Callable[..., Report]


@pytest.fixture
def examine_plugin(tmp_path: Path) -> Examine:
    """Return a function that examines a plugin by all checks, or with a fault by its check."""

    def examine_plugin(source: str, fault: Fault | None = None) -> Report:
        text = (FOLDER / f"{source}.py").read_text(encoding="utf-8")
        file = tmp_path / f"{source}.py"
        file.write_text(fault.apply(text) if fault else text, encoding="utf-8")
        only = [fault.check] if fault and fault.check else None
        return examine(SOURCES[source], registry=installed(plugins=[file]), only=only)

    return examine_plugin


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_plugin_without_a_fault_conforms(source: str, examine_plugin: Examine) -> None:
    report = examine_plugin(source)
    assert report.ok, str(report)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a mistake may leave a process
@pytest.mark.parametrize("fault", [fault for fault in PLUGINS if fault.check], ids=str)
def test_a_mistake_is_found_by_its_check(fault: Fault, examine_plugin: Examine) -> None:
    report = examine_plugin(fault.source, fault)
    assert fault.check in {finding.check for finding in report.findings}, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in PLUGINS if fault.reason], ids=str)
def test_a_mistake_that_no_check_finds_is_still_missed(fault: Fault, examine_plugin: Examine) -> None:
    report = examine_plugin(fault.source, fault)
    assert report.ok, f"a check finds it now, so record which: {report}"


def test_the_table_of_mistakes_is_current() -> None:
    assert "\n".join(plugin_table()) in PAGE.read_text(encoding="utf-8")

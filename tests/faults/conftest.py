"""Fixtures of the fault tests: the `paribus` command and small trials."""

from tests.core.paribus.cli.conftest import CommandResult, built_index, cli
from tests.fixtures.trials import registry, tiny, trial

__all__ = ["CommandResult", "built_index", "cli", "registry", "tiny", "trial"]

"""What every fault needs: the command as its user sees it, and where a page of what was found is written."""

from tests.core.paribus.cli.conftest import Said, cli, derived
from tests.fixtures.trials import registry, tiny, trial

__all__ = ["Said", "cli", "derived", "registry", "tiny", "trial"]  # fixtures of others, used here as they are

"""A witness in the process of the tests."""

from collections.abc import Iterator

import pytest
from torch.optim.optimizer import _global_optimizer_pre_hooks


@pytest.fixture(autouse=True)
def _without_optimizer_hooks() -> Iterator[None]:
    """Remove the hook that a witness registers with torch, which would stay for all later tests of the process."""
    before = dict(_global_optimizer_pre_hooks)
    yield
    _global_optimizer_pre_hooks.clear()
    _global_optimizer_pre_hooks.update(before)

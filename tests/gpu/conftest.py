"""Tests on a GPU do not fork, and torch keeps the threads of its compiler until the process ends."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_thread_is_left() -> None:
    """Allow threads that a test file leaves running."""

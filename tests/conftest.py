"""What holds for all tests."""

from collections import Counter

import pytest
from hypothesis import settings

# Hypothesis checks results, not times: a busy machine is no fault of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """pytest-xdist runs one test per id, so of two tests with the same id one would silently not run."""
    twice = [name for name, times in Counter(item.nodeid for item in items).items() if times > 1]
    if twice:
        raise pytest.UsageError(f"tests with the same id, of which only one would run: {twice}")

"""What holds for all tests."""

from collections import Counter

import pytest
from hypothesis import settings

# Hypothesis judges what comes out, not how long it took: a busy machine is no fault of the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """pytest-xdist runs one test of each id: two with the same would look run and not be."""
    twice = [name for name, times in Counter(item.nodeid for item in items).items() if times > 1]
    if twice:
        raise pytest.UsageError(f"tests with the same id, of which only one would run: {twice}")

"""Profiles of hypothesis: every run takes its default, ``.ci/run deep`` the long one. What hangs in a live test."""

from collections.abc import Sequence

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("deep", max_examples=2000, deadline=None)
settings.load_profile("default")

HANGS_S = 300
"""The time limit of a live test ends one that hangs; it claims nothing, and on a busy machine all takes longer."""


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("live") is not None:
            own = item.get_closest_marker("timeout")
            if own is None or own.args[0] < HANGS_S:
                item.add_marker(pytest.mark.timeout(HANGS_S), append=False)

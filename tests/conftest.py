"""Profiles of hypothesis: every run takes its default, ``.ci/run deep`` the long one. What hangs in a live test.

Tests marked ``needs(tool=...)`` fail where the tool is missing (``tests/support/live/tools.py``).
"""

from collections.abc import Sequence

import pytest
from hypothesis import settings

from tests.support.live.tools import TOOLS, complaint

settings.register_profile("default", deadline=None)
settings.register_profile("deep", max_examples=2000, deadline=None)
settings.load_profile("default")

HANGS_S = 300
"""The time limit of a live test ends one that hangs; it claims nothing, and on a busy machine all takes longer."""


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        for mark in item.iter_markers("needs"):
            if mark.args or set(mark.kwargs) != {"tool"} or mark.kwargs["tool"] not in TOOLS:
                raise pytest.UsageError(f"{item.nodeid}: needs(tool=...) with one of {', '.join(TOOLS)}; got {mark}")
        if item.get_closest_marker("live") is not None:
            own = item.get_closest_marker("timeout")
            if own is None or own.args[0] < HANGS_S:
                item.add_marker(pytest.mark.timeout(HANGS_S), append=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before fixtures, which would start the tool."""
    for mark in item.iter_markers("needs"):
        missing = complaint(mark.kwargs["tool"])
        if missing is not None:
            pytest.fail(missing, pytrace=False)

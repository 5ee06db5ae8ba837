"""Profiles of hypothesis: every run takes its default, ``.ci/run deep`` the long one. What hangs in a live test.

Tests marked ``needs(tool=...)`` fail where the tool is missing (``tests/support/live/tools.py``). Tests that share a
fixture of their module stay together where tests run side by side. Memory goes back to the machine after each module.
"""

import ctypes
import gc
from collections.abc import Sequence

import pytest
from hypothesis import settings

from tests.support.live.tools import TOOLS, complaint

settings.register_profile("default", deadline=None)
settings.register_profile("deep", max_examples=2000, deadline=None)
settings.load_profile("default")

HANGS_S = 300
"""The time limit of a live test ends one that hangs; it claims nothing, and on a busy machine all takes longer."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if _shares_its_module(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
        for mark in item.iter_markers("needs"):
            if mark.args or set(mark.kwargs) != {"tool"} or mark.kwargs["tool"] not in TOOLS:
                raise pytest.UsageError(f"{item.nodeid}: needs(tool=...) with one of {', '.join(TOOLS)}; got {mark}")
        if item.get_closest_marker("live") is not None:
            own = item.get_closest_marker("timeout")
            if own is None or own.args[0] < HANGS_S:
                item.add_marker(pytest.mark.timeout(HANGS_S), append=False)


def _shares_its_module(item: pytest.Item) -> bool:
    """Returns whether a fixture of a whole module or class belongs to this test."""
    if not isinstance(item, pytest.Function):
        return False
    definitions = item._fixtureinfo.name2fixturedefs.values()
    return any(found.scope in ("module", "class") for each in definitions for found in each)


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Bodies of 20 MB and models would stay in the allocator's arenas until the end of the run."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        if _trim is not None:
            _trim(0)


_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Of glibc; None elsewhere."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before fixtures, which would start the tool."""
    for mark in item.iter_markers("needs"):
        missing = complaint(mark.kwargs["tool"])
        if missing is not None:
            pytest.fail(missing, pytrace=False)

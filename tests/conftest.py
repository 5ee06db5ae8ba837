"""Profiles of hypothesis: every run takes its default, ``.ci/run deep`` the long one. ``make mutation`` takes one that
repeats its examples and does not shrink them. What hangs in a live test.

Tests marked ``needs(tool=...)`` fail where the tool is missing (``tests/support/live/tools.py``). Tests that share a
fixture of their module stay together where tests run side by side. Memory is given back early, and a live test that
leaves something open fails itself.
"""

import ctypes
import gc
import os
import resource
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import Phase, settings

from tests.support.live.tools import TOOLS, complaint

settings.register_profile("default", deadline=None)
settings.register_profile("deep", max_examples=2000, deadline=None)
settings.register_profile("mutation", deadline=None, derandomize=True, phases=(Phase.explicit, Phase.generate))
settings.load_profile("default")

GZIP, TIMELESS = r"\x1f\x8b\x08\x00", r"\x00\x00\x00\x00"
"""How gzip begins in the name of a test, and its time of writing if that is none: two processes of pytest-xdist must
collect the same names."""
EARLY_S = 25.0
"""Of ``early`` without a figure."""
HANGS_S = 300
"""The time limit of a live test ends one that hangs; it claims nothing, and on a busy machine all takes longer."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if GZIP in item.nodeid and GZIP + TIMELESS not in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid}: its name has the present second; gzip.compress(..., mtime=0)")
        for mark in item.iter_markers("needs"):
            if mark.args or set(mark.kwargs) != {"tool"} or mark.kwargs["tool"] not in TOOLS:
                raise pytest.UsageError(f"{item.nodeid}: needs(tool=...) with one of {', '.join(TOOLS)}; got {mark}")
        if item.get_closest_marker("live") is not None:
            if not _names("live", item.path):
                raise pytest.UsageError(
                    f"{item.path} names no pytest.mark.live, so `make test` would not find its tests"
                )
            own = item.get_closest_marker("timeout")
            if own is None or own.args[0] < HANGS_S:
                item.add_marker(pytest.mark.timeout(HANGS_S), append=False)
            # First, so that they end last: after all other fixtures of the test and of its module.
            cast(pytest.Function, item).fixturenames[:0] = ("leftovers_of_the_module", "leftovers")
    items.sort(key=lambda item: (-_early_s(item), not _is_piece_of_module(item), item.path.parts))


def _early_s(item: pytest.Item) -> float:
    """Returns how long the work takes that a test with the mark ``early`` belongs to; 0.0 without the mark."""
    mark = item.get_closest_marker("early")
    return 0.0 if mark is None else float(mark.args[0]) if mark.args else EARLY_S


def _is_piece_of_module(item: pytest.Item) -> bool:
    """Returns whether a live test stays together with the others of its module, which therefore takes long."""
    return item.get_closest_marker("live") is not None and _is_shared(item.path)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Where tests run side by side, each process begins to collect at another file of a folder: what one has compiled
    the others find, else a fresh clone's modules would be compiled in each of them."""
    report = yield
    if isinstance(collector, pytest.Directory) and (worker := os.environ.get("PYTEST_XDIST_WORKER")):
        workers = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        first = int(worker.removeprefix("gw")) * len(report.result) // workers
        report.result = report.result[first:] + report.result[:first]
    return report


@pytest.fixture
def leftovers() -> Iterator[None]:
    """Of each live test: what it left open to the collector, such as a socket, fails this test and not a later one."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def leftovers_of_the_module() -> Iterator[None]:
    """The same for what fixtures of the module left."""
    yield
    gc.collect()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadscope``: a module whose tests share something is one piece of work, every other test is one of
    its own."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler.loadscope import LoadScopeScheduling

    config.option.loadscopereorder = False  # The order of the collection: what takes longest begins first.

    class ByModule(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.partition("::")[0]
            return module if _is_shared(config.rootpath / module) else nodeid

        def _reschedule(self, node: Any) -> None:
            """Gives a process its next test while it runs one, and no more: else tests would wait behind a long one
            while other processes have nothing to do."""
            if not self.workqueue or self._pending_of(self.assigned_work[node]) < 2:
                super()._reschedule(node)

    return ByModule(config, log)


@cache
def _is_shared(module: Path) -> bool:
    """Returns whether tests of this file share a fixture of their module or the result of a function."""
    text = module.read_text(encoding="utf-8")
    return 'scope="module"' in text or "@cache" in text


def pytest_collection_finish() -> None:
    """What the collection has made stays until the end: the collector need not look at it again after every module."""
    gc.collect()
    gc.freeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run of live tests imports no module without one, a run of those alone none without one of these: each worker is
    spared 150 MB and some seconds."""
    wanted = str(config.getoption("markexpr"))
    if not wanted.startswith("live") or not collection_path.name.startswith("test_"):
        return None
    return None if _names("alone" if wanted.startswith("live and alone") else "live", collection_path) else True


@cache
def _names(mark: str, module: Path) -> bool:
    """Returns whether this file, or the ``conftest.py`` beside it, names the mark."""
    texts = (each.read_text(encoding="utf-8") for each in (module, module.with_name("conftest.py")) if each.exists())
    return any(f"pytest.mark.{mark}" in text for text in texts)


class _Memory:
    """Gives memory back after tests that took much of it: bodies of 20 MB, models, a thousand streams.

    A collection of everything takes some 50 ms, so it runs only when the process has grown by ``GROWTH_MB``.
    """

    GROWTH_MB = 60.0

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc; None elsewhere
        self._kept_mb = 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        if self._trim is not None and _resident_mb() > self._kept_mb + self.GROWTH_MB:
            gc.collect()
            self._trim(0)
            self._kept_mb = _resident_mb()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Memory(), "memory")


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before fixtures, which would start the tool."""
    for mark in item.iter_markers("needs"):
        missing = complaint(mark.kwargs["tool"])
        if missing is not None:
            pytest.fail(missing, pytrace=False)

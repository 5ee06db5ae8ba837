"""Runs a data-plane process: uvloop where it is installed, allocator and collector settings, self-test."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tidegate.aio.allocator import keep_memory
from tidegate.wire.http1 import grammar

T = TypeVar("T")

_STARTED_S = 1.0
"""After which what a process keeps for good has been made."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, or None (asyncio's own) where uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def quiet_collector() -> None:
    """Freezes what start-up made and lets the cyclic collector run rarely: no visible pauses under load."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs ``main`` to its end on the fastest loop there is.

    Raises RuntimeError when this interpreter's regex engine fails the self-test of the head grammar.
    """
    grammar.self_test()
    keep_memory()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        loop = runner.get_loop()
        loop.call_soon(quiet_collector)
        loop.call_later(_STARTED_S, gc.freeze)
        return runner.run(main)

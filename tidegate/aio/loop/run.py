"""Runs a data-plane process: uvloop where it is installed, allocator and collector settings, self-test."""

import asyncio
import ctypes
import gc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tidegate.wire.http1 import grammar

T = TypeVar("T")

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
"""Parameter numbers of mallopt(3), glibc <malloc.h>."""


_STARTED_S = 1.0
"""After which what a process keeps for good has been made."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, or None (asyncio's own) where uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def keep_memory() -> bool:
    """Stops glibc from giving read buffers back to the kernel after each large body; False on another libc.

    256 KB read buffers that are returned and faulted in again cost half of the CPU of large downloads. All three
    settings are needed: the trim threshold alone switches the dynamic mmap threshold off and makes it worse.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    mallopt(_M_TRIM_THRESHOLD, 256 << 20)
    mallopt(_M_TOP_PAD, 32 << 20)
    return True


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

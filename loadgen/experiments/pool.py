"""Calls of one function, in this process or in several; what is finished is yielded at once."""

import multiprocessing
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from tidegate.loadgen.experiments.outcome import ExperimentError

T = TypeVar("T")


def finished(
    function: Callable[..., T], calls: Sequence[tuple[Any, ...]], jobs: int
) -> Generator[tuple[int, T], None, None]:
    """Yields (index of the call, its result) as each call ends, by ``jobs`` processes. With one job calls run here, in
    order. The function and its arguments must be known by name in another process. Closing the generator ends the
    processes with what they do. Raises what a call raises, and ExperimentError if a process dies."""
    if jobs == 1:
        for index, arguments in enumerate(calls):
            yield index, function(*arguments)
        return
    others = multiprocessing.active_children()
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_leave_interrupts_to_the_parent)
    try:
        futures = {pool.submit(function, *arguments): index for index, arguments in enumerate(calls)}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise ExperimentError("a process that ran a seed has died; is there memory for so many jobs?") from error
    finally:
        # What is under way is worth nothing now, and nothing has to wait for it.
        for child in multiprocessing.active_children():
            if child not in others:
                child.terminate()
        pool.shutdown(cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

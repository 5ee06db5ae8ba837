"""Writes at the end of a turn of the loop: order, how many at once, when the outbox steps aside."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from tidegate.aio.loop.tasks import Report, report_to_stderr
from tidegate.aio.loop.writes import FEW, MANY, SAMPLED, Outbox


class Turn:
    """Stands for the loop: calls what was left for the end of the turn."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def end(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class Line:
    """A transport that writes down what it gets."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closing = False
        self.error: Exception | None = None

    def abort(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        assert not self.closing
        if self.error is not None:
            raise self.error
        self.written.append(data)


def made(report: Report = report_to_stderr) -> tuple[Turn, Outbox, Line, Callable[[int], None]]:
    turn, line = Turn(), Line()
    outbox = Outbox(cast(asyncio.AbstractEventLoop, turn), report)

    def write(count: int) -> None:
        for _ in range(count):
            outbox.write(cast(Any, line), b"x")

    return turn, outbox, line, write


def test_messages_of_a_turn_leave_at_its_end_and_at_most_so_many_wait() -> None:
    turn, _, line, write = made()
    write(MANY - 1)
    assert not line.written
    write(1)
    assert len(line.written) == MANY
    write(FEW)
    assert len(line.written) == MANY
    turn.end()
    assert len(line.written) == MANY + FEW
    write(1)
    assert len(line.written) == MANY + FEW, "the next turn waits again"
    assert len(turn.calls) == 1


def test_a_turn_of_few_messages_makes_it_step_aside_for_a_while() -> None:
    turn, _, line, write = made()
    write(FEW - 1)
    turn.end()
    assert len(line.written) == FEW - 1
    write(SAMPLED)
    assert len(line.written) == FEW - 1 + SAMPLED
    assert not turn.calls
    write(1)
    assert len(line.written) == FEW - 1 + SAMPLED, "it looks again"


def test_flush_keeps_the_order_and_does_not_hide_the_size_of_the_turn() -> None:
    turn, outbox, line, write = made()
    write(FEW)
    outbox.flush()
    line.write(b"next")
    assert line.written == [*[b"x"] * FEW, b"next"]
    turn.end()
    write(1)
    assert line.written[-1] == b"next", "a turn of that size waits again"


def test_a_connection_that_ended_meanwhile_is_passed_over() -> None:
    turn, outbox, line, write = made()
    other = Line()
    write(1)
    outbox.write(cast(Any, other), b"y")
    line.closing = True
    turn.end()
    assert (line.written, other.written) == ([], [b"y"])


@pytest.mark.parametrize("at", ["the end of the turn", "a flush", "the most that wait", "once"])
def test_a_write_that_raises_ends_its_connection_and_no_other(at: str) -> None:
    reported: list[tuple[str, BaseException]] = []
    turn, outbox, line, write = made(lambda name, error: reported.append((name, error)))
    broken = Line()
    broken.error = MemoryError()
    if at == "once":
        write(1)
        turn.end()
        del line.written[:]
    write(1)
    for _ in range(2):
        if not broken.closing:
            outbox.write(cast(Any, broken), b"y")
    write(MANY if at == "the most that wait" else FEW)
    if at == "a flush":
        outbox.flush()
    turn.end()
    assert len(line.written) == (MANY + 1 if at == "the most that wait" else FEW + 1)
    assert (reported, broken.closing, broken.written) == ([("write", broken.error)], True, [])
    write(1)
    turn.end()
    assert len(line.written) > FEW + 1, "the next turns are as before"

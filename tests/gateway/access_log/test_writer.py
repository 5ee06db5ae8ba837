"""The writer of the access log: its output takes lines in parts, or none."""

import os
import random
from collections.abc import Iterator

import pytest

from tests.support.worlds.access_lines import ended
from tidegate.gateway.access_log.lines import Lines
from tidegate.gateway.access_log.main import Writer
from tidegate.gateway.access_log.records import BATCH, BUFFERED_BYTES, AccessLog
from tidegate.gateway.beside.batches import SIZE_BYTES


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe that takes a page at once and makes no one wait: its two ends."""
    ends = os.pipe2(os.O_NONBLOCK)
    yield ends
    for each in ends:
        os.close(each)


def batch(first: int, count: int) -> bytes:
    """A batch of lines with these numbers as ids."""
    log = AccessLog(1.0, rng=random.Random(3), take=lambda log: None)
    for number in range(first, first + count):
        ex, state = ended()
        state.request_id = b"%06d" % number
        log.ended(ex, state)
    log.pack()
    return log.all()[1][SIZE_BYTES:]


def test_lines_that_are_written_in_parts_are_whole_and_counted_when_their_batch_is_written(
    pipe: tuple[int, int],
) -> None:
    source, sink = pipe
    writer = Writer(sink, Lines(as_json=False, offset=0.0))
    for first in range(0, 20 * BATCH, BATCH):
        writer.take(batch(first, BATCH))
    written, handled = b"", 0
    while writer.is_busy:
        writer.turn()
        assert writer.figures[0] % BATCH == 0 and writer.figures[0] >= handled
        handled = writer.figures[0]
        written += os.read(source, 1 << 20)
        assert written.count(b"\n") - BATCH < handled <= written.count(b"\n")
    assert writer.figures == (20 * BATCH, 0, None)
    assert [line.split()[1] for line in written.splitlines()] == [b"id=%06d" % number for number in range(20 * BATCH)]


def test_beyond_the_bound_lines_are_dropped_and_counted_and_the_fault_is_named(pipe: tuple[int, int]) -> None:
    source, sink = pipe
    writer = Writer(sink, Lines(as_json=False, offset=0.0))
    one, number = batch(0, BATCH), 0
    while not writer.figures[1]:
        writer.take(one)
        number += 1
        writer.turn()
    assert writer.figures[1:] == (BATCH, "Resource temporarily unavailable")
    written = b""
    while writer.is_busy:
        written += os.read(source, 1 << 20)
        writer.turn()
    written += os.read(source, 1 << 20)
    assert written.count(b"\n") == (number - 1) * BATCH
    assert BUFFERED_BYTES - len(written) // (number - 1) < len(written) < BUFFERED_BYTES + (1 << 17)
    assert writer.figures == (number * BATCH, BATCH, None)

"""What a worker keeps for the access log: its share, its batches, its bound."""

import random
from typing import Any

import msgspec
import pytest

from tests.support.worlds.access_lines import ended, lines_of
from tidegate.gateway.access_log.records import BATCH, BUFFERED_BYTES, LONG_BYTES, AccessLog, decode_batch
from tidegate.gateway.beside.batches import HANDED_BYTES, Batches, Frames


def log(sampling: float = 1.0) -> AccessLog:
    return AccessLog(sampling, rng=random.Random(3), take=lambda log: None)


@pytest.mark.parametrize("sampling", [0.1, 0.5])
def test_a_share_of_the_requests_gets_a_line(sampling: float) -> None:
    access = log(sampling)
    one = ended()
    for _ in range(4000):
        access.ended(*one)
    assert lines_of(access).count(b"\n") == pytest.approx(4000 * sampling, rel=0.15)


def test_much_is_handed_over_at_once_and_little_waits_for_the_sweep() -> None:
    taken: list[tuple[int, bytes]] = []

    def take(log: Batches[Any]) -> None:
        taken.append(log.all())

    access = AccessLog(1.0, rng=random.Random(3), take=take)
    one = ended()
    requests = 0
    while not taken:
        access.ended(*one)
        requests += 1
    ((lines, data),) = taken
    assert lines == requests and requests % BATCH == 0
    assert HANDED_BYTES <= len(data) < HANDED_BYTES * (1 + 2 * BATCH / requests)
    access.ended(*one)
    assert access.all() == (0, b"")
    access.pack()
    assert access.has_batches
    take(access)
    assert taken[-1][0] == 1


def test_batches_beyond_the_bound_are_dropped_and_counted_and_the_rest_is_kept_in_order() -> None:
    access = log()
    one = ended()
    for _ in range(BATCH):
        access.ended(*one)
    _, first = access.all()
    room = BUFFERED_BYTES // (len(first) - 4)
    for number in range((room + 2) * BATCH):
        one[1].request_id = b"%05d" % number
        access.ended(*one)
    assert access.dropped == 2 * BATCH
    found = lines_of(access).splitlines()
    assert [found[0].split()[1], found[-1].split()[1]] == [b"id=00000", b"id=%05d" % (room * BATCH - 1)]
    assert len(found) == room * BATCH
    one[1].request_id = b"later"
    access.ended(*one)
    assert lines_of(access).split()[1] == b"id=later"


@pytest.mark.parametrize("size", [LONG_BYTES + 1, 64 << 10, 1 << 20])
def test_long_targets_end_their_batches_so_that_no_line_is_lost_for_its_length(size: int) -> None:
    batches: list[int] = []

    def take(log: Batches[Any]) -> None:
        batches.append(len(log.all()[1]))

    access = AccessLog(1.0, rng=random.Random(3), take=take)
    one = ended()
    one[0].head.target = b"x" * size
    for _ in range(4 * BATCH):
        access.ended(*one)
    assert access.dropped == 0
    assert max(batches) < HANDED_BYTES + size + 1000


def test_a_batch_of_targets_that_do_not_end_it_has_half_of_the_room() -> None:
    access = log()
    one = ended()
    one[0].head.target = b"x" * LONG_BYTES
    for _ in range(BATCH):
        access.ended(*one)
    lines, data = access.all()
    assert lines == BATCH and len(data) < 0.6 * BUFFERED_BYTES


@pytest.mark.parametrize("size", [1, 3, 7, 1000, 100_000])
def test_batches_are_read_in_whatever_pieces_they_arrive(size: int) -> None:
    access = log()
    for number in range(2 * BATCH + 5):
        ex, state = ended(target=f"/items/{number}")
        access.ended(ex, state)
    access.pack()
    _, data = access.all()
    frames = Frames()
    found = [decode_batch(each) for at in range(0, len(data), size) for each in frames.feed(data[at : at + size])]
    assert [len(rows) for rows, _ in found] == [BATCH, BATCH, 5]
    lines = [row[2] for rows, _ in found for row in rows]
    assert lines == [f"POST /items/{number}" for number in range(2 * BATCH + 5)]


def test_bytes_that_are_no_batch_are_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_batch(b"\x91\x01")

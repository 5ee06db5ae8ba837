"""A stream by itself: its state, the bytes that wait, and its window."""

import pytest

from tidegate.wire.http2.limits import STREAM_WINDOW, Windows
from tidegate.wire.http2.streams import (
    BODY_DUE,
    CLOSED,
    ENDED,
    HALF_CLOSED_LOCAL,
    HALF_CLOSED_REMOTE,
    HEAD_DUE,
    OPEN,
    Stream,
)


def stream() -> Stream:
    return Stream(5, 100, STREAM_WINDOW, "owner")


def test_a_stream_begins_open_with_its_windows() -> None:
    made = stream()
    assert (made.number, made.owner, made.window, made.allowance, made.granted) == (5, "owner", 100, 65_536, 65_536)
    assert (made.receiving, made.sending, made.state) == (BODY_DUE, BODY_DUE, OPEN)
    assert (made.passed, made.owed, made.left, made.waiting, made.since, made.ended) == (0, 0, -1, 0, 0.0, 0.0)
    assert (made.lingers, made.closing, made.tail, made.lender) == (False, False, None, None)
    assert repr(made) == "<Stream 5 OPEN, 0 bytes wait for 100>"


@pytest.mark.parametrize(
    ("receiving", "sending", "state", "word"),
    [
        (HEAD_DUE, BODY_DUE, OPEN, "OPEN"),
        (BODY_DUE, HEAD_DUE, OPEN, "OPEN"),
        (ENDED, HEAD_DUE, HALF_CLOSED_REMOTE, "HALF_CLOSED_REMOTE"),
        (ENDED, BODY_DUE, HALF_CLOSED_REMOTE, "HALF_CLOSED_REMOTE"),
        (BODY_DUE, ENDED, HALF_CLOSED_LOCAL, "HALF_CLOSED_LOCAL"),
        (HEAD_DUE, ENDED, HALF_CLOSED_LOCAL, "HALF_CLOSED_LOCAL"),
        (ENDED, ENDED, CLOSED, "CLOSED"),
    ],
)
def test_the_state_follows_from_both_directions(receiving: int, sending: int, state: int, word: str) -> None:
    made = stream()
    made.receiving, made.sending = receiving, sending
    assert made.state == state
    assert word in repr(made)


@pytest.mark.parametrize("sizes", [[1], [1, 1, 1], [4095, 1], [4094, 1, 1], [5000, 1, 4095, 4096], [1] * 5000])
@pytest.mark.parametrize("limit", [1, 7, 4096, 100_000])
def test_what_waits_is_taken_in_order_up_to_a_limit(limit: int, sizes: list[int]) -> None:
    made, whole = stream(), b""
    for number, size in enumerate(sizes):
        piece = bytes((number % 251,)) * size
        made.wait(piece)
        whole += piece
        assert made.waiting == len(whole)
    taken = []
    while made.waiting:
        taken.append(made.take(limit))
        assert made.waiting == len(whole) - sum(map(len, taken))
    assert b"".join(taken) == whole
    assert all(0 < len(piece) <= limit for piece in taken)
    with pytest.raises(RuntimeError, match="nothing waits on <Stream 5 OPEN"):
        made.take(limit)


@pytest.mark.parametrize(("sizes", "pieces"), [([1, 1], 1), ([4094, 1], 1), ([4095, 1], 2), ([1, 5000, 1], 3)])
def test_small_pieces_are_joined_below_4_kb(sizes: list[int], pieces: int) -> None:
    made = stream()
    for size in sizes:
        made.wait(bytes(size))
    taken = 0
    while made.waiting:
        made.take(1 << 20)
        taken += 1
    assert taken == pieces


def test_what_comes_while_a_piece_is_half_taken_follows_it() -> None:
    made = stream()
    made.wait(b"abcdef")
    assert made.take(2) == b"ab"
    made.wait(b"gh")
    assert (made.take(4), made.take(9), made.waiting) == (b"cdef", b"gh", 0)


def test_a_window_is_widened_from_a_budget_that_comes_back() -> None:
    made, windows = stream(), Windows(3 * STREAM_WINDOW)
    assert made.widen(2 * STREAM_WINDOW, windows) == STREAM_WINDOW
    assert (made.granted, windows.left) == (2 * STREAM_WINDOW, 2 * STREAM_WINDOW)
    assert made.widen(4 * STREAM_WINDOW + 1, windows) == 0
    assert (made.granted, windows.left) == (2 * STREAM_WINDOW, 2 * STREAM_WINDOW)
    assert made.widen(4 * STREAM_WINDOW, windows) == 2 * STREAM_WINDOW
    assert windows.left == 0
    made.wait(b"x")
    made.drop()
    assert (windows.left, made.lender, made.waiting, made.state) == (3 * STREAM_WINDOW, None, 0, CLOSED)
    made.drop()
    assert windows.left == 3 * STREAM_WINDOW


@pytest.mark.parametrize(
    ("owed", "granted"),
    [
        (1, STREAM_WINDOW),
        ((1 << 17) - 1, STREAM_WINDOW),
        (1 << 17, 1 << 18),
        ((1 << 19) - 1, 1 << 18),
        (1 << 19, 1 << 20),
        (1 << 21, 1 << 20),
    ],
)
def test_a_window_grows_with_what_was_consumed(owed: int, granted: int) -> None:
    made, windows = stream(), Windows(1 << 22)
    made.owed, wider = owed, granted - STREAM_WINDOW
    assert made.renew(windows) == owed + wider
    assert (made.granted, made.owed, made.passed) == (granted, 0, owed)
    assert (made.allowance, windows.left) == (STREAM_WINDOW + owed + wider, (1 << 22) - wider)
    assert made.renew(windows) == 0, "it has grown once"
    assert (made.granted, made.passed, windows.left) == (granted, owed, (1 << 22) - wider)


@pytest.mark.parametrize(
    ("budget", "granted"),
    [
        ((1 << 18) - STREAM_WINDOW - 1, STREAM_WINDOW),
        ((1 << 18) - STREAM_WINDOW, 1 << 18),
        ((1 << 20) - STREAM_WINDOW - 1, 1 << 18),
        ((1 << 20) - STREAM_WINDOW, 1 << 20),
    ],
)
def test_a_window_grows_as_far_as_the_budget_allows(budget: int, granted: int) -> None:
    made, windows = stream(), Windows(budget)
    made.owed = 1 << 19
    assert made.renew(windows) == (1 << 19) + granted - STREAM_WINDOW
    assert (made.granted, windows.left) == (granted, budget - (granted - STREAM_WINDOW))
    made.drop()
    assert windows.left == budget


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_a_piece_is_taken_up_to_its_last_byte(limit: int) -> None:
    made = stream()
    made.wait(b"abc")
    taken = made.take(limit)
    assert (taken, made.waiting) == (b"abc"[:limit], max(0, 3 - limit))
    if limit >= 3:
        with pytest.raises(RuntimeError):
            made.take(1)
        made.wait(b"d")
        assert made.take(9) == b"d"

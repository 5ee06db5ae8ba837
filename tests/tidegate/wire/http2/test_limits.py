"""The limits of a connection: a token bucket, and the budget of wider windows."""

import pytest

from tidegate.wire.http2 import header_blocks, limits
from tidegate.wire.http2.limits import Allowance, Windows


def test_a_burst_then_a_rate() -> None:
    allowance = Allowance(2.0, 3.0)
    assert [allowance.take(10.0) for _ in range(4)] == [True, True, True, False]
    assert [allowance.take(10.5) for _ in range(2)] == [False, False], "what was refused is owed"
    assert allowance.level == -2.0
    assert allowance.take(12.0)
    assert allowance.level == 0.0
    assert [allowance.take(1000.0) for _ in range(4)] == [True, True, True, False], "no more than the burst is saved"


def test_the_first_second_gives_no_more_than_the_burst() -> None:
    allowance = Allowance(1000.0, 1.0)
    assert (allowance.take(1e9), allowance.take(1e9)) == (True, False)


def test_a_peer_that_opens_all_streams_and_closes_them_twice_is_within_its_resets() -> None:
    allowance = Allowance(limits.RESET_RATE, limits.RESET_BURST)
    assert all(allowance.take(0.0) for _ in range(2 * limits.STREAMS))
    assert not allowance.take(0.0)


def test_wider_windows_have_a_budget() -> None:
    assert Windows().left == limits.WIDE_BYTES == 32 * 1024 * 1024
    assert repr(Windows(5)) == "<Windows 5 bytes left>"
    assert list(limits.WIDER_WINDOWS) == sorted(limits.WIDER_WINDOWS)
    assert all(consumed < window for consumed, window in limits.WIDER_WINDOWS)
    assert limits.STREAM_WINDOW == 65_536


def test_the_limits_are_those_of_the_page_about_the_data_plane() -> None:
    assert (limits.STREAMS, header_blocks.LIST_BYTES, limits.BLOCK_BYTES) == (100, 16_384, 65_536)
    assert (limits.RESET_RATE, limits.RESET_BURST) == (100.0, 200.0)
    assert (limits.CONTROL_RATE, limits.CONTROL_BURST) == (200.0, 1000.0)
    assert limits.WIDER_WINDOWS == ((131_072, 262_144), (524_288, 1_048_576))
    assert (limits.FRAME_BYTES, limits.TRUSTED) == (262_144, 1000.0)


@pytest.mark.parametrize("waited", [0.0, 0.25, 0.5, 1.0, 1.5])
def test_an_allowance_refills_with_the_time_that_passes(waited: float) -> None:
    allowance = Allowance(4.0, 6.0)
    for _ in range(6):
        assert allowance.take(7.0)
    assert allowance.take(7.0 + waited) == (waited > 0.0)
    assert allowance.level == min(6.0, 4.0 * waited) - 1.0

"""Deadlines as clients write them."""

import pytest

from tidegate.headers import TimeoutFieldError, read_timeout_s


@pytest.mark.parametrize(
    ("ours", "grpc", "seconds"),
    [
        (b"1500", None, 1.5),
        (b"0", b"5S", 0.0),
        (None, b"5S", 5.0),
        (None, b"2H", 7200.0),
        (None, b"3M", 180.0),
        (None, b"250m", 0.25),
        (None, b"500u", 0.0005),
        (None, b"1000n", 0.000001),
        (None, None, None),
    ],
)
def test_timeouts(ours: bytes | None, grpc: bytes | None, seconds: float | None) -> None:
    assert read_timeout_s(ours, grpc) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("ours", "grpc"),
    [(b"", None), (b"-1", None), (b"+5", None), (b"1.5", None), (b"\xb2", None), (None, b"5"), (None, b"123456789S")],
)
def test_nonsense_is_reported_not_guessed(ours: bytes | None, grpc: bytes | None) -> None:
    with pytest.raises(TimeoutFieldError):
        read_timeout_s(ours, grpc)

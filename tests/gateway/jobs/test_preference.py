"""The Prefer fields of a request (RFC 7240)."""

import time

import pytest

from tidegate.gateway.jobs.preference import Preference, read_preference


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (b"", Preference(False, 0.0)),
        (b"prefer: respond-async\r\n", Preference(True, 0.0)),
        (b"host: a\r\nPREFER:RESPOND-ASYNC,wait=10\r\n", Preference(True, 10.0)),
        (b"prefer: wait=3\r\nx: y\r\nPrefer: respond-async; because=why\r\n", Preference(True, 3.0)),
        (b'prefer: wait="7", respond-async=""\r\n', Preference(True, 7.0)),
        (b"prefer: respond-async, wait=1, wait=9\r\n", Preference(True, 1.0)),
        (b"prefer: respond-async, wait=soon\r\n", Preference(True, 0.0)),
        (b"prefer: respond-async, wait=-1\r\n", Preference(True, 0.0)),
        (b'prefer: return="a, respond-async"\r\n', Preference(False, 0.0)),
        (b"prefer: return=minimal\r\nprefer-not: respond-async\r\n", Preference(False, 0.0)),
        (b"x: prefer: respond-async\r\n", Preference(False, 0.0)),
    ],
)
def test_it_is_read_as_the_rfc_says(fields: bytes, expected: Preference) -> None:
    assert read_preference(fields) == expected


def test_no_field_takes_long_to_read() -> None:
    begun = time.process_time()
    read_preference(b'prefer: "' + b'\\"' * 8000 + b"\r\nprefer: " + b'"\\' * 8000 + b"\r\n")
    assert time.process_time() - begun < 0.5

"""The hostile HTTP/2 corpus against the engines: every case that says something of them without sockets and timers."""

import pytest

from tests.support.h2_hostile import Case, load, run

NEEDS_DRIVER = {
    "preface_partial_then_silence": "the head's time limit (Engine.is_head_due says that it runs)",
    "preface_slow_header_block": "the head's time limit",
    "preface_idle_connection": "the idle time limit",
    "window_slow_reader": "a socket that is not read (Engine.pause and resume)",
    "grpc_timeout_backend_hangs": "the deadline of a call",
}
"""Cases whose outcome a driver decides, and by what."""

CASES = load()


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["name"] not in NEEDS_DRIVER], ids=lambda case: str(case["name"])
)
def test_every_case_ends_in_a_permitted_outcome(case: Case) -> None:
    assert run(case) == []


def test_the_cases_that_need_a_driver_are_in_the_corpus() -> None:
    assert NEEDS_DRIVER.keys() <= {case["name"] for case in CASES}

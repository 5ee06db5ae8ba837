"""The hostile HTTP/2 corpora against the engines: every case that concerns them without sockets and timers."""

import pytest

from tests.support.http2.hostile import CORPUS, OWN, Case, load, run

NEEDS_DRIVER = {
    "preface_partial_then_silence": "the head's time limit (Engine.is_head_due says that it runs)",
    "preface_slow_header_block": "the head's time limit",
    "preface_idle_connection": "the idle time limit",
    "window_slow_reader": "a socket that is not read (Engine.pause and resume)",
    "grpc_timeout_backend_hangs": "the deadline of a call",
    "preface_only_then_silence": "the head's time limit",
    "preface_with_half_frame_head": "the head's time limit",
    "preface_half_headers_frame_silence": "the head's time limit",
    "cont_flood_on_other_connection": "the head's time limit, and a second connection",
    "hdr_connect_with_path": "the grammar of HTTP/1, in which it would go on",
    "grpc_timeout_twice": "the deadline of a call",
    "grpc_no_internal_fields": "which fields are dropped",
    "h1_then_preface": "HTTP/1 on the same port",
}
"""Cases with an outcome that a driver decides, and the reason."""

CASES = load(CORPUS) + load(OWN)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case["name"] not in NEEDS_DRIVER], ids=lambda case: str(case["name"])
)
def test_every_case_ends_in_a_permitted_outcome(case: Case) -> None:
    assert run(case) == []


def test_the_cases_that_need_a_driver_are_in_the_corpus() -> None:
    assert NEEDS_DRIVER.keys() <= {case["name"] for case in CASES}

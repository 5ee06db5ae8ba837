"""Codes that work once, and sessions that end."""

from itertools import count

import pytest

from tidegate.clock import ManualClock
from tidegate.control.api.sessions import CODE_S, MAX_CODES, SESSION_S, Sessions, may


def made(clock: ManualClock, token: str = "token") -> Sessions:
    drawn = count()
    return Sessions(token, clock.now, lambda: f"code-{next(drawn)}")


def test_a_code_is_exchanged_once_and_in_time() -> None:
    clock = ManualClock(1_000.0)
    sessions = made(clock)
    code = sessions.code().secret
    session = sessions.redeem(code)
    assert session is not None and sessions.is_valid(session.secret)
    assert sessions.redeem(code) is None
    late = sessions.code()
    clock.advance(CODE_S + 1.0)
    assert sessions.redeem(late.secret) is None
    assert sessions.redeem("unknown") is None


def test_a_session_ends_and_survives_the_control_process_but_not_its_token() -> None:
    clock = ManualClock(1_000.0)
    session = made(clock).begin().secret
    assert made(clock).is_valid(session)
    assert not made(clock, "another").is_valid(session)
    clock.advance(SESSION_S)
    assert not made(clock).is_valid(session)


@pytest.mark.parametrize("change", ["longer", "signature", "kind", "empty", "digits", "letters"])
def test_a_session_that_was_changed_is_none(change: str) -> None:
    sessions = made(ManualClock(1_000.0))
    kind, ends, signature = sessions.begin().secret.split(".")
    assert sessions.is_valid(f"{kind}.{ends}.{signature}")
    wrong = {
        "longer": f"{kind}.{int(ends) + 1}.{signature}",
        "signature": f"{kind}.{ends}.{signature[:-1]}x",
        "kind": f"other.{ends}.{signature}",
        "empty": "",
        "digits": f"{kind}.²{ends}.{signature}",
        "letters": f"{kind}.{ends}.\xe9",
    }
    assert not sessions.is_valid(wrong[change])


def test_codes_that_nothing_uses_are_bounded_and_the_newest_stay() -> None:
    sessions = made(ManualClock(1_000.0))
    codes = [sessions.code().secret for _ in range(MAX_CODES + 1)]
    assert sessions.redeem(codes[0]) is None
    assert sessions.redeem(codes[-1]) is not None


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/console/data/overview", True),
        ("GET", "/console/data/functions/echo", True),
        ("GET", "/api/v1/functions/echo/logs", True),
        ("POST", "/api/v1/functions/echo/rollout", True),
        ("POST", "/api/v1/functions/echo/rollback", True),
        ("POST", "/api/v1/functions", False),
        ("POST", "/api/v1/shutdown", False),
        ("DELETE", "/api/v1/functions/echo", False),
        ("GET", "/api/v1/functions/echo/manifest", False),
        ("PUT", "/api/v1/functions/echo/traffic", False),
        ("POST", "/console/code", False),
        ("GET", "/metrics", False),
    ],
)
def test_a_session_may_do_what_the_pages_do(method: str, path: str, allowed: bool) -> None:
    assert may(method, path) is allowed

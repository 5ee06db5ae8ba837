"""Calls without a client: their slots, and the moment at which their server counts as unresponsive."""

from tidegate.queue_proxy.held_calls import HeldCall, HeldCalls


class World:
    """Held calls that note the releases of their slots."""

    def __init__(self) -> None:
        self.held = HeldCalls()
        self.released: list[str] = []

    def add(self, name: str, now: float) -> HeldCall:
        call = HeldCall()
        self.held.add(call, lambda: self.released.append(name), now)
        return call


def test_the_surplus_over_what_the_server_reports_is_released_oldest_first() -> None:
    at = World()
    at.add("a", 1.0)
    at.add("b", 2.0)
    asked = at.held.calls()
    at.add("c", 2.5)
    at.held.reported(1, asked)
    assert at.released == ["a"], "c came after the question"
    assert (at.held.count, at.held.oldest_s(4.0)) == (2, 2.0)
    at.held.reported(5, at.held.calls())
    assert at.released == ["a"], "calls of another proxy are no surplus"
    at.held.reported(0, at.held.calls())
    assert at.released == ["a", "b", "c"]


def test_an_end_that_the_connection_shows_releases_once() -> None:
    at = World()
    call = at.add("a", 1.0)
    at.held.end(call)
    at.held.end(call)
    assert at.released == ["a"]
    assert at.held.oldest_s(9.0) == 0.0


def test_a_server_is_unresponsive_when_a_call_goes_on_and_nothing_else_ends() -> None:
    at = World()
    assert not at.held.is_unresponsive(7, 0.0, 30.0), "nothing is held"
    at.add("a", 10.0)
    assert not at.held.is_unresponsive(7, 39.0, 30.0)
    assert not at.held.is_unresponsive(8, 40.0, 30.0), "another request has ended: one slot is lost, not the server"
    assert not at.held.is_unresponsive(8, 69.0, 30.0)
    assert at.held.is_unresponsive(8, 70.0, 30.0)
    assert not at.held.is_unresponsive(8, 700.0, None), "switched off"


def test_a_quiet_time_before_the_call_does_not_count() -> None:
    at = World()
    at.held.is_unresponsive(7, 0.0, 30.0)
    at.add("a", 100.0)
    assert not at.held.is_unresponsive(7, 129.0, 30.0)
    assert at.held.is_unresponsive(7, 130.0, 30.0)

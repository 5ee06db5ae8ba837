"""Which requests are sampled, and what is kept of them; a function that samples nothing is left alone."""

from typing import Any

import pytest

from tests.support.worlds.gateway_chain import ONE, TWO, Door, table
from tidegate.gateway.payloads import sampler
from tidegate.gateway.payloads.events import Payload
from tidegate.records.payload_rules import PayloadRules

KEEP = ("tidegate-credit: keep",)
JSON = "content-type: application/json"


class World(Door):
    """A gateway whose function samples; ``pairs`` are the events of its requests."""

    def __init__(self, percent: float = 100.0, max_bytes: int = 64, **fields: Any) -> None:
        self.pairs: list[tuple[Payload, Payload]] = []
        rules = PayloadRules(percent=percent, max_bytes=max_bytes) if percent else None
        super().__init__(table(1, ONE, TWO, payload=rules, **fields), put_payloads=self.pairs.append)


def test_a_sampled_request_and_its_answer_are_two_events_with_one_id() -> None:
    world = World()
    world.ready(ONE, 1)
    asked = world.arrive("POST /v2/models/m/infer", "x-request-id: i-1", JSON, body=b'{"a":1}')
    world.now += 0.05
    asked.gets_answer(world.now, 200, *KEEP, JSON, body=b'{"b":2}')
    ((request, response),) = world.pairs
    assert (request.kind, request.request_id, request.data, request.size) == ("request", "i-1", b'{"a":1}', 7)
    assert (response.kind, response.request_id, response.data, response.size) == ("response", "i-1", b'{"b":2}', 7)
    assert (request.content_type, response.content_type) == ("application/json", "application/json")
    assert (request.status, response.status) == (None, 200)
    assert (request.function, request.revision, request.replica) == ("f", "f-00001", ONE.id)
    assert response.at - request.at == pytest.approx(0.05)


def test_bodies_are_cut_at_the_bound_and_their_size_is_known() -> None:
    world = World(max_bytes=4)
    world.ready(ONE, 1)
    asked = world.arrive(body=b"123456")
    asked.gets_answer(world.now, 200, *KEEP, length=None, body=b"abcdefgh", ends=False)
    asked.tap(b"ijklmnop")
    asked.ends(world.now)
    ((request, response),) = world.pairs
    assert (request.data, request.size, response.data, response.size) == (b"1234", 6, b"abcd", 16)


def test_the_share_of_sampled_requests_is_the_functions() -> None:
    world = World(percent=20.0)
    world.ready(ONE, *range(1, 1001))
    for _ in range(1000):
        world.arrive().gets_answer(world.now, 200, *KEEP)
    assert 140 < len(world.pairs) < 260
    assert not world.core.payloads.has_open


def test_a_function_that_samples_nothing_is_not_followed() -> None:
    world = World(percent=0.0)
    world.ready(ONE, 1)
    asked = world.arrive()
    assert asked.context.exchange is None
    asked.gets_answer(world.now, 200, *KEEP)
    assert world.pairs == []


def test_a_client_that_leaves_is_an_answer_with_its_status() -> None:
    world = World()
    world.ready(ONE, 1)
    world.arrive(body=b"12").client_leaves(world.now)
    ((request, response),) = world.pairs
    assert (request.data, response.status, response.data) == (b"12", 499, b"")
    assert not world.core.payloads.has_open


def test_a_request_that_is_sent_again_is_sampled_once_with_the_answer_that_its_client_gets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampler, "ALL_BYTES", 2 * 64)  # Room for one request at a time.
    world = World(idempotent=True)
    for number in (1, 2):
        world.ready(ONE, number)
        asked = world.arrive(body=b"12")
        world.ready(TWO, number)
        asked.breaks_off(world.now, sent=True)
        asked.gets_answer(world.now, 200, *KEEP, body=b"34")
    assert [(request.replica, response.data) for request, response in world.pairs] == [(TWO.id, b"34")] * 2
    assert world.core.payloads.dropped == 0


def test_beyond_the_bound_events_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "MAX_OPEN", 2)
    world = World()
    world.ready(ONE, 1, 2, 3)
    asked = [world.arrive() for _ in range(3)]
    assert world.core.payloads.dropped == 2
    for each in asked:
        each.gets_answer(world.now, 200, *KEEP)
    assert len(world.pairs) == 2

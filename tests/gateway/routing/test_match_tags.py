"""A client that names a tag gets that revision, whatever the percentages are."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.worlds.fake_exchange import FakeExchange, request
from tests.support.worlds.gateway_chain import ONE, Door, table
from tidegate.records.route_table import GroupRoute, ReplicaRoute, RevisionRoute, RouteTable

BLUE = ReplicaRoute(id="f-00002-aaaaa", address="10.0.0.9:1")


def tagged(
    number: int = 1, *blue: ReplicaRoute, tags: tuple[str, ...] = ("blue", "next"), **settings: Any
) -> RouteTable:
    """``f`` with all traffic on its first revision, and a second one that has tags and no traffic."""
    routes = table(number, ONE, **settings)
    (route,) = routes.functions
    group = GroupRoute(accelerator="cpu", weight=1.0, replicas=blue)
    second = RevisionRoute(id="f-00002", percent=0.0, tags=tags, groups=(group,))
    return _with(routes, (*route.revisions, second))


def _with(routes: RouteTable, revisions: tuple[RevisionRoute, ...]) -> RouteTable:
    return replace(routes, functions=(replace(routes.functions[0], revisions=revisions),))


def ask(door: Door, host: str, *fields: str, line: str = "POST /v2/models/m/infer") -> FakeExchange:
    lines = "".join(f"{field}\r\n" for field in fields)
    head = request(f"{line} HTTP/1.1\r\nHost: {host}\r\n{lines}content-length: 2\r\n\r\n")
    return FakeExchange(door.chain, head, b"{}", complete=True, now=door.now).start()


@pytest.mark.parametrize(("host", "field"), [("blue-f.localhost", ""), ("127.0.0.1", "Tidegate-Tag: BLUE")])
def test_a_tag_chooses_the_revision_and_wakes_it_from_zero(host: str, field: str) -> None:
    door = Door(tagged())
    door.ready(ONE, 1)
    asked = ask(door, host, *([field] if field else []))
    assert (asked.log, door.activations()) == ([], [1]), "it waits for its own revision, though another is ready"
    assert door.core.apply(tagged(2, BLUE))
    door.ready(BLUE, 7)
    assert asked.log == ["to 10.0.0.9:1"]
    assert b"tag" not in asked.head.fields.lower(), "the field goes no further"
    assert door.arrive().log == ["to 10.0.0.1:1"]


def test_an_unknown_tag_is_reported_with_those_that_there_are() -> None:
    door = Door(tagged())
    by_host, by_field = ask(door, "green-f.localhost"), ask(door, "f.localhost", "tidegate-tag: green")
    for asked in (by_host, by_field):
        assert asked.status == 404
        assert asked.error["code"] == "tag_not_found"
        assert asked.error["error"] == "f has no tag 'green'; its tags: blue, next", "as V2 clients read it"
    plain = ask(door, "f.localhost", "tidegate-tag: green", line="POST /predict")
    assert plain.error["error"]["code"] == "tag_not_found"
    assert ask(door, "green-g.localhost").error["code"] == "function_not_found"


def test_a_tag_of_a_function_without_tags_is_not_passed_over() -> None:
    door = Door(table(1, ONE))
    asked = ask(door, "f.localhost", "tidegate-tag: blue")
    assert (asked.status, asked.error["error"]) == (404, "f has no tag 'blue'; its tags: none")
    assert ask(door, "blue-f.localhost").error["code"] == "function_not_found"


def test_a_function_whose_name_reads_like_a_tag_comes_first() -> None:
    other = table(1, ReplicaRoute(id="blue-f-00001-a", address="10.0.0.3:1"), name="blue-f", models=("other",))
    routes = tagged()
    named = replace(other.functions[0], revisions=(replace(other.functions[0].revisions[0], id="blue-f-00001"),))
    door = Door(replace(routes, functions=(*routes.functions, named)))
    ask(door, "blue-f.localhost")
    assert {demand.revision for demand in door.report.demands(lambda _: None)} == {"blue-f-00001"}


def test_health_of_a_tag_is_that_of_its_revision() -> None:
    routes = tagged()
    first, second = routes.functions[0].revisions
    door = Door(_with(routes, (first, replace(second, failure="it does not start"))))
    ready = ask(door, "f.localhost", line="GET /v2/health/ready")
    assert ready.status == 200
    assert ask(door, "blue-f.localhost", line="GET /v2/health/ready").status == 503
    assert ask(door, "f.localhost", "tidegate-tag: blue", line="GET /v2/health/ready").status == 503
    assert ask(door, "f.localhost", "tidegate-tag: green", line="GET /v2/health/ready").status == 404
    assert door.activations() == []


def test_who_waits_for_a_tag_is_served_by_its_revision_or_reported_never_by_another() -> None:
    door = Door(tagged(queue_requests=10))
    door.ready(ONE, 1, 2)
    asked = ask(door, "blue-f.localhost")
    assert door.core.apply(tagged(2, queue_requests=10))
    assert asked.log == [], "another revision has a free slot"
    assert door.core.apply(table(3, ONE, queue_requests=10))
    assert asked.log == ["answer 503"]
    assert (asked.error["code"], asked.error["executed"]) == ("not_servable", "false")


def test_a_candidate_without_replicas_has_its_part_wait_and_is_woken_whatever_is_free_elsewhere() -> None:
    routes = table(1, ONE, queue_requests=100)
    first = replace(routes.functions[0].revisions[0], percent=90.0)
    door = Door(_with(routes, (first, RevisionRoute(id="f-00002", percent=10.0))))
    door.ready(ONE, 1)
    waiting = 0
    for _ in range(100):
        asked = door.arrive()
        if asked.log:
            asked.gets_answer(door.now, 200, "tidegate-credit: keep")
        else:
            waiting += 1
    assert waiting == pytest.approx(10, abs=1), "never bent by what is free"
    counts = door.core.room.counts("f-00002", door.now)
    assert counts is not None
    assert counts.waiting == waiting
    assert door.activations() == [1]

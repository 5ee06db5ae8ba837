"""Tenants take turns at the gateway's slots, by the cost of their requests; the room's own tests cover the rest."""

import json
from dataclasses import replace
from typing import Any

from tests.support.worlds.fake_exchange import FakeExchange
from tests.support.worlds.gateway_chain import ONE, Door, table
from tidegate.records.route_table import RouteTable
from tidegate.records.tenants import AccessRule, Tenant, digest

LARGE, SMALL = "tg-key-of-the-large-tenant", "tg-key-of-the-small-tenant"


def shared(**settings: Any) -> RouteTable:
    """One function with one slot and two tenants of equal weight."""
    tenants = (
        Tenant(name="large", keys=(digest(LARGE.encode()),)),
        Tenant(name="small", keys=(digest(SMALL.encode()),)),
    )
    known: dict[str, Any] = {"access": AccessRule(api_keys=True), "queue_requests": 8, "models": ("m",)}
    return replace(table(1, ONE, **(known | settings)), tenants=tenants)


def opened(**settings: Any) -> Door:
    found = Door(shared(**settings))
    found.arrive("GET /functions/f/x", f"x-api-key: {LARGE}").client_leaves(found.now)
    found.ready(ONE, 1)
    return found


def infer(found: Door, key: str, inferences: int) -> FakeExchange:
    shape = b'{"inputs":[{"name":"x","shape":[%d,3],"datatype":"FP32","data":[]}]}' % inferences
    return found.arrive("POST /v2/models/m/infer", f"x-api-key: {key}", body=shape)


def chat(found: Door, key: str, words: int) -> FakeExchange:
    body = {"model": "m", "messages": [{"role": "user", "content": "word " * words}], "max_tokens": 1}
    fields = (f"x-api-key: {key}", "content-type: application/json")
    return found.arrive("POST /functions/f/v1/chat/completions", *fields, body=json.dumps(body).encode())


def answer(found: Door, running: FakeExchange, tokens: int = 0) -> None:
    """The replica answers, and keeps the credit here; a chat's answer says how many tokens it took."""
    usage = {"usage": {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}}
    body = json.dumps(usage).encode() if tokens else b""
    fields = ("content-type: application/json", "tidegate-credit: keep")
    running.gets_answer(found.now, 200, *fields, length=len(body), body=body)


def next_of(waiting: dict[str, FakeExchange]) -> str:
    """Returns the request that has got the slot; it waits no more."""
    (name,) = (name for name, each in waiting.items() if each.log)
    return name


def test_turns_go_by_inferences_where_no_tokens_are_counted() -> None:
    found = opened(queue_requests=20)
    running = infer(found, LARGE, 20)
    waiting = {f"L{number}": infer(found, LARGE, 20) for number in range(2)}
    waiting |= {f"s{number}": infer(found, SMALL, 5) for number in range(6)}
    assert running.log and not any(each.log for each in waiting.values())
    order = ""
    while waiting:
        answer(found, running)
        name = next_of(waiting)
        running = waiting.pop(name)
        order += name[0]
    assert order == "LssssLss"


def test_turns_go_by_the_tokens_that_are_expected_and_then_by_those_that_were_reported() -> None:
    found = opened(queue_requests=20, protocol="openai")
    running = chat(found, LARGE, 100)
    waiting = {}
    for number in range(5):
        waiting[f"L{number}"] = chat(found, LARGE, 100)
        waiting[f"s{number}"] = chat(found, SMALL, 100)
    order = ""
    took = {"L0": 500}
    """The first one takes some four times what its prompt looked like; the others what was expected."""
    name = ""
    while waiting:
        answer(found, running, took.get(name, 130))
        name = next_of(waiting)
        running = waiting.pop(name)
        order += name[0]
    assert order == "LssssLsLLL"


def test_who_finds_the_room_full_of_anothers_requests_gets_a_place() -> None:
    found = opened(queue_requests=4)
    infer(found, LARGE, 1)
    crowd = [infer(found, LARGE, 1) for _ in range(4)]
    small = infer(found, SMALL, 1)
    assert not small.log
    assert [each.log for each in crowd] == [[], [], [], ["answer 429"]]
    assert crowd[3].error["code"] == "queue_full" and b"retry-after" in crowd[3].extra
    assert infer(found, LARGE, 1).log == ["answer 429"]
    assert found.demand().refused == 2


def test_what_a_model_server_rejects_takes_its_turn_as_well() -> None:
    """No usage is reported for it, but it took the slot: otherwise a client that sends nonsense would always go
    first."""
    found = opened(queue_requests=20, protocol="openai")
    running = chat(found, LARGE, 100)
    waiting = {f"L{number}": chat(found, LARGE, 100) for number in range(8)}
    waiting |= {f"s{number}": chat(found, SMALL, 100) for number in range(4)}
    order, name = "", "L"
    while waiting:
        if name[0] == "L":
            running.gets_answer(found.now, 400, "content-type: application/json", "tidegate-credit: keep", length=0)
        else:
            answer(found, running, 130)
        name = next_of(waiting)
        running = waiting.pop(name)
        order += name[0]
    assert order.rindex("s") <= 8, order

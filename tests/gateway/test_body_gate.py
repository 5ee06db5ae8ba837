"""A request takes a slot when its body is there: until then it is nowhere, however slowly its client sends."""

import gzip
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.support.http2.grpc_client import framed
from tests.support.worlds.fake_exchange import FakeExchange
from tests.support.worlds.fake_grpc_call import INFER, call
from tests.support.worlds.gateway_chain import ONE, TWO, Door, table
from tidegate.aio.proxy.exchange import KEPT_BYTES, BodyBudget
from tidegate.records.route_table import RevisionRoute
from tidegate.records.tenants import AccessRule, Tenant, digest
from tidegate.wire.http2.limits import STREAM_WINDOW

BODY = b'{"inputs":[{"name":"x","shape":[8,3],"datatype":"FP32","data":[]}]}'
SENT = ["to 10.0.0.1:1"]


def awake(**settings: Any) -> Door:
    door = Door(table(1, ONE, **settings))
    door.ready(ONE, 1, 2, 3)
    return door


def begun(door: Door, *fields: str, body: bytes = b"{", size: int = 1 << 20) -> FakeExchange:
    """A request of which ``body`` has come so far."""
    return door.arrive("POST /v2/models/m/infer", f"x-size: {size}", *fields, body=body, complete=False)


def counted(door: Door) -> int:
    return sum(demand.arrivals for demand in door.report.demands(lambda revision: None))


def test_bodies_that_drip_take_no_slot_start_no_replica_and_count_nowhere() -> None:
    asleep = Door(table(1))
    dripping = [begun(asleep) for _ in range(24)]
    assert (asleep.activations(), counted(asleep), asleep.core.room.waiting) == ([], 0, 0)
    assert asleep.chain.body_gate.waiting == 24
    assert asleep.arrive().log == []
    assert asleep.activations() == [1], "a whole request does start one"
    for each in dripping:
        each.client_leaves(asleep.now)
    asleep.core.sweep(asleep.now)
    assert repr(asleep.chain.body_gate) == "<BodyGate 0 bodies awaited>"
    assert counted(asleep) == 1

    door = awake()
    for _ in range(24):
        begun(door)
    assert [door.arrive(body=BODY).log for _ in range(3)] == [SENT, SENT, SENT], "all slots are free"


def test_a_request_goes_on_with_the_last_byte_of_its_body() -> None:
    door = awake()
    asked = begun(door, body=b"")
    asked.body_comes(BODY[:20], complete=False)
    asked.body_comes(BODY[:-1], complete=False)
    assert (asked.log, door.chain.body_gate.waiting) == ([], 1)
    door.now += 2.0
    asked.body_comes(BODY)
    assert (asked.log, asked.inferences, door.chain.body_gate.waiting) == (SENT, 8, 0)
    assert asked.gathered == 0, "the budget holds it as any other"
    assert b"tidegate-timeout-ms: 8000\r\n" in asked.sent
    assert counted(door) == 1


def test_a_body_larger_than_what_is_kept_goes_on_with_as_much() -> None:
    door = awake()
    asked = begun(door, body=b"x" * (KEPT_BYTES - 1))
    assert asked.log == []
    asked.body_comes(b"x" * KEPT_BYTES, complete=False)
    assert asked.log == SENT
    assert begun(door, body=b"x" * KEPT_BYTES).log == SENT


def test_a_client_that_waits_for_100_is_asked_for_its_body_once() -> None:
    door = awake()
    asked = begun(door, "expect: 100-continue", body=b"")
    assert asked.log == ["proceed"]
    asked.body_comes(BODY[:9], complete=False)
    asked.body_comes(BODY)
    assert asked.log == ["proceed", *SENT]


def test_functions_with_streamed_bodies_get_them_with_their_first_bytes() -> None:
    door = awake(request_buffering=False, protocol="http")
    asked = door.arrive("POST /functions/f/stream", body=b"", complete=False)
    assert asked.log == []
    asked.body_comes(b"1", complete=False)
    assert asked.log == SENT
    expecting = door.arrive("POST /functions/f/stream", "expect: 100-continue", body=b"", complete=False)
    assert expecting.log == ["proceed"]
    streamed = awake(request_buffering=False, protocol="grpc")
    assert call(streamed, "/any.Service/Talk", complete=False, authority="f.localhost").log == SENT
    sized = awake(request_buffering=False)
    asked = begun(sized, body=BODY[:9])
    assert asked.log == []
    asked.body_comes(BODY[:50], complete=False)
    assert (asked.log, asked.inferences) == (SENT, 8), "its shape is waited for, as far as it may stand"


def test_who_may_not_call_is_not_asked_for_a_body() -> None:
    door = awake(access=AccessRule(api_keys=True))
    assert begun(door, "expect: 100-continue", body=b"").log == ["answer 401"]
    assert begun(door).log == ["answer 401"]


def test_a_deadline_that_passes_before_the_body_is_there_says_so() -> None:
    door = awake()
    asked = begun(door)
    asked.expires(door.now + 10.0)
    assert asked.status == 504
    assert asked.error["error"] == "its deadline passed before its body was there"
    assert counted(door) == 0


def test_beyond_the_budget_the_oldest_large_body_makes_room_for_the_others() -> None:
    door, budget = awake(), BodyBudget(100_000)
    small, slow, quick = (begun(door) for _ in range(3))
    for each in (small, slow, quick):
        each.charge_budget(budget)
    small.body_comes(b"x" * 9_000, complete=False)
    slow.body_comes(b"x" * 60_000, complete=False)
    quick.body_comes(b"x" * 80_000, complete=False)
    assert (slow.status, slow.error["code"], b"retry-after: 1\r\n" in slow.extra) == (429, "queue_full", True)
    assert "limits.waiting-body-bytes" in slow.error["error"]
    assert (small.log, quick.log, budget.used) == ([], [], 89_000)
    assert door.chain.body_gate.crowded == 1
    quick.body_comes(b"x" * 200_000, complete=False)
    assert quick.log == ["answer 429"], "there is none but itself"
    assert (counted(door), small.log) == (0, [])


def test_the_revision_is_drawn_when_the_body_is_there() -> None:
    door = awake()
    asked = begun(door, body=BODY[:9])
    changed = table(2, TWO)
    (route,) = changed.functions
    (old,) = route.revisions
    new = RevisionRoute(id="f-00002", percent=100.0, groups=old.groups)
    assert door.core.apply(replace(changed, functions=(replace(route, revisions=(new,)),)))
    asked.body_comes(BODY)
    assert asked.log == []
    door.ready(TWO, 1)
    assert asked.log == ["to 10.0.0.2:1"]


def test_a_request_by_tag_keeps_its_tag_and_one_whose_function_went_is_reported() -> None:
    door = Door(table(1, ONE, revision={"tags": ("blue",)}))
    door.ready(ONE, 1)
    asked = begun(door, "tidegate-tag: blue", body=BODY[:9])
    assert door.core.apply(table(2, ONE, revision={"tags": ("blue",)}))
    asked.body_comes(BODY)
    assert asked.log == SENT
    assert asked.context.target.router.is_tag
    gone = begun(door, body=BODY[:9])
    assert door.core.apply(replace(table(3), functions=()))
    gone.body_comes(BODY)
    assert (gone.status, gone.error["code"]) == (503, "not_servable")


# --- gRPC ------------------------------------------------------------------------------------------------------------


def test_a_call_takes_a_slot_with_its_first_whole_message() -> None:
    door = awake(protocol="grpc")
    message = framed(b"x" * 1000)
    asked = call(door, "/any.Service/Talk", body=message[:3], complete=False, authority="f.localhost")
    asked.body_comes(message[:5], complete=False)
    asked.body_comes(message[:-1], complete=False)
    assert (asked.log, counted(door)) == ([], 0)
    asked.body_comes(message, complete=False)
    assert asked.log == SENT
    large = framed(b"x" * 100_000)
    asked = call(door, "/any.Service/Talk", body=large[: STREAM_WINDOW - 1], complete=False, authority="f.localhost")
    assert asked.log == []
    asked.body_comes(large[:STREAM_WINDOW], complete=False)
    assert asked.log == SENT, "the client has no credit for more"
    empty = call(door, "/any.Service/Talk", body=b"", complete=False, authority="f.localhost")
    assert empty.log == []
    empty.body_comes(b"")
    assert empty.log == SENT, "a call may end without a message"


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes((*found, value))


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


@pytest.mark.parametrize(
    ("padding", "charged", "inferences"),
    [(5_000, True, 16), (5_000, False, 16), (70_000, True, None), (70_000, False, 1)],
)
def test_a_shape_behind_the_first_bytes_of_a_message_counts(
    padding: int, charged: bool, inferences: int | None
) -> None:
    acme = Tenant(name="acme", keys=(digest(b"key"),))
    door = Door(replace(table(1, ONE, access=AccessRule(api_keys=True) if charged else None), tenants=(acme,)))
    door.ready(ONE, 1)
    tensor = field(1, b"x") + field(2, b"FP32") + field(3, bytes((16, 3)))
    body = framed(field(7, b"\0" * padding) + field(1, b"m") + field(5, tensor))
    asked = call(
        door,
        INFER,
        body=body[:STREAM_WINDOW],
        complete=len(body) <= STREAM_WINDOW,
        fields=[("x-api-key", "key"), ("tidegate-batch-size", "1")] if charged else [],
        authority="f.localhost",
    )
    if inferences is None:
        assert (asked.status, asked.code) == (400, 3)
        assert "no shape in the first 64 KiB" in asked.message
    else:
        assert (asked.log, asked.inferences) == (SENT, inferences)


@pytest.mark.parametrize(("coding", "pack"), [("gzip", gzip.compress), ("zstd", bytes)])
def test_a_coding_that_hides_the_shape_of_a_message_is_refused_where_callers_are_charged(
    coding: str, pack: Callable[[bytes], bytes]
) -> None:
    acme = Tenant(name="acme", keys=(digest(b"key"),))
    door = Door(replace(table(1, ONE, access=AccessRule(api_keys=True)), tenants=(acme,)))
    door.ready(ONE, 1)
    tensor = field(1, b"x") + field(2, b"FP32") + field(3, bytes((16, 3)))
    message = pack(field(7, b"\0" * 70_000) + field(1, b"m") + field(5, tensor))
    fields = [("x-api-key", "key"), ("tidegate-batch-size", "1"), ("grpc-encoding", coding)]
    body = b"\1" + framed(message)[1:]
    asked = call(door, INFER, body=body[:STREAM_WINDOW], complete=False, fields=fields, authority="f.localhost")
    assert (asked.status, asked.code) == (400, 3)
    assert "unpacked by gzip or deflate" in asked.message


def test_the_coding_of_a_body_that_hides_its_shape_is_named() -> None:
    acme = Tenant(name="acme", keys=(digest(b"key"),))
    door = Door(replace(table(1, ONE, access=AccessRule(api_keys=True)), tenants=(acme,)))
    door.ready(ONE, 1)
    asked = door.arrive("POST /v2/models/m/infer", "x-api-key: key", "content-encoding: br", body=b"\x0b\x02")
    assert asked.status == 415
    assert "send it without content-encoding, or by gzip or deflate" in str(asked.error)
    plain = awake().arrive("POST /v2/models/m/infer", "content-encoding: br", body=b"\x0b\x02")
    assert plain.log == SENT

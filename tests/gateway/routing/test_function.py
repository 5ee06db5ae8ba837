"""One function as the front door sees it: revisions by percent, size, failures."""

import gzip
import zlib
from typing import Any

import pytest

from tests.support.worlds.fake_exchange import request
from tidegate.gateway.routing.function import FunctionMemory, FunctionRouter
from tidegate.gateway.routing.grpc_methods import UNREAD
from tidegate.records.route_table import FunctionRoute, RevisionRoute, Spread
from tidegate.records.tenants import AccessRule

ROUTE: dict[str, Any] = {
    "name": "f",
    "models": ("m",),
    "protocol": "v2",
    "timeout_s": 10.0,
    "latency_s": None,
    "queue_requests": 1,
    "queue_bytes": 1,
    "max_wait_s": 1.0,
    "batch_header": "X-Batch",
    "bytes_per_item": 10.0,
    "overhead_bytes": 0.0,
    "max_batch": 64,
}


def router(*revisions: RevisionRoute, **settings: Any) -> FunctionRouter:
    return FunctionRouter(FunctionRoute(revisions=revisions, **(ROUTE | settings)), FunctionMemory(0.0))


def revision(number: int, percent: float, failure: str | None = None) -> RevisionRoute:
    return RevisionRoute(id=f"f-{number:05d}", percent=percent, failure=failure)


def test_requests_go_to_revisions_by_their_percent() -> None:
    split = router(revision(1, 90.0), revision(2, 0.0), revision(3, 10.0))
    drawn = [split.revision() for _ in range(1000)]
    assert (drawn.count("f-00001"), drawn.count("f-00002"), drawn.count("f-00003")) == (900, 0, 100)


@pytest.mark.parametrize("percent", [1.0, 5.0, 10.0, 33.0, 50.0])
def test_any_few_hundred_requests_have_the_shares_also_every_second_or_third_of_them(percent: float) -> None:
    split = router(revision(1, 100.0 - percent), revision(2, percent))
    drawn = [split.revision() == "f-00002" for _ in range(3000)]
    for stride in (1, 2, 3):
        for first in range(0, 3000 - 300 * stride, 97):
            seen = sum(drawn[first : first + 300 * stride : stride])
            assert abs(seen - 3 * percent) <= 3, f"{seen} of 300, every {stride}"


def test_a_split_goes_on_where_it_was_when_the_table_changes() -> None:
    memory = FunctionMemory(0.0, 0.3)
    drawn = []
    for _ in range(100):
        route = FunctionRoute(revisions=(revision(1, 75.0), revision(2, 25.0)), **ROUTE)
        drawn.append(FunctionRouter(route, memory).revision())
    assert drawn.count("f-00002") == 25


def test_shadows_get_their_percent_of_all_requests_and_of_each_revision() -> None:
    memory = FunctionMemory(0.0, 0.9)
    shadow = RevisionRoute(id="f-00003", percent=0.0, shadow_percent=20.0)
    split = FunctionRouter(FunctionRoute(revisions=(revision(1, 50.0), revision(2, 50.0), shadow), **ROUTE), memory)
    drawn = [(split.revision(), split.shadow()) for _ in range(1000)]
    assert sum(copy == "f-00003" for _, copy in drawn) == pytest.approx(200, abs=2)
    assert drawn.count(("f-00001", "f-00003")) == pytest.approx(100, abs=3)


def test_a_tag_is_a_front_with_one_revision() -> None:
    blue = RevisionRoute(id="f-00002", percent=0.0, tags=("blue", "next"))
    split = router(revision(1, 100.0), blue)
    assert sorted(split.tagged) == [b"blue", b"next"]
    tagged = split.tagged[b"blue"]
    assert (tagged.revision(), tagged.is_tag, split.is_tag) == ("f-00002", True, False)
    assert tagged.tagged is split.tagged, "the field may name another tag than the host"


def test_one_revision_takes_all_and_none_is_said() -> None:
    assert router(revision(4, 3.0)).revision() == "f-00004"
    assert router(revision(4, 0.0)).revision() is None


@pytest.mark.parametrize(
    ("fields", "body", "inferences"),
    [
        ("x-batch: 9\n", b'{"shape":[3]}', 9),
        ("", b'{"inputs":[{"shape": [ 3 , 2]}]}', 3),
        ("content-length: 45\n", b"{}", 5),
        ("", b"", 1),
        ("x-batch: 1000\n", b"", 0),
        ("", b'{"shape":[65]}', 0),
        ("content-length: 5000\n", b"{}", 64),
    ],
)
def test_size_by_header_then_shape_then_length(fields: str, body: bytes, inferences: int) -> None:
    head = request(f"POST /v2/models/m/infer HTTP/1.1\nhost: x\n{fields}\n")
    assert router(revision(1, 100.0)).inferences(head, body) == inferences


@pytest.mark.parametrize(
    ("fields", "body", "inferences"),
    [
        ("x-batch: 1\n", b'{"inputs":[{"shape":[16]}]}', 16),
        ("x-batch: 20\n", b'{"inputs":[{"shape":[16]}]}', 20),
        ("x-batch: 1\n", b'{"inputs":[{"shape":[65]}]}', 0),
        ("", b'{"id":"%b","inputs":[{"shape":[16]}]}' % (b" " * 5000), 16),
        ("", b'{"parameters":{"shape":[1]},"inputs":[{"parameters":{"shape":[2]},"sha\\u0070e":[16,2]}]}', 16),
        ("", b'{"inputs":[{"shape":[16]},{"shape":[60]}]}', 16),
        ("", b'{"inputs":[{"shape":[1e300]}]}', 0),
        ("inference-header-content-length: 27\n", b'{"inputs":[{"shape":[16]}]}"shape":[64]', 16),
        ("", b'{"shape":[1]}, {"shape":[16]}', 16),
        ("content-length: 45\n", b"", 5),
    ],
)
def test_where_callers_are_charged_no_field_and_no_other_shape_makes_a_batch_smaller(
    fields: str, body: bytes, inferences: int
) -> None:
    head = request(f"POST /v2/models/m/infer HTTP/1.1\nhost: x\n{fields}\n")
    assert router(revision(1, 100.0), access=AccessRule(api_keys=True)).inferences(head, body) == inferences


@pytest.mark.parametrize(
    ("coding", "body", "is_whole", "inferences"),
    [
        ("gzip", gzip.compress(b'{"inputs":[{"shape":[16]}]}', mtime=0), True, 16),
        (" GZIP", gzip.compress(b'{"inputs":[{"shape":[65]}]}', mtime=0), True, 0),
        ("deflate", zlib.compress(b'{"inputs":[{"shape":[16]}]}'), True, 16),
        ("identity", b'{"inputs":[{"shape":[16]}]}', True, 16),
        ("br", b'{"inputs":[{"shape":[1]}]}', True, UNREAD),
        ("gzip, gzip", gzip.compress(gzip.compress(b'{"inputs":[{"shape":[16]}]}', mtime=0), mtime=0), True, UNREAD),
        ("gzip", b'{"inputs":[{"shape":[1]}]}', True, UNREAD),
        ("gzip", gzip.compress(b'{"inputs":[{"shape":[1]}]}', mtime=0) + b"more", True, UNREAD),
        ("gzip", gzip.compress(b'{"inputs":[{"shape":[16]}]}', mtime=0)[:-9], False, UNREAD),
        ("gzip", gzip.compress(b'{"inputs":[{"shape":[1],"data":[0' + b",0" * (2 << 20), mtime=0), True, UNREAD),
    ],
)
def test_where_callers_are_charged_no_coding_hides_a_shape(
    coding: str, body: bytes, is_whole: bool, inferences: int
) -> None:
    head = request(f"POST /v2/models/m/infer HTTP/1.1\nhost: x\ncontent-encoding: {coding}\nx-batch: 1\n\n")
    charging = router(revision(1, 100.0), access=AccessRule(api_keys=True))
    assert charging.inferences(head, body, is_whole) == inferences
    assert router(revision(1, 100.0)).inferences(head, body, is_whole) == 1


def test_of_a_part_of_a_body_the_largest_shape_counts_where_callers_are_charged() -> None:
    head = request("POST /v2/models/m/infer HTTP/1.1\nhost: x\nx-batch: 1\n\n")
    charging = router(revision(1, 100.0), access=AccessRule(api_keys=True))
    assert charging.inferences(head, b'{"parameters":{"shape":[1]},"inputs":[{"shape":[16],"data":[', False) == 16


@pytest.mark.parametrize(
    ("fields", "protocol", "is_awaited"),
    [
        ("content-length: 5\n", "v2", True),
        ("transfer-encoding: chunked\n", "v2", True),
        ("content-length: 0\n", "v2", False),
        ("content-length: 5\nx-batch: 2\n", "v2", False),
        ("content-length: 5\nexpect: 100-continue\n", "v2", True),
        ("content-length: 5\n", "http", False),
    ],
)
def test_the_body_is_waited_for_only_where_it_tells_more(fields: str, protocol: str, is_awaited: bool) -> None:
    head = request(f"POST /v2/models/m/infer HTTP/1.1\nhost: x\n{fields}\n")
    assert router(revision(1, 100.0), protocol=protocol).tells_size_in_body(head, b"") is is_awaited


def test_more_of_the_body_is_waited_for_until_the_shape_is_there_or_would_be() -> None:
    head = request("POST /v2/models/m/infer HTTP/1.1\nhost: x\ncontent-length: 9000\n\n")
    whole = router(revision(1, 100.0))
    assert whole.tells_size_in_body(head, b'{"inputs":[{"na')
    assert not whole.tells_size_in_body(head, b'{"inputs":[{"shape":[4]')
    assert not whole.tells_size_in_body(head, b" " * 4096)


def test_the_beginning_of_a_prompt_is_waited_for_where_it_decides_about_the_replica() -> None:
    head = request("POST /generate HTTP/1.1\nhost: x\ncontent-length: 90000\n\n")
    for word, looked_at in (("prefix", True), ("prompt", True), ("model", True), ("session", False)):
        by = router(revision(1, 100.0), protocol="http", spread=Spread.HASH, hash_on=word)
        assert by.tells_size_in_body(head, b" " * 4096) is looked_at
        assert not by.tells_size_in_body(head, b" " * 16_384)
        assert not by.tells_size_in_body(request("GET / HTTP/1.1\nhost: x\n\n"), b"")
    assert not router(revision(1, 100.0), protocol="http", hash_on="prefix").tells_size_in_body(head, b"")


def test_it_has_failed_when_every_revision_that_takes_traffic_has() -> None:
    assert router(revision(1, 50.0, "no memory"), revision(2, 50.0)).failure is None
    assert router(revision(1, 100.0, "no memory"), revision(2, 0.0)).failure == "no memory"
    assert router(revision(1, 0.0, "no memory")).failure is None


def test_only_the_hash_spread_looks_at_all() -> None:
    assert router(hash_on="header:x").hash_key is None
    assert router(hash_on="header:x", spread=Spread.HASH).hash_key is not None


@pytest.mark.parametrize(
    ("settings", "plain"),
    [
        ({}, True),
        ({"protocol": "http", "hash_on": "header:x"}, True),
        ({"access": AccessRule(api_keys=True)}, False),
        ({"protocol": "openai"}, False),
        ({"protocol": "grpc"}, False),
        ({"hash_on": "header:x", "spread": Spread.HASH}, False),
    ],
)
def test_a_plain_function_asks_nothing_of_a_request_but_its_size(settings: dict[str, Any], plain: bool) -> None:
    asked = router(RevisionRoute(id="f-00001", percent=100.0, tags=("blue",)), **settings)
    assert asked.is_plain is plain
    assert asked.tagged[b"blue"].is_plain is plain


def test_header_lines_of_a_size_are_made_once() -> None:
    whole = router(revision(1, 100.0))
    assert whole.lines(3) == b"tidegate-timeout-ms: 10000\r\ntidegate-batch-size: 3\r\n"
    assert whole.lines(3) is whole.lines(3)
    assert whole.lines_with(3, 0.0001).startswith(b"tidegate-timeout-ms: 1\r\n"), "never 0: that would be no time left"

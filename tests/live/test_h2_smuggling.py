"""HTTP/2 in, HTTP/1 out: the hostile corpora as plain requests, in front of a strict HTTP/1 backend.

The corpus calls gRPC, which stays HTTP/2 on the whole way. Here its calls say another content type, so each of them is
written anew as HTTP/1: whatever a field, a length or a trailer holds, the backend must see nothing but whole requests
of that grammar, and no more of them than there were.
"""

import asyncio
import base64
import zlib
from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.http.capture import CaptureBackend, Captures
from tests.support.http.doors import door
from tests.support.http.loopback import run_on
from tests.support.http2.live import send_case
from tests.support.http2.view import CORPUS, OWN, Case, load

pytestmark = [pytest.mark.live, pytest.mark.timeout(200)]

LANES = 10
LIMITS = {"head_timeout_s": 2.0, "idle_timeout_s": 5.0, "trusted_proxies": []}
REST_S = 0.15
_GRPC, _OTHER = b"application/grpc", b"application/json"
WHOLE_BEFORE = {"hdr_cl_zero_with_data", "hdr_cl_one_more_later"}
"""All that was announced had come, and gone on as a whole request, before there was more; that is read over."""


def _rewritten(case: Case) -> Case:
    """The case with another content type, of the same length; the corpus writes it without a Huffman code."""
    steps = []
    for step in case["steps"]:
        if "send" in step or "send_z" in step:
            data = (
                base64.b64decode(step["send"]) if "send" in step else zlib.decompress(base64.b64decode(step["send_z"]))
            )
            kept = {key: value for key, value in step.items() if key not in ("send", "send_z")}
            steps.append(kept | {"send": base64.b64encode(data.replace(_GRPC, _OTHER)).decode()})
        elif "sleep" not in step and "alive" not in step:
            steps.append(step | ({"limit": 0.3} if "await" in step else {}))
    return case | {"steps": steps}


@cache
def _cases() -> list[Case]:
    return [_rewritten(case) for case in load(CORPUS) + load(OWN)]


def _faults(case: Case, seen: Captures) -> Iterator[str]:
    """``PRI * HTTP/2.0`` is a call that still is gRPC: this backend takes no such connection."""
    yield from (fault for fault in seen.malformed if "HTTP/2.0" not in fault)
    expect = case["expect"]
    requests = [request for request in seen.requests if request.method != "PRI"]
    most = expect.get("max_requests", len(requests))
    if case["name"] not in WHOLE_BEFORE:
        most = min(most, expect.get("max_complete", most))
    if sum(request.complete for request in requests) > most:
        yield f"{len(requests)} requests at the backend, {most} are allowed"
    for request in requests:
        if len(request.values("host")) != 1:
            yield f"{len(request.values('host'))} host fields"
        whole = request.head + b"".join(name.encode() + b":" + value for name, value in request.trailers)
        yield from (f"{text} reached the backend" for text in expect.get("never_seen", ()) if text.encode() in whole)


@pytest.mark.parametrize("kind", ["gateway", pytest.param("queue_proxy", marks=pytest.mark.deep)])
def test_nothing_but_whole_requests_reaches_an_http_1_backend(kind: str) -> None:
    found: dict[str, list[str]] = {}
    forwarded = 0

    async def lane(waiting: list[Case]) -> None:
        nonlocal forwarded
        sent: list[tuple[Case, Captures]] = []
        backend = CaptureBackend()
        try:
            async with door(kind, "uvloop", await backend.start(), LIMITS, slots="250") as way:
                while waiting:
                    case = waiting.pop()
                    sent.append((case, seen := backend.begin()))
                    await send_case(case, way.address, REST_S, seen.client)
                left = await way.left_in_flight()
            await backend.unused()  # What a case has begun may arrive when its client has gone.
        finally:
            await backend.close()
        assert not left, f"{left} requests are still in flight"
        for case, seen in sent:
            forwarded += sum(request.complete for request in seen.requests)
            if faults := list(_faults(case, seen)):
                found[case["name"]] = faults

    async def main() -> None:
        waiting = list(_cases())
        async with asyncio.TaskGroup() as group:
            for _ in range(LANES):
                group.create_task(lane(waiting))

    run_on("uvloop", main())
    assert not found, "\n".join(f"{name}: {faults}" for name, faults in found.items())
    assert forwarded > 200, "hardly a request came through: the test has tested nothing"

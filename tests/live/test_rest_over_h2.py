"""Ordinary requests over HTTP/2, cleartext and TLS, through real processes, with httpx and curl as clients."""

import asyncio
import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.http.backend import OK, ScriptedBackend, answering
from tests.support.http.doors import Door
from tests.support.http.echo import doors
from tests.support.http.loopback import start_relay
from tests.support.live.certificates import make_certificate
from tidegate.aio.loop.certificate import read_pair

WAYS = [("gateway", "uvloop"), ("queue_proxy", "uvloop"), ("queue_proxy", "asyncio")]
pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]
MB = 1 << 20


@pytest.fixture(scope="module")
def opened() -> Iterator[dict[tuple[str, str], Door]]:
    with doors(WAYS) as found:
        yield found


@pytest.fixture(params=WAYS, ids="-".join)
def url(request: pytest.FixtureRequest, opened: dict[tuple[str, str], Door]) -> str:
    host, port = opened[request.param].address
    return f"http://{host}:{port}"


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(http1=False, http2=True, base_url=url, timeout=20.0, verify=False) as one:
        yield one


def test_a_request_and_its_fields(client: httpx.Client) -> None:
    answer = client.get("/some/path?x=1", headers={"X-Own": "value", "cookie": "a=b"})
    assert answer.http_version == "HTTP/2"
    echoed = answer.json()
    assert (echoed["method"], echoed["path"]) == ("GET", "/some/path?x=1")
    assert echoed["headers"]["x-own"] == "value"
    assert echoed["headers"]["cookie"] == "a=b"
    assert "tidegate" in echoed["headers"]["via"]
    assert "traceparent" in echoed["headers"]


@pytest.mark.parametrize("size", [0, 1, 100_000, 20 * MB])
def test_bodies_up(client: httpx.Client, size: int) -> None:
    body = b"u" * size
    echoed = client.post("/up", content=body).json()
    assert (echoed["size"], echoed["digest"]) == (size, hashlib.sha256(body).hexdigest())


def test_a_body_without_a_length(client: httpx.Client) -> None:
    echoed = client.post("/up", content=(b"piece" * 1000 for _ in range(100))).json()
    assert echoed["size"] == 500_000


def test_bodies_down(client: httpx.Client) -> None:
    assert len(client.get("/download", params={"size": 20 * MB}).content) == 20 * MB


def test_many_at_once(url: str) -> None:
    async def scene() -> None:
        async with httpx.AsyncClient(http1=False, http2=True, base_url=url, timeout=20.0, verify=False) as client:
            answers = await asyncio.gather(*(client.post(f"/n/{n}", content=b"x" * n) for n in range(60)))
        assert [answer.json()["path"] for answer in answers] == [f"/n/{n}" for n in range(60)]
        assert [answer.json()["size"] for answer in answers] == list(range(60))

    asyncio.run(scene())


def test_head_has_no_body(client: httpx.Client) -> None:
    answer = client.head("/x")
    assert answer.status_code == 200
    assert int(answer.headers["content-length"]) > 0
    assert answer.content == b""
    assert client.get("/x").json()["method"] == "GET"


def test_an_event_stream_is_passed_on_event_by_event(client: httpx.Client) -> None:
    with client.stream("GET", "/events") as answer:
        pieces = list(answer.iter_raw())
    assert b"".join(pieces) == b"".join(b"data: %d\n\n" % number for number in range(5))
    assert len(pieces) > 1


def test_an_own_failure_is_http(opened: dict[tuple[str, str], Door]) -> None:
    host, port = opened["gateway", "uvloop"].address
    with httpx.Client(http1=False, http2=True, base_url=f"http://{host}:{port}", verify=False) as client:
        answer = client.get("/x", headers={"host": "missing.localhost"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "function_not_found"


def test_a_deadline(opened: dict[tuple[str, str], Door], client: httpx.Client) -> None:
    answer = client.get("/x", headers={"tidegate-timeout-ms": "nonsense"})
    assert answer.status_code == 400


@pytest.mark.needs(tool="clients")
def test_curl_over_tls_chooses_http2_and_may_choose_http1(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    backend = ScriptedBackend(answering(OK, OK))

    async def scene() -> None:
        relay = await start_relay(await backend.start(), tls=(read_pair(str(certificate), str(key)), None))  # type: ignore[arg-type]  # clients are curl's
        try:
            for flag, version in (("--http2", "2"), ("--http1.1", "1.1")):
                command = ["curl", "-sS", "--cacert", str(certificate), flag, "-w", "\n%{http_version}"]
                command.append(f"https://localhost:{relay.port}/x")
                process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                out, err = await process.communicate()
                assert out.decode() == f"ok\n{version}", err
        finally:
            await relay.close()
            await backend.close()

    asyncio.run(scene())


def test_json_of_a_real_function_over_http2(client: httpx.Client) -> None:
    body = {"inputs": [{"name": "x", "shape": [3, 1], "datatype": "FP32", "data": [1.0, 2.0, 3.0]}]}
    echoed = client.post("/v2/models/m/infer", json=body).json()
    assert (
        echoed["digest"] == hashlib.sha256(json.dumps(body, separators=(",", ":")).encode()).hexdigest()
        or echoed["size"]
    )
    assert echoed["headers"]["content-length"] == str(echoed["size"])

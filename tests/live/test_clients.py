"""Clients of other authors, unmodified, through a real gateway and a real queue_proxy, on both loops."""

import asyncio
import hashlib
import io
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import numpy
import pytest
import requests
import tritonclient.http as triton
import websockets.sync.client

from tests.support.http.doors import Door
from tests.support.http.echo import KINDS, doors
from tests.support.http.loopback import LOOPS
from tests.support.live.runtime_process import ROOT, free_port, running

pytestmark = [pytest.mark.live, pytest.mark.timeout(60)]
needs_clients = pytest.mark.needs(tool="clients")

WAYS = [(kind, loop) for kind in KINDS for loop in sorted(LOOPS)]
LARGE = os.urandom(2_000_000)


@pytest.fixture(scope="module")
def opened() -> Iterator[dict[tuple[str, str], Door]]:
    with doors(WAYS) as found:
        yield found


@pytest.fixture(params=WAYS, ids="-".join)
def url(opened: dict[tuple[str, str], Door], request: pytest.FixtureRequest) -> str:
    host, port = opened[request.param].address
    return f"http://{host}:{port}"


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def curl(*arguments: str, code: int = 0, stdin: bytes = b"") -> str:
    """What curl writes; it must end with ``code``."""
    command = ["curl", "--silent", "--show-error", "--noproxy", "*", "--max-time", "20", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False)
    assert done.returncode == code, (done.returncode, done.stderr)
    return done.stdout.decode("latin-1")


# --- curl -----------------------------------------------------------------------------------------------------------


@needs_clients
@pytest.mark.parametrize("version", ["--http1.0", "--http1.1"])
def test_curl_gets_and_posts(url: str, version: str) -> None:
    assert json.loads(curl(version, f"{url}/a?b=c"))["path"] == "/a?b=c"
    echoed = json.loads(curl(version, "--data-binary", "hello", f"{url}/p"))
    assert (echoed["method"], echoed["size"], echoed["digest"]) == ("POST", 5, digest(b"hello"))
    head = curl(version, "--head", f"{url}/h")
    assert head.startswith("HTTP/1.1 200")
    assert "content-length: " in head.lower()


@needs_clients
def test_curl_keeps_its_connection_over_many_requests(url: str) -> None:
    out = curl("--write-out", "%{num_connects} ", *[f"{url}/{n}" for n in range(5)], *["--output", "/dev/null"] * 5)
    assert out.split() == ["1", "0", "0", "0", "0"]


@needs_clients
def test_curl_waits_for_100_before_two_megabytes(url: str, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(LARGE)
    written = curl("--verbose", "--stderr", "-", "-H", "Expect: 100-continue", "--data-binary", f"@{body}", f"{url}/e")
    assert "100 Continue" in written
    assert digest(LARGE) in written


@needs_clients
def test_curl_uploads_in_chunks(url: str) -> None:
    echoed = json.loads(curl("-H", "Transfer-Encoding: chunked", "--upload-file", "-", f"{url}/c", stdin=LARGE))
    assert (echoed["method"], echoed["size"], echoed["digest"]) == ("PUT", len(LARGE), digest(LARGE))


@needs_clients
def test_curl_sees_trailers(url: str) -> None:
    raw = curl("--raw", f"{url}/trailers")
    assert raw.endswith("0\r\nX-T: done\r\n\r\n")
    assert curl(f"{url}/trailers") == "abc"
    assert curl("--http1.0", f"{url}/trailers") == "abc"


def test_http_0_9_is_refused(url: str) -> None:
    """curl sends 1.1 whatever ``--http0.9`` says, so the request is ours."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as plain:
        plain.sendall(b"GET /old\r\n\r\n")
        assert plain.recv(4096).startswith(b"HTTP/1.1 400 ")


@needs_clients
def test_curl_reads_events_and_large_answers(url: str) -> None:
    assert json.loads(curl("--http0.9", f"{url}/old"))["path"] == "/old"
    assert curl("--no-buffer", f"{url}/events") == "".join(f"data: {n}\n\n" for n in range(5))
    assert len(curl(f"{url}/download?size=3000000")) == 3_000_000


# --- Python's clients -----------------------------------------------------------------------------------------------


def test_requests(url: str) -> None:
    with requests.Session() as session:
        session.trust_env = False
        assert session.get(f"{url}/a", timeout=10).json()["path"] == "/a"
        assert session.head(f"{url}/a", timeout=10).content == b""
        assert session.post(f"{url}/p", data=LARGE, timeout=10).json()["digest"] == digest(LARGE)
        chunked = session.post(f"{url}/p", data=iter([b"ab", b"cd"]), timeout=10).json()
        assert (chunked["size"], chunked["digest"]) == (4, digest(b"abcd"))
        with session.get(f"{url}/download?size=1000000", stream=True, timeout=10) as answer:
            assert sum(len(piece) for piece in answer.iter_content(65536)) == 1_000_000


def test_httpx(url: str) -> None:
    with httpx.Client(trust_env=False, verify=False, timeout=10.0) as client:
        assert client.get(f"{url}/a").json()["path"] == "/a"
        assert client.options(f"{url}/o").json()["method"] == "OPTIONS"
        assert client.put(f"{url}/p", content=LARGE).json()["digest"] == digest(LARGE)
        assert client.post(f"{url}/p", content=iter([b"ab", b"cd"])).json()["digest"] == digest(b"abcd")
        with client.stream("GET", f"{url}/events") as answer:
            assert list(answer.iter_lines())[::2] == [f"data: {n}" for n in range(5)]


def test_aiohttp(url: str) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as session:
            answers = await asyncio.gather(*(_json(session, "GET", f"{url}/{n}") for n in range(30)))
            assert [answer["path"] for answer in answers] == [f"/{n}" for n in range(30)]
            echoed = await _json(session, "POST", f"{url}/p", data=io.BytesIO(LARGE), expect100=True)
            assert echoed["digest"] == digest(LARGE)
            async with session.ws_connect(f"{url}/ws") as connection:
                await connection.send_str("hello")
                assert await connection.receive_str() == "hello"

    asyncio.run(main())


async def _json(session: aiohttp.ClientSession, method: str, url: str, **options: Any) -> dict[str, Any]:
    async with session.request(method, url, **options) as answer:
        assert answer.status == 200
        found: dict[str, Any] = await answer.json()
        return found


def test_websockets(url: str) -> None:
    with websockets.sync.client.connect(url.replace("http", "ws") + "/ws", max_size=1 << 24, proxy=None) as connection:
        for message in ("hello", b"\0\1\2", LARGE, "x" * 70_000):
            connection.send(message)
            assert connection.recv(10) == message
        assert connection.ping().wait(10)


# --- tritonclient ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served() -> Iterator[dict[tuple[str, str], Door]]:
    """Doors before the shipped model server."""
    listen = f"127.0.0.1:{free_port()}"
    environment = {"HANDLER": f"{ROOT}/examples/hello/handler.py:Scripts", "NAME": "m"}
    with running(listen, environment), doors(WAYS, listen) as found:
        yield found


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_tritonclient(served: dict[tuple[str, str], Door], way: tuple[str, str], binary: bool) -> None:
    host, port = served[way].address
    client = triton.InferenceServerClient(f"{host}:{port}")
    try:
        assert client.is_server_live()
        assert client.is_model_ready("m")
        assert client.get_model_metadata("m")["name"] == "m"
        tensor = triton.InferInput("text", [2], "BYTES")
        tensor.set_data_from_numpy(numpy.array(["hello", "привет"], dtype=object), binary_data=binary)
        wanted = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("script", "share")]
        for _ in range(3):
            result = client.infer("m", [tensor], outputs=wanted)
            # As JSON the client gives text, as binary bytes.
            scripts = [one if binary else one.encode() for one in result.as_numpy("script")]
            assert scripts == [b"LATIN", b"CYRILLIC"]
            assert list(result.as_numpy("share")) == [1.0, 1.0]
    finally:
        client.close()


# --- load generators ------------------------------------------------------------------------------------------------


@needs_clients
def test_wrk(url: str) -> None:
    done = subprocess.run(["wrk", "-t1", "-c8", "-d1s", f"{url}/w"], capture_output=True, text=True, check=True)
    assert "Non-2xx" not in done.stdout
    assert "Socket errors" not in done.stdout
    assert int(done.stdout.partition(" requests in ")[0].split()[-1]) > 20


def test_a_1_0_client_that_keeps_its_connection(url: str) -> None:
    """What ApacheBench sends with ``-k``."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as plain, plain.makefile("rb") as answers:
        for number in range(20):
            plain.sendall(b"GET /%d HTTP/1.0\r\nConnection: Keep-Alive\r\nHost: a\r\n\r\n" % number)
            fields = {}
            assert answers.readline().startswith(b"HTTP/1.1 200")
            while (line := answers.readline()) != b"\r\n":
                name, _, value = line.partition(b":")
                fields[name.lower()] = value.strip().lower()
            assert fields[b"connection"] == b"keep-alive"
            assert json.loads(answers.read(int(fields[b"content-length"])))["path"] == f"/{number}"


@needs_clients
def test_apachebench(url: str) -> None:
    done = subprocess.run(
        ["ab", "-q", "-k", "-l", "-n", "100", "-c", "4", f"{url}/ab"], capture_output=True, text=True, check=True
    )
    assert "Failed requests:        0" in done.stdout
    assert "Keep-Alive requests:    100" in done.stdout
    assert "Non-2xx" not in done.stdout

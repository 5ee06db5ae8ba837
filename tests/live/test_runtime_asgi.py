"""ASGI applications, served as they are behind the queue_proxy: FastAPI, and a class of the user's own."""

import time
from collections.abc import Iterator

import httpx
import pytest
import websockets.sync.client

from tests.support.deadline import Patience
from tests.support.live.deployment import Deployment, deployment, places

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

FASTAPI = """
import asyncio
from contextlib import asynccontextmanager
from fastapi import FastAPI, WebSocket
from fastapi.responses import StreamingResponse

@asynccontextmanager
async def lifespan(app):
    await asyncio.sleep(1.0)
    app.state.words = ["the", "tide"]
    yield
    print("SHUT DOWN", flush=True)

app = FastAPI(lifespan=lifespan)

@app.get("/words/{at}")
def word(at: int, loud: bool = False):
    found = app.state.words[at]
    return {"word": found.upper() if loud else found}

@app.post("/stream")
async def stream():
    async def pieces():
        for word in app.state.words:
            yield f"data: {word}\\n\\n"
            await asyncio.sleep(0.05)
    return StreamingResponse(pieces(), media_type="text/event-stream")

@app.websocket("/ws")
async def ws(socket: WebSocket):
    await socket.accept()
    await socket.send_text("hello " + await socket.receive_text())
    await socket.close()
"""
OWN = """
class Own:
    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            raise RuntimeError("http only")
        await send({"type": "http.response.start", "status": 201, "headers": [(b"x-own", b"1")]})
        await send({"type": "http.response.body", "body": scope["path"].encode()})
"""
BROKEN = """
from contextlib import asynccontextmanager
from fastapi import FastAPI

@asynccontextmanager
async def lifespan(app):
    raise OSError("no weights")
    yield

app = FastAPI(lifespan=lifespan)
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("asgi")
    with deployment(folder, *places(folder, 4)) as found:
        found.up()
        for name, text in (("fast", FASTAPI), ("own", OWN), ("broken", BROKEN)):
            (folder / f"{name}.py").write_text(text)
        found.cli("deploy", f"{folder}/fast.py")
        found.cli("deploy", f"{folder}/own.py:Own")
        yield found


def test_the_first_request_waits_for_the_lifespans_start_up(served: Deployment) -> None:
    answer = httpx.get(f"{served.gateway}/functions/fast/words/1?loud=true", timeout=20, trust_env=False, verify=False)
    assert answer.json() == {"word": "TIDE"}


def test_an_event_stream_and_a_websocket_pass(served: Deployment) -> None:
    with httpx.stream(
        "POST", f"{served.gateway}/functions/fast/stream", timeout=20, trust_env=False, verify=False
    ) as answer:
        assert [line for line in answer.iter_lines() if line] == ["data: the", "data: tide"]
    url = served.gateway.replace("http", "ws", 1)
    with websockets.sync.client.connect(f"{url}/functions/fast/ws", open_timeout=20, proxy=None) as socket:
        socket.send("tide")
        assert socket.recv(timeout=20) == "hello tide"


def test_a_class_of_the_users_own(served: Deployment) -> None:
    answer = httpx.get(f"{served.gateway}/functions/own/a/b", timeout=20, trust_env=False, verify=False)
    assert (answer.status_code, answer.headers["x-own"], answer.text) == (201, "1", "/a/b")


def test_a_lifespan_that_fails_is_the_reason_that_the_deploy_gives(served: Deployment) -> None:
    refused = served.cli("deploy", f"{served.folder}/broken.py", code=1)
    said = refused.stdout + refused.stderr + served.cli("logs", "broken").stdout
    assert "lifespan start-up failed" in said
    assert "no weights" in said


def test_a_replica_that_ends_shuts_the_lifespan_down(served: Deployment) -> None:
    httpx.get(f"{served.gateway}/functions/fast/words/0", timeout=20, trust_env=False, verify=False)
    served.cli("delete", "fast")
    log = served.state.logs
    patience = Patience(20.0)
    while not any("SHUT DOWN" in file.read_text() for file in log.rglob("*") if file.is_file() and "fast" in str(file)):
        assert not patience.is_over
        time.sleep(0.1)

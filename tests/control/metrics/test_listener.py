"""The listener that has metrics alone."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import httpx
import pytest

from tidegate.control.metrics.listener import READ_AGAIN_S, MetricsListener, TokenFile
from tidegate.control.state.notices import Faults
from tidegate.errors import InvalidInputError

TEXT = b'# HELP t_total T.\n# TYPE t_total counter\nt_total{function="echo"} 3\n'


async def scrape() -> AsyncIterator[bytes]:
    for line in TEXT.splitlines(keepends=True):
        yield line


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def ask(
    listener: MetricsListener, path: str = "/metrics", method: str = "GET", headers: Mapping[str, str] | None = None
) -> httpx.Response:
    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(app=listener)
        async with httpx.AsyncClient(transport=transport, base_url="http://10.1.2.3:8083") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(call())


def open_listener() -> MetricsListener:
    return MetricsListener(scrape, name="node-7", token=None, faults=Faults())


def test_metrics_are_read_in_the_form_that_is_asked_for() -> None:
    answer = ask(open_listener())
    assert (answer.status_code, answer.content) == (200, TEXT)
    answer = ask(open_listener(), headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.content.endswith(b"# EOF\n")


def test_a_head_has_no_body() -> None:
    answer = ask(open_listener(), method="HEAD")
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    "path", ["/", "/healthz", "/metrics/", "/api/v1/status", "/openapi.json", "/console", "/api/v1/shutdown"]
)
def test_nothing_else_is_there(path: str) -> None:
    for method in ("GET", "POST"):
        assert ask(open_listener(), path, method).status_code == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_metrics_are_only_read(method: str) -> None:
    answer = ask(open_listener(), method=method)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("10.1.2.3:8083", 200),
        ("[fd00::7]:8083", 200),
        ("localhost:8083", 200),
        ("node-7:8083", 200),
        ("attacker.example:8083", 403),
        ("", 403),
    ],
)
def test_without_a_token_a_foreign_name_is_refused(host: str, status: int) -> None:
    """A page of that site could read what is here, once its name resolves to this address."""
    assert ask(open_listener(), headers={"host": host}).status_code == status


def test_with_a_token_every_name_is_answered_and_no_request_without_it(tmp_path: Path) -> None:
    file, clock = tmp_path / "token", Clock()
    file.write_text("first\n")
    listener = MetricsListener(scrape, name="0.0.0.0", token=TokenFile(file, clock), faults=Faults())
    name = {"host": "tidegate.models.svc:8083"}
    assert ask(listener, headers=name | {"authorization": "Bearer first"}).status_code == 200
    for given in ({}, {"authorization": "Bearer other"}, {"authorization": "Basic first"}):
        answer = ask(listener, headers=name | given)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert TEXT not in answer.content


def test_a_token_is_replaced_while_the_process_runs(tmp_path: Path) -> None:
    file, clock, faults = tmp_path / "token", Clock(), Faults()
    file.write_text("first")
    listener = MetricsListener(scrape, name="0.0.0.0", token=TokenFile(file, clock), faults=faults)

    def status(token: str) -> int:
        return ask(listener, headers={"authorization": f"Bearer {token}"}).status_code

    assert status("first") == 200
    file.write_text("second")
    clock.now += READ_AGAIN_S
    assert (status("first"), status("second")) == (401, 200)
    file.unlink()
    clock.now += READ_AGAIN_S
    assert status("second") == 503
    assert "metrics.token-file" in str(faults.texts())
    file.write_text("third")
    clock.now += READ_AGAIN_S
    assert status("third") == 200
    assert faults.texts() == ()


def test_a_pipe_is_no_file_of_a_token_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "token")
    with pytest.raises(InvalidInputError, match="no regular file"):
        TokenFile(tmp_path / "token", Clock()).token()


@pytest.mark.parametrize("content", ["", "  \n", "two words", "é", "x" * 5000])
def test_a_file_without_a_token_says_what_is_allowed(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(InvalidInputError, match=r"metrics\.token-file.*one word of printable ASCII"):
        TokenFile(file, Clock()).token()

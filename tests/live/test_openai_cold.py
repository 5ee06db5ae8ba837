"""From zero by OpenAI's client: heartbeats, 202, deadlines and departures while a scripted server takes its time."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.live.test_openai import MESSAGES, manifest
from tests.support.deadline import Patience
from tests.support.live.deployment import Deployment, deployment, places

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

LOAD_S = 3.0
SLEEPS = {"scale-to-zero-after": "1s", "initial-scale": "0"}
CHAT: dict[str, Any] = {"messages": MESSAGES, "stream": True, "max_tokens": 3}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("openai-cold")
    with deployment(folder, *places(folder, 12)) as found:  # No function waits for a place of the test before.
        found.up()
        yield found


def asleep(
    world: Deployment, name: str, *, load_s: float = LOAD_S, load_until: Path | None = None, **annotations: str
) -> None:
    """Deploys a function that has no replica yet."""
    wanted = SLEEPS | {key.replace("_", "-"): value for key, value in annotations.items()}
    world.cli("deploy", manifest(world.folder, name, load_s=load_s, load_until=load_until, annotations=wanted))
    world.until_replicas(0, name=name)


def journal(world: Deployment, name: str) -> list[str]:
    file = world.folder / f"{name}.journal"
    return [line for line in file.read_text().splitlines() if "/v1/" in line] if file.exists() else []


def waiting(world: Deployment, name: str) -> int:
    """Requests that wait for a function, as the gateways said last (once a second)."""
    with world.sdk() as sdk:
        return sdk.function(name).traffic.waiting


def test_a_stream_from_zero_is_reported_of_the_start_and_nothing_is_lost(world: Deployment) -> None:
    asleep(world, "events", heartbeat="500ms")
    url = f"{world.gateway}/v1/chat/completions"
    lines: list[tuple[float, str]] = []
    begun, patience = time.monotonic(), Patience(LOAD_S / 2)
    with httpx.stream(
        "POST", url, json={"model": "events"} | CHAT, timeout=60, trust_env=False, verify=False
    ) as answer:
        is_soon = not patience.is_over
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["x-request-id"]
        lines.extend((time.monotonic() - begun, line) for line in answer.iter_lines() if line)
    comments = [line for _, line in lines if line.startswith(":")]
    events = [line for _, line in lines if line.startswith("data: ")]
    assert is_soon, "long before there was a replica"
    assert sum("phase=load" in line for line in comments) >= 2
    assert "cold-load;dur=" in comments[-1], "the last one has the times of the whole start"
    assert events[-1] == "data: [DONE]"
    texts = [json.loads(line[6:])["choices"][0]["delta"].get("content") or "" for line in events[:-1]]
    assert "".join(texts) == "w0 w1 w2 "


def test_the_official_client_reads_over_the_comments(world: Deployment) -> None:
    asleep(world, "official", heartbeat="500ms")
    with openai.OpenAI(base_url=f"{world.gateway}/openai/v1", api_key="none", max_retries=0, timeout=60) as client:
        stream = client.chat.completions.create(model="official", messages=MESSAGES, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "w0 w1 w2 w3 w4 "
    assert journal(world, "official").count("begun /v1/chat/completions") == 1


def test_without_the_annotation_a_client_waits_and_is_reported_the_time_by_a_field(world: Deployment) -> None:
    asleep(world, "silent", load_s=1.0)
    with openai.OpenAI(base_url=f"{world.gateway}/v1", api_key="none", max_retries=0, timeout=60) as client:
        answer = client.chat.completions.with_raw_response.create(model="silent", messages=MESSAGES)
        assert float(answer.headers["tidegate-cold-start-ms"]) > 900.0
        assert "cold-load;dur=" in answer.headers["server-timing"]
        warm = client.chat.completions.with_raw_response.create(model="silent", messages=MESSAGES)
        assert "tidegate-cold-start-ms" not in warm.headers


def test_a_failure_after_the_stream_was_opened_is_an_event_that_the_client_raises(world: Deployment) -> None:
    asleep(world, "failing", heartbeat="500ms")
    with openai.OpenAI(base_url=f"{world.gateway}/v1", api_key="none", max_retries=0, timeout=60) as client:
        stream = client.chat.completions.create(
            model="failing", messages=MESSAGES, stream=True, extra_body={"fail": 422}
        )
        with pytest.raises(openai.APIError, match="as the script says"):
            list(stream)


def test_a_server_that_dies_between_two_events_ends_the_stream_with_an_event(world: Deployment) -> None:
    asleep(world, "dying", heartbeat="500ms")
    with openai.OpenAI(base_url=f"{world.gateway}/v1", api_key="none", max_retries=0, timeout=60) as client:
        stream = client.chat.completions.create(
            model="dying", messages=MESSAGES, stream=True, extra_body={"die_after": 3, "gap_ms": 50}
        )
        texts: list[str] = []
        with pytest.raises(openai.APIError, match="broke off"):
            texts.extend(chunk.choices[0].delta.content or "" for chunk in stream)


def test_the_deadline_is_kept_and_reported_as_an_event(world: Deployment) -> None:
    asleep(world, "late", load_s=20.0, heartbeat="500ms")
    patience = Patience(5.0)
    with httpx.stream(
        "POST",
        f"{world.gateway}/v1/chat/completions",
        json={"model": "late"} | CHAT,
        headers={"tidegate-timeout-ms": "2000"},
        timeout=60,
        trust_env=False,
        verify=False,
    ) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert patience.passed_s > 1.9 and not patience.is_over
    error = json.loads(lines[-1].removeprefix("data: "))["error"]
    assert (error["code"], error["executed"]) == ("deadline_exceeded", "false")
    assert journal(world, "late") == []
    world.cli("delete", "late")


def test_who_leaves_while_waiting_frees_everything_at_once(world: Deployment) -> None:
    """Before its stream was opened, and after."""
    are_gone = world.folder / "gone"
    asleep(world, "left", load_s=0.0, load_until=are_gone, heartbeat="2s")
    url = f"{world.gateway}/v1/chat/completions"
    with (
        pytest.raises(httpx.ReadTimeout),
        httpx.stream("POST", url, json={"model": "left"} | CHAT, timeout=0.3, trust_env=False, verify=False),
    ):
        pass
    with httpx.stream("POST", url, json={"model": "left"} | CHAT, timeout=30, trust_env=False, verify=False) as answer:
        assert next(answer.iter_lines()).startswith(": ")
        world.until(lambda: waiting(world, "left") == 1, 5.0, "one to wait")
    world.until(lambda: waiting(world, "left") == 0, 2.5, "none to wait")
    are_gone.touch()
    world.until_replicas(1, name="left", limit_s=20.0)
    with openai.OpenAI(base_url=f"{world.gateway}/v1", api_key="none", max_retries=0, timeout=60) as client:
        client.chat.completions.create(model="left", messages=MESSAGES)
    assert journal(world, "left").count("begun /v1/chat/completions") == 1, "only who stayed was served"


def test_many_streams_at_once_from_zero_all_get_their_answers(world: Deployment) -> None:
    asleep(world, "crowd", load_s=1.5, heartbeat="500ms")
    answers: list[str] = []

    def ask(number: int) -> None:
        with openai.OpenAI(base_url=f"{world.gateway}/v1", api_key="none", max_retries=0, timeout=60) as client:
            stream = client.chat.completions.create(
                model="crowd", messages=MESSAGES, stream=True, max_tokens=number + 1
            )
            answers.append("".join(chunk.choices[0].delta.content or "" for chunk in stream))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(text.split()) for text in answers) == list(range(1, 13))


def test_202_wakes_the_function_and_says_when_and_where(world: Deployment) -> None:
    asleep(world, "accepted", load_s=1.0, cold_calls="accept")
    body = {"model": "accepted", "messages": MESSAGES}
    with httpx.Client(base_url=world.gateway, trust_env=False, verify=False, timeout=30) as http:
        patience = Patience(1.0)
        first = http.post("/v1/chat/completions", json=body)
        assert not patience.is_over
        assert first.status_code == 202
        assert int(first.headers["retry-after"]) >= 1
        url = first.headers["location"]
        assert (url, first.json()["status_url"]) == ("/openai/v1/models/accepted", url)
        assert http.get(url).json()["status"] in ("asleep", "starting")
        world.until(lambda: http.get(url).json()["status"] == "ready", 20.0, "the function to be ready")
        again = http.post("/v1/chat/completions", json=body)
        assert again.status_code == 200
        assert "tidegate-cold-start-ms" not in again.headers
    assert journal(world, "accepted").count("begun /v1/chat/completions") == 1

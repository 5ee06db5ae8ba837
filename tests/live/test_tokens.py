"""Tokens through a whole deployment: the official client, a scripted model server, what status and metrics tell."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.live.deployment import Deployment, deployment, places

pytestmark = [pytest.mark.live, pytest.mark.early(60), pytest.mark.timeout(120)]

SERVER = Path(__file__).parents[1] / "support" / "models" / "openai_server.py"
MESSAGES: Any = [{"role": "user", "content": "one two three four"}]
SLACK_S = 1.0
"""A busy machine may be late by so much; nothing is ever early."""


def manifest(folder: Path, name: str, load_s: float, **annotations: str) -> str:
    """A function whose server is the script; its file's path."""
    known = {f"tidegate.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    document = {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "Function",
        "metadata": {"name": name, "annotations": {"tidegate.dev/latency": "250ms", **known}},
        "spec": {
            "server": {"command": [sys.executable, str(SERVER), "{port}", str(load_s)]},
            "protocol": "openai",
            "concurrency": 2,
        },
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document))
    return str(path)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("tokens")
    with deployment(folder, *places(folder, 2)) as found:
        found.up()
        found.cli("deploy", manifest(folder, "lm", 0.0, target_tps="1000", max_scale="1"))
        yield found


@pytest.fixture
def client(served: Deployment) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.gateway + "/v1", api_key="none", max_retries=0, timeout=30) as found:
        yield found


class Counted:
    """Series of the control process's ``/metrics``; :meth:`since` tells by how much they have grown."""

    def __init__(self, served: Deployment) -> None:
        self._served = served
        self._before = self._read()

    def _read(self) -> dict[str, float]:
        with self._served.sdk() as tidegate:
            text = tidegate.metrics()
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                kind = sample.labels.get("gen_ai_token_type")
                name = sample.name + (f":{kind}" if kind else "")
                if "le" not in sample.labels:
                    found[name] = found.get(name, 0.0) + sample.value
        return found

    def since(self, name: str) -> float:
        """Over all labels but the kind of token."""
        return self._read().get(name, 0.0) - self._before.get(name, 0.0)

    def ends(self, count: int) -> None:
        """Waits until so many requests have ended: a client's end is known a moment after the client's."""
        name = "gen_ai_server_request_duration_seconds_count"
        self._served.until(lambda: self.since(name) >= count, 5.0, f"{count} requests to end")

    def tokens(self) -> tuple[float, float]:
        return (
            self.since("tidegate_gateway_prompt_tokens_total"),
            self.since("tidegate_gateway_completion_tokens_total"),
        )


def test_usage_is_counted_exactly(served: Deployment, client: openai.OpenAI) -> None:
    counted = Counted(served)
    prompts = completions = 0
    for most in (1, 3, 50):
        answer = client.chat.completions.create(model="lm", messages=MESSAGES, max_tokens=most)
        assert answer.usage is not None
        prompts, completions = prompts + answer.usage.prompt_tokens, completions + answer.usage.completion_tokens
        *_, last = client.chat.completions.create(
            model="lm", messages=MESSAGES, max_tokens=most, stream=True, stream_options={"include_usage": True}
        )
        assert last.usage is not None
        prompts, completions = prompts + last.usage.prompt_tokens, completions + last.usage.completion_tokens
    embedded = client.embeddings.create(model="lm", input=["a b", "c d e"])
    prompts += embedded.usage.prompt_tokens
    for stream in (False, True):
        body = {"model": "lm", "max_tokens": 7, "messages": MESSAGES, "stream": stream}
        reply = httpx.post(served.gateway + "/v1/messages", json=body, trust_env=False, verify=False)
        assert reply.status_code == 200
        completions += 7
        prompts += int(reply.text.partition('"input_tokens": ')[2].partition(",")[0])
    counted.ends(9)
    assert counted.tokens() == (prompts, completions)
    assert counted.since("tidegate_gateway_estimated_answers_total") == 0
    assert counted.since("gen_ai_client_token_usage_sum:input") == prompts
    assert counted.since("gen_ai_client_token_usage_sum:output") == completions
    assert counted.since("gen_ai_server_request_duration_seconds_count") == 9


def test_a_stream_without_usage_is_counted_by_its_events_and_stays_as_it_is(
    served: Deployment, client: openai.OpenAI
) -> None:
    counted = Counted(served)
    chunks = list(client.chat.completions.create(model="lm", messages=MESSAGES, max_tokens=11, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks), "no request asked for more events"
    counted.ends(1)
    assert counted.tokens()[1] == 11
    assert counted.since("tidegate_gateway_estimated_answers_total") == 1


def test_a_stream_of_the_responses_api_is_counted_by_its_own_usage(served: Deployment, client: openai.OpenAI) -> None:
    """A caller's tools stand in its first event: what they say of tokens is not the server's."""
    counted = Counted(served)
    schema = {"type": "object", "examples": [{"usage": {"prompt_tokens": 1, "completion_tokens": 1}}]}
    tools: Any = [{"type": "function", "name": "f", "parameters": schema, "strict": False}]
    events = list(client.responses.create(model="lm", input="a b c", tools=tools, max_output_tokens=12, stream=True))
    assert events[-1].type == "response.completed"
    counted.ends(1)
    assert counted.tokens() == (3, 12)
    assert counted.since("tidegate_gateway_between_tokens_seconds_count") == 11


def test_a_model_that_thinks_writes_tokens(served: Deployment, client: openai.OpenAI) -> None:
    counted = Counted(served)
    extra = {"think": 20}
    list(client.chat.completions.create(model="lm", messages=MESSAGES, max_tokens=4, stream=True, extra_body=extra))
    counted.ends(1)
    assert counted.tokens()[1] == 24
    assert counted.since("tidegate_gateway_between_tokens_seconds_count") == 23, "from its first thought"


def test_over_http_2_too(served: Deployment) -> None:
    counted = Counted(served)
    body = {"model": "lm", "messages": MESSAGES, "max_tokens": 9}
    with httpx.Client(
        base_url=served.gateway, http1=False, http2=True, trust_env=False, verify=False, timeout=30
    ) as http:
        usage = http.post("/v1/chat/completions", json=body).json()["usage"]
        answer = http.post("/v1/chat/completions", json=body | {"stream": True, "gap_ms": 20})
    assert answer.http_version == "HTTP/2"
    counted.ends(2)
    assert counted.tokens()[1] == usage["completion_tokens"] + 9
    assert counted.since("tidegate_gateway_between_tokens_seconds_count") == 8


def test_times_are_the_scripts(served: Deployment, client: openai.OpenAI) -> None:
    """The head goes out after 100 ms, the first word 80 ms later, then one each 80 ms."""
    counted = Counted(served)
    extra = {"wait_ms": 100, "gap_ms": 80}
    for _ in range(2):
        list(client.chat.completions.create(model="lm", messages=MESSAGES, max_tokens=6, stream=True, extra_body=extra))
    counted.ends(2)
    for name, count, least_s in (
        ("tidegate_gateway_first_token_seconds", 2, 0.180),
        ("gen_ai_server_time_to_first_token_seconds", 2, 0.180),
        ("tidegate_gateway_between_tokens_seconds", 10, 0.080),
        ("gen_ai_server_time_per_output_token_seconds", 2, 0.080),
        ("gen_ai_server_request_duration_seconds", 2, 0.740),
    ):
        assert counted.since(f"{name}_count") == count, name
        mean_s = counted.since(f"{name}_sum") / count
        assert 0.98 * least_s <= mean_s <= least_s + SLACK_S, name


def test_a_client_that_leaves_has_had_what_it_has_seen(served: Deployment) -> None:
    counted = Counted(served)
    body = {"model": "lm", "messages": MESSAGES, "max_tokens": 1000, "stream": True, "gap_ms": 20}
    with httpx.stream(
        "POST", served.gateway + "/v1/chat/completions", json=body, trust_env=False, verify=False
    ) as answer:
        seen = 0
        for line in answer.iter_lines():
            seen += '"content": "w' in line
            if seen == 5:
                break
    served.until(lambda: counted.tokens()[1], 5.0, "the stream's end")
    assert 5 <= counted.tokens()[1] < 100
    assert counted.since("tidegate_gateway_estimated_answers_total") == 1


def _traffic(served: Deployment, name: str) -> dict[str, Any]:
    """What the gateways reported of a function last; empty before they have reported an answer."""
    traffic: dict[str, Any] = served.status(name)["traffic"]
    return traffic if traffic["answered"] else {}


def test_a_stream_from_zero_begins_with_its_first_word_not_with_a_heartbeat(
    served: Deployment, client: openai.OpenAI
) -> None:
    served.cli("deploy", manifest(served.folder, "sleepy", 1.5, initial_scale="0", heartbeat="500ms"))
    counted = Counted(served)
    words = list(client.chat.completions.create(model="sleepy", messages=MESSAGES, max_tokens=4, stream=True))
    assert len(words) >= 4
    counted.ends(1)
    assert counted.since("tidegate_gateway_first_token_seconds_count") == 1
    assert counted.since("tidegate_gateway_first_token_seconds_sum") > 1.5
    traffic = served.until(lambda: _traffic(served, "sleepy"), 10.0, "a sample that tells of the answer")
    assert (traffic["answered"], traffic["within_sla"]) == (1, 0), "its client waited for the start"
    assert traffic["tail_s"] > 1.5


def test_rates_and_times_are_reported(served: Deployment, client: openai.OpenAI) -> None:
    """Both slots are busy for some seconds with requests of one size: so is what a replica can do."""
    list(client.chat.completions.create(model="lm", messages=MESSAGES, stream=True, extra_body={"wait_ms": 200}))

    async def load() -> int:
        async with httpx.AsyncClient(base_url=served.gateway, trust_env=False, verify=False, timeout=30) as http:

            async def one() -> int:
                total, loop = 0, asyncio.get_running_loop()
                end = loop.time() + 9.0
                body = {"model": "lm", "messages": MESSAGES, "max_tokens": 20, "wait_ms": 50}
                while loop.time() < end:
                    usage = (await http.post("/v1/chat/completions", json=body)).json()["usage"]
                    total = usage["total_tokens"]
                return total

            return (await asyncio.gather(*[one() for _ in range(6)]))[0]

    each = asyncio.run(load())
    shown = served.status("lm")
    tokens = shown["traffic"]["tokens"]
    assert tokens["answers"] > 50
    assert tokens["completion"] >= 20 * 50
    assert tokens["completion_per_s"] > 20
    assert tokens["first_tail_s"] >= 0.2
    (group,) = shown["revisions"][0]["groups"]
    assert group["mu_source"] == "learnt"
    assert group["tps"] > 0
    assert group["mu_tps"] == pytest.approx(group["mu_ips"] * each, rel=0.05)
    assert "tokens: " in served.cli("status", "lm").stdout
    explained = served.ask("explain", "lm")
    assert max(each["observed"].get("lambda_tps", 0.0) for each in explained["decisions"]) > 0
    assert " tokens/s" in explained["text"]
    with served.sdk() as tidegate:
        units = {line.metric: line.unit for line in tidegate.series("lm").lines}
        assert units["lambda_tps"] == units["mu_tps"] == "tokens/s"
        assert "tidegate_group_token_service_rate{" in tidegate.metrics()
    recording = served.folder / "lm.ndjson"
    served.cli("record", "lm", "-o", str(recording))
    assert '"lambda_tps"' in recording.read_text()
    command = [sys.executable, "-m", "tidegate.control.cli", "replay", str(recording)]
    replayed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "come out the same, bit for bit" in replayed.stdout, replayed.stdout + replayed.stderr


def test_a_deploy_says_what_streams_cost_at_their_load(served: Deployment) -> None:
    """Twenty words at 20 ms each: 50 ms a word can be kept, half of it too, by two streams of a replica at a time."""
    path = manifest(
        served.folder, "chat", 0.0, max_scale="1", percentile="99", latency="2s", time_per_output_token="50ms"
    )
    assert served.ask("deploy", path)["functions"][0]["capacity"]["sla_costs"] == []
    body = {"model": "chat", "messages": MESSAGES, "max_tokens": 20, "gap_ms": 20, "wait_ms": 30, "stream": True}

    async def load() -> None:
        async with httpx.AsyncClient(base_url=served.gateway, trust_env=False, verify=False, timeout=30) as http:

            async def one() -> None:
                loop = asyncio.get_running_loop()
                end = loop.time() + 6.0
                while loop.time() < end:
                    (await http.post("/v1/chat/completions", json=body)).raise_for_status()

            await asyncio.gather(*[one() for _ in range(3)])

    asyncio.run(load())
    answer = served.ask("deploy", path)["functions"][0]["capacity"]
    (cpu,) = answer["kinds"]
    assert cpu["first_s"] < 0.4 < cpu["one_s"]
    asked, half, twice = answer["sla_costs"]
    assert [each["latency_s"] for each in (asked, half, twice)] == [2.0, 1.0, 4.0]
    assert [each["per_token_s"] for each in (asked, half, twice)] == [0.05, 0.025, 0.1]
    assert asked["replicas"] >= 1
    assert asked["replicas"] >= twice["replicas"] >= 1
    said = served.cli("deploy", path)
    assert "2 s to the first token and 50 ms a token for" in said.stdout + said.stderr

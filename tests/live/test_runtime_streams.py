"""Python classes that stream, through a whole deployment: REST, OpenAI's client, Triton's gRPC client."""

import json
import queue
from collections.abc import Iterator
from typing import Any

import httpx
import numpy
import openai
import pytest
import tritonclient.grpc as triton

from tests.support.live.deployment import Deployment, deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

STORY = """
import time
class Story:
    def predict(self, inputs, parameters):
        said = inputs.get("messages")
        words = [said[-1]["content"]] if said else []
        words += ["the ", "tide ", "gate ", "opens "]
        try:
            for at in range(int(parameters.get("max_tokens") or len(words))):
                if at == parameters.get("fail"):
                    raise ValueError("broke")
                time.sleep(0.05)
                yield words[at % len(words)]
            print("STORY whole", flush=True)
        except GeneratorExit:
            print("STORY closed", flush=True)
            raise
"""
ASYNC = """
import asyncio
class Story:
    concurrency = 2
    async def predict(self, inputs):
        try:
            for at in range(1000):
                await asyncio.sleep(0.05)
                yield {"number": at}
        finally:
            print("ASYNC closed", flush=True)
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("streams")
    with deployment(folder) as found:
        found.up()
        for name, text in (("story", STORY), ("endless", ASYNC)):
            (folder / f"{name}.py").write_text(text)
            found.cli("deploy", f"{folder}/{name}.py:Story", "--max-scale", "1")
        yield found


def events(served: Deployment, name: str, body: Any) -> list[Any]:
    url = f"{served.gateway}/v2/models/{name}/generate_stream"
    with httpx.stream("POST", url, json=body, timeout=20, trust_env=False, verify=False) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        return [json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line]


def until_logged(served: Deployment, name: str, words: str, count: int = 1) -> None:
    served.until(lambda: served.cli("logs", name).stdout.count(words) >= count, 10.0, f"{words} in the log of {name}")


def test_generate_stream_sends_each_answer_when_it_is_made(served: Deployment) -> None:
    found = events(served, "story", {"text_input": "x", "id": "7"})
    assert [each["output"] for each in found] == ["the ", "tide ", "gate ", "opens "]
    assert found[0]["model_name"] == "story"
    assert found[0]["id"] == "7"


def test_generate_and_infer_give_the_whole_text(served: Deployment) -> None:
    url = f"{served.gateway}/v2/models/story"
    whole = httpx.post(
        f"{url}/generate", json={"text_input": "x", "max_tokens": 2}, timeout=20, trust_env=False, verify=False
    )
    # Nothing is declared: every key is an input. Parameters have a key of their own.
    assert whole.json()["output"] == "the tide gate opens "
    short = {"text_input": "x", "parameters": {"max_tokens": 2}}
    assert (
        httpx.post(f"{url}/generate", json=short, timeout=20, trust_env=False, verify=False).json()["output"]
        == "the tide "
    )
    tensor = {"inputs": [{"name": "t", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}
    answer = httpx.post(f"{url}/infer", json=tensor, timeout=20, trust_env=False, verify=False).json()
    assert answer["outputs"][0]["data"] == ["the tide gate opens "]


def test_an_error_amid_the_stream_is_its_last_event(served: Deployment) -> None:
    found = events(served, "story", {"text_input": "x", "parameters": {"fail": 2}})
    assert [each.get("output") for each in found] == ["the ", "tide ", None]
    assert "ValueError: broke (story.py, line 11)" in found[-1]["error"]
    first = httpx.post(
        f"{served.gateway}/v2/models/story/generate_stream",
        json={"text_input": "x", "parameters": {"fail": 0}},
        timeout=20,
        trust_env=False,
        verify=False,
    )
    assert first.status_code == 500, "a failure before the first answer has a status of its own"


@pytest.fixture
def client(served: Deployment) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.gateway + "/v1", api_key="none", max_retries=0, timeout=30) as found:
        yield found


def test_openais_client_reads_chat_completions(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "hi "}]
    chunks = list(client.chat.completions.create(model="story", messages=messages, stream=True, max_tokens=3))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hi the tide "
    assert chunks[-1].choices[0].finish_reason == "stop"
    whole = client.chat.completions.create(model="story", messages=messages)
    assert whole.choices[0].message.content == "hi the tide gate opens "
    with pytest.raises(openai.APIError, match="broke"):
        list(client.chat.completions.create(model="story", messages=messages, stream=True, extra_body={"fail": 1}))


def test_tritonclient_streams_and_is_reported_of_the_end(served: Deployment) -> None:
    address = served.gateway.removeprefix("http://")
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    text = triton.InferInput("text_input", [1], "BYTES")
    text.set_data_from_numpy(numpy.array([b"x"], dtype=object))
    with triton.InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("story", [text], request_id="1", enable_empty_final_response=True)
        found = [answers.get(timeout=20) for _ in range(5)]
        assert [error for _, error in found] == [None] * 5
        said = [b"".join(result.as_numpy("output").flatten()) for result, _ in found[:4]]
        assert said == [b"the ", b"tide ", b"gate ", b"opens "]
        final = [result.get_response().parameters["triton_final_response"].bool_param for result, _ in found]
        assert final == [False] * 4 + [True]
        client.async_stream_infer("story", [text], parameters={"fail": 1})
        (first, none), (_, error) = answers.get(timeout=20), answers.get(timeout=20)
        assert none is None
        assert first is not None
        assert "broke" in str(error)
        client.stop_stream()


def test_a_client_that_leaves_closes_the_generator_and_frees_its_slot(served: Deployment) -> None:
    url = f"{served.gateway}/v2/models/story/generate_stream"
    body = {"text_input": "x", "parameters": {"max_tokens": 10_000}}
    with httpx.stream("POST", url, json=body, timeout=20, trust_env=False, verify=False) as answer:
        next(answer.iter_lines())
    until_logged(served, "story", "STORY closed")
    assert len(events(served, "story", {"text_input": "x"})) == 4
    url = f"{served.gateway}/v2/models/endless/generate_stream"
    with httpx.stream("POST", url, json={"x": 1}, timeout=20, trust_env=False, verify=False) as answer:
        next(answer.iter_lines())
    until_logged(served, "endless", "ASYNC closed")


def test_a_stream_holds_its_slot_to_its_end(served: Deployment) -> None:
    """A class whose predict is a plain generator declares one slot: the second request waits for it."""
    url = f"{served.gateway}/v2/models/story/generate_stream"
    long = {"text_input": "x", "parameters": {"max_tokens": 10_000}}
    short = {"text_input": "x", "parameters": {"max_tokens": 1}}
    with httpx.stream("POST", url, json=long, timeout=20, trust_env=False, verify=False) as answer:
        lines = answer.iter_lines()
        next(lines)
        second = httpx.post(
            url, json=short, headers={"tidegate-timeout-ms": "1000"}, timeout=20, trust_env=False, verify=False
        )
        assert second.status_code == 504
        assert next(lines) is not None, "the first goes on"
    assert httpx.post(url, json=short, timeout=20, trust_env=False, verify=False).status_code == 200

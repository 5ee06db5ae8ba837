"""OpenAI's chat completions, answered without a socket by a model that streams."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from tidegate.aio.admin.endpoint import Request, Response, StreamResponse
from tidegate.runtime import openai
from tidegate.runtime.errors import ModelError
from tidegate.runtime.execute.model import Inputs, Outputs
from tidegate.runtime.metrics import RuntimeCounters
from tidegate.runtime.protocols.tensors import Tensor
from tidegate.runtime.protocols.v2 import ModelSpec, TensorSpec
from tidegate.runtime.service import ModelService

STREAMS = ModelSpec("python", None, None, streams=True)
MESSAGES = [{"role": "user", "content": "hi"}]


async def infer(inputs: Inputs) -> Outputs:
    raise AssertionError("a model that streams is never run as a whole here")


async def stream(inputs: Inputs | Mapping[str, Any], parameters: Mapping[str, Any]) -> AsyncGenerator[Outputs, None]:
    assert isinstance(inputs, Mapping)
    for at, word in enumerate((inputs["messages"][0]["content"], "!", parameters.get("word", "?"))):
        if parameters.get("fail") == at:
            raise ModelError("broke")
        yield {"y": Tensor("y", "BYTES", (), [word.encode()])}


def ask(document: Any, spec: ModelSpec = STREAMS) -> tuple[int, bytes, RuntimeCounters]:
    counters = RuntimeCounters()
    service = ModelService(("m",), counters, body_bytes=10_000, openai=openai.answer)
    service.start(spec, infer, lambda: 0, stream if spec.streams else None)

    async def main() -> tuple[int, bytes]:
        response = await service.handle(Request("POST", "/v1/chat/completions", "", {}, json.dumps(document).encode()))
        if isinstance(response, Response):
            return response.status, response.body
        assert isinstance(response, StreamResponse)
        assert response.content_type == "text/event-stream"
        return response.status, b"".join([piece async for piece in response.chunks])

    status, body = asyncio.run(main())
    assert service.active == 0
    return status, body, counters


def events(body: bytes) -> list[Any]:
    return [
        json.loads(each.removeprefix("data: ")) for each in body.decode().split("\n\n") if each.startswith("data: {")
    ]


def test_a_whole_completion() -> None:
    status, body, counters = ask({"model": "m", "messages": MESSAGES, "word": "ho", "stream": False})
    answer = json.loads(body)
    assert (status, answer["object"], counters.success) == (200, "chat.completion", 1)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "hi!ho"}
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_stream_ends_with_done() -> None:
    status, body, counters = ask({"model": "m", "messages": MESSAGES, "stream": True})
    assert (status, counters.success) == (200, 1)
    assert body.endswith(b"data: [DONE]\n\n")
    found = events(body)
    assert [each["choices"][0]["delta"].get("content") for each in found] == ["hi", "!", "?", None]
    assert [each["choices"][0]["finish_reason"] for each in found] == [None, None, None, "stop"]
    assert found[0]["choices"][0]["delta"]["role"] == "assistant"
    assert len({each["id"] for each in found}) == 1


def test_a_failure_amid_a_stream_is_an_event_and_no_done_follows() -> None:
    status, body, counters = ask({"model": "m", "messages": MESSAGES, "stream": True, "fail": 1})
    assert (status, counters.backend) == (200, 1)
    assert events(body)[-1] == {"error": {"message": "broke", "type": "server_error", "param": None, "code": None}}
    assert b"[DONE]" not in body


def test_a_failure_before_the_first_answer_is_a_status() -> None:
    status, body, counters = ask({"model": "m", "messages": MESSAGES, "stream": True, "fail": 0})
    assert (status, json.loads(body)["error"]["message"], counters.backend) == (500, "broke", 1)


@pytest.mark.parametrize(
    ("change", "spec", "status", "says"),
    [
        ({"model": "x"}, STREAMS, 404, "does not exist"),
        ({"model": 1}, STREAMS, 400, "'model' must be"),
        ({"messages": []}, STREAMS, 400, "'messages' must be"),
        ({"messages": "hi"}, STREAMS, 400, "'messages' must be"),
        ({"stream": "yes"}, STREAMS, 400, "'stream' must be"),
        ({"n": 2}, STREAMS, 400, "'n' must be 1"),
        ({}, ModelSpec("python", None, None), 404, "does not yield"),
        ({}, ModelSpec("python", (TensorSpec("x", "FP32", (1,)),), None, streams=True), 404, "declares the inputs x"),
    ],
)
def test_refusals(change: dict[str, Any], spec: ModelSpec, status: int, says: str) -> None:
    found, body, _ = ask({"model": "m", "messages": MESSAGES, **change}, spec)
    assert (found, says in json.loads(body)["error"]["message"]) == (status, True), body

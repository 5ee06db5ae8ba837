"""OpenAI's embeddings from a model of texts: questions, answers, every fault reported in OpenAI's shape."""

import asyncio
import base64
import gzip
import json
import struct
from dataclasses import replace
from typing import Any

import pytest

from tests.tidegate.runtime.test_service import SPEC
from tidegate.aio.admin.endpoint import Request, Response
from tidegate.runtime import openai
from tidegate.runtime.embeddings import MAX_TEXTS, embedder
from tidegate.runtime.execute.model import Inputs, Outputs
from tidegate.runtime.metrics import RuntimeCounters
from tidegate.runtime.protocols.tensors import BYTES, Tensor
from tidegate.runtime.protocols.v2 import ModelSpec, TensorSpec
from tidegate.runtime.service import Infer, ModelService

TEXTS = ModelSpec(
    platform="test",
    inputs=(TensorSpec("text", BYTES, (-1,)),),
    outputs=(TensorSpec("embedding", "FP32", (-1, 2)), TensorSpec("tokens", "INT32", (-1,))),
)


async def lengths(inputs: Inputs) -> Outputs:
    """A vector of a text's length and 0.1; its words as tokens."""
    texts = inputs[0].data
    assert isinstance(texts, list)
    vectors = b"".join(struct.pack("<2f", len(text), 0.1) for text in texts)
    tokens = b"".join(struct.pack("<i", len(text.split())) for text in texts)
    count = len(texts)
    return {
        "embedding": Tensor("embedding", "FP32", (count, 2), memoryview(vectors)),
        "tokens": Tensor("tokens", "INT32", (count,), tokens),
    }


def bounded(spec: ModelSpec) -> Infer:
    """``lengths`` by a model that takes so many texts at once."""

    async def infer(inputs: Inputs) -> Outputs:
        assert spec.max_rows is None or inputs[0].shape[0] <= spec.max_rows
        return await lengths(inputs)

    return infer


def ask(
    document: Any,
    *,
    method: str = "POST",
    path: str = "/v1/embeddings",
    spec: ModelSpec = TEXTS,
    infer: Infer | None = None,
) -> tuple[int, Any]:
    service = ModelService(("m", "org/n"), RuntimeCounters(), body_bytes=1 << 20, openai=openai.answer)
    service.start(spec, infer or bounded(spec), lambda: 0)
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    headers = {"content-encoding": "gzip"} if body[:2] == b"\x1f\x8b" else {}
    response = asyncio.run(service.handle(Request(method, path, "", headers, body)))
    assert isinstance(response, Response)
    return response.status, json.loads(response.body)


def test_texts_become_vectors_in_their_order_and_their_tokens_are_counted() -> None:
    status, answer = ask({"model": "m", "input": ["one", "two words"]})
    assert status == 200
    assert answer == {
        "object": "list",
        "model": "m",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [3.0, 0.100000001]},
            {"object": "embedding", "index": 1, "embedding": [9.0, 0.100000001]},
        ],
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }
    assert ask({"model": "org/n", "input": "été"})[1]["data"][0]["embedding"][0] == 5.0
    assert ask(gzip.compress(b'{"model":"m","input":"x"}'))[0] == 200


def test_base64_has_the_very_same_numbers() -> None:
    _, answer = ask({"model": "m", "input": "one", "encoding_format": "base64", "user": "u"})
    assert struct.unpack("<2f", base64.b64decode(answer["data"][0]["embedding"])) == (3.0, pytest.approx(0.1))


@pytest.mark.parametrize("count", [1, 3, 4, 7])
def test_more_texts_than_the_model_takes_at_once_run_one_part_after_the_other(count: int) -> None:
    """A client sends up to 2,048 texts whatever ``max_batch_size`` is: that bounds runs."""
    texts = ["word " * (number + 1) for number in range(count)]
    status, answer = ask({"model": "m", "input": texts}, spec=replace(TEXTS, max_rows=3))
    assert status == 200
    assert [each["index"] for each in answer["data"]] == list(range(count))
    assert [each["embedding"][0] for each in answer["data"]] == [float(len(text)) for text in texts]
    assert answer["usage"]["prompt_tokens"] == count * (count + 1) // 2


def test_a_model_that_makes_fewer_vectors_than_texts_is_the_servers_fault() -> None:
    async def one(inputs: Inputs) -> Outputs:
        return await lengths([Tensor("text", BYTES, (1,), inputs[0].data[:1])])

    status, answer = ask({"model": "m", "input": ["a", "b"]}, infer=one)
    assert (status, answer["error"]["type"]) == (500, "server_error")
    assert "1 vectors of 2 texts" in answer["error"]["message"]


def test_the_models_own_dimensions_may_be_named() -> None:
    assert ask({"model": "m", "input": "x", "dimensions": 2})[0] == 200


@pytest.mark.parametrize(
    ("document", "status", "message"),
    [
        ({"model": "m", "input": "x", "dimensions": 3}, 400, "vectors have 2 numbers"),
        ({"model": "m", "input": "x", "dimensions": 0}, 400, "'dimensions' must be"),
        ({"model": "m", "input": "x", "encoding_format": "hex"}, 400, "one of float, base64"),
        ({"model": "m", "input": []}, 400, "at least one text"),
        ({"model": "m"}, 400, "'input' must be a text"),
        ({"model": "m", "input": ["x", ""]}, 400, "empty text"),
        ({"model": "m", "input": [1, 2]}, 400, "not by numbers"),
        ({"model": "m", "input": [[1, 2]]}, 400, "not by numbers"),
        ({"model": "m", "input": ["x"] * (MAX_TEXTS + 1)}, 400, "2048 at most"),
        (b'{"model":"m","input":"\\ud800"}', 400, "surrogate"),
        ({"input": "x"}, 400, "'model' must be a string"),
        ({"model": "q", "input": "x"}, 404, "'q' does not exist"),
        ([], 400, "must be a JSON object"),
        (b"{", 400, "not JSON"),
    ],
)
def test_faults_are_reported_in_openais_shape(document: Any, status: int, message: str) -> None:
    found, answer = ask(document)
    assert (found, answer["error"]["type"]) == (status, "invalid_request_error")
    assert message in answer["error"]["message"]
    assert answer["error"]["code"] == ("model_not_found" if status == 404 else None)


def test_models_of_other_kinds_make_none() -> None:
    assert embedder(SPEC) is None
    assert embedder(ModelSpec("any", None, None)) is None
    two = ModelSpec("x", TEXTS.inputs, (*TEXTS.outputs, TensorSpec("other", "FP32", (-1, 3))))  # type: ignore[misc]  # it has outputs
    assert embedder(two) is None
    assert "makes no embeddings" in ask({"model": "m", "input": "x"}, spec=SPEC)[1]["error"]["message"]


def test_a_model_that_breaks_its_word_is_the_servers_fault() -> None:
    wide = ModelSpec("x", TEXTS.inputs, (TensorSpec("tokens", "FP32", (-1, 2)),))
    status, answer = ask({"model": "m", "input": "x"}, spec=wide)
    assert (status, answer["error"]["type"]) == (500, "server_error")


def test_which_models_there_are() -> None:
    status, listed = ask(b"", method="GET", path="/v1/models")
    assert (status, [model["id"] for model in listed["data"]]) == (200, ["m", "org/n"])
    assert ask(b"", method="GET", path="/v1/models/org/n")[1]["object"] == "model"
    assert ask(b"", method="GET", path="/v1/models/q")[1]["error"]["code"] == "model_not_found"
    assert ask(b"", method="GET", path="/v1/embeddings")[0] == 405
    assert ask(b"", method="GET", path="/v1/embeddings", spec=SPEC)[0] == 404, "a route that the model has not"
    assert ask(b"", method="GET", path="/v1/chat/completions")[0] == 404
    assert ask(b"", path="/v1/other")[0] == 404
    assert ask(b"", method="GET", path="/health") == (200, {"ready": True})

"""OpenAI's embeddings from a model of texts: what it is asked, what it answers, every fault told in OpenAI's shape."""

import asyncio
import base64
import gzip
import json
import struct
from typing import Any

import pytest

from tests.runtime.test_service import SPEC
from tidegate.aio.endpoint import Request
from tidegate.runtime.embeddings import MOST_TEXTS, embedder
from tidegate.runtime.metrics import Counters
from tidegate.runtime.model import Inputs, Outputs
from tidegate.runtime.protocol import ModelSpec, TensorSpec
from tidegate.runtime.service import Service
from tidegate.runtime.tensors import BYTES, Tensor

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


def ask(
    document: Any, *, method: str = "POST", path: str = "/v1/embeddings", spec: ModelSpec = TEXTS
) -> tuple[int, Any]:
    service = Service(("m", "org/n"), Counters(), body_bytes=1 << 20)
    service.start(spec, lengths, lambda: 0)
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    headers = {"content-encoding": "gzip"} if body[:2] == b"\x1f\x8b" else {}
    response = asyncio.run(service.handle(Request(method, path, "", headers, body)))
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


def test_the_models_own_dimensions_may_be_named() -> None:
    assert ask({"model": "m", "input": "x", "dimensions": 2})[0] == 200


@pytest.mark.parametrize(
    ("document", "status", "told"),
    [
        ({"model": "m", "input": "x", "dimensions": 3}, 400, "vectors have 2 numbers"),
        ({"model": "m", "input": "x", "dimensions": 0}, 400, "'dimensions' must be"),
        ({"model": "m", "input": "x", "encoding_format": "hex"}, 400, "one of float, base64"),
        ({"model": "m", "input": []}, 400, "at least one text"),
        ({"model": "m"}, 400, "'input' must be a text"),
        ({"model": "m", "input": ["x", ""]}, 400, "empty text"),
        ({"model": "m", "input": [1, 2]}, 400, "not by numbers"),
        ({"model": "m", "input": [[1, 2]]}, 400, "not by numbers"),
        ({"model": "m", "input": ["x"] * (MOST_TEXTS + 1)}, 400, "2048 at most"),
        (b'{"model":"m","input":"\\ud800"}', 400, "surrogate"),
        ({"input": "x"}, 400, "'model' must be a string"),
        ({"model": "q", "input": "x"}, 404, "'q' does not exist"),
        ([], 400, "must be a JSON object"),
        (b"{", 400, "not JSON"),
    ],
)
def test_faults_are_told_in_openais_shape(document: Any, status: int, told: str) -> None:
    found, answer = ask(document)
    assert (found, answer["error"]["type"]) == (status, "invalid_request_error")
    assert told in answer["error"]["message"]
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
    assert ask(b"", path="/v1/other")[0] == 404
    assert ask(b"", method="GET", path="/health") == (200, {"ready": True})

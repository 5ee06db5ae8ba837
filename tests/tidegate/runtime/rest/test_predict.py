"""V1's inference and readiness, answered without a socket."""

import asyncio
import gzip
import json
from typing import Any

import pytest

from tests.tidegate.runtime.test_service import SPEC, echo
from tidegate.aio.admin.endpoint import Request, Response
from tidegate.runtime import openai
from tidegate.runtime.metrics import RuntimeCounters
from tidegate.runtime.rest import predict
from tidegate.runtime.service import AnyResponse, ModelService


async def answered(service: ModelService, request: Request, parts: list[str]) -> AnyResponse:
    return await predict.answer(service, request, *parts)


def made(*, is_loaded: bool = True) -> ModelService:
    service = ModelService(
        ("m", "org/n", "l:8b"), RuntimeCounters(), body_bytes=1000, openai=openai.answer, predict=answered
    )
    if is_loaded:
        service.start(SPEC, echo, lambda: 0)
    return service


def ask(service: ModelService, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
    fields = {key.replace("_", "-"): value for key, value in headers.items()}
    response = asyncio.run(service.handle(Request(method, path, "", fields, body)))
    assert isinstance(response, Response)
    return response.status, json.loads(response.body)


@pytest.mark.parametrize("name", ["m", "org/n", "org%2Fn", "l:8b"])
def test_instances_become_predictions(name: str) -> None:
    body = b'{"instances": [1, 2.5]}'
    assert ask(made(), "POST", f"/v1/models/{name}:predict", body) == (200, {"predictions": [1.0, 2.5]})
    packed = ask(made(), "POST", f"/v1/models/{name}:predict", gzip.compress(body), content_encoding="gzip")
    assert packed == (200, {"predictions": [1.0, 2.5]})


@pytest.mark.parametrize(
    ("name", "body", "status", "says"),
    [
        ("q", b'{"instances": [1]}', 404, "unknown model 'q'; this server has m, org/n, l:8b"),
        ("m", b"{", 400, "the request is not JSON"),
        ("m", b'{"instances": [[1]]}', 400, "input 'x' must have the shape [-1]"),
    ],
)
def test_errors_are_v1s(name: str, body: bytes, status: int, says: str) -> None:
    found, error = ask(made(), "POST", f"/v1/models/{name}:predict", body)
    assert (found, list(error)) == (status, ["error"])
    assert says in error["error"]


def test_a_model_that_loads_is_503_and_only_post_predicts() -> None:
    loading = made(is_loaded=False)
    assert ask(loading, "POST", "/v1/models/m:predict", b'{"instances": [1]}')[0] == 503
    status, shown = ask(loading, "GET", "/v1/models/m")
    assert (status, shown["ready"]) == (503, False)
    assert ask(made(), "GET", "/v1/models/m:predict") == (405, {"error": "POST only"})


def test_other_verbs_of_v1_are_not_there() -> None:
    status, error = ask(made(), "POST", "/v1/models/m:explain", b'{"instances": [1]}')
    assert (status, error) == (
        404,
        {"error": "there is no /v1/models/m:explain here; V1 offers /v1/models/NAME:predict"},
    )


def test_readiness_and_list_have_the_keys_of_v1_and_of_openai() -> None:
    status, shown = ask(made(), "GET", "/v1/models/m")
    assert (status, shown["name"], shown["ready"], shown["id"], shown["object"]) == (200, "m", True, "m", "model")
    status, shown = ask(made(), "GET", "/v1/models")
    assert (shown["models"], [each["id"] for each in shown["data"]]) == (["m", "org/n", "l:8b"],) * 2

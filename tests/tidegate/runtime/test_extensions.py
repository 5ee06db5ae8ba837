"""Triton's extensions at one model server: the routes, and the methods as Triton's own client reads them."""

import asyncio
import json
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2

from tidegate.aio.admin.endpoint import Request, Response
from tidegate.runtime import extensions
from tidegate.runtime.errors import RequestError
from tidegate.runtime.execute.model import Inputs, Outputs
from tidegate.runtime.metrics import RuntimeCounters
from tidegate.runtime.protocols import triton
from tidegate.runtime.protocols.tensors import Tensor
from tidegate.runtime.protocols.v2 import ModelSpec, TensorSpec
from tidegate.runtime.service import ModelService

SPEC = ModelSpec(
    platform="test",
    inputs=(TensorSpec("x", "FP32", (-1,)),),
    outputs=(TensorSpec("y", "BYTES", (-1, 2)),),
    max_batch=4,
)
GOOD = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}
BAD = {"inputs": [{"name": "z", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}


async def echo(inputs: Inputs) -> Outputs:
    return {"y": Tensor("y", inputs[0].datatype, inputs[0].shape, inputs[0].data)}


def service(*names: str, is_loaded: bool = True) -> ModelService:
    made = ModelService(
        names or ("m", "n"), RuntimeCounters(), body_bytes=1000, extensions=extensions.answer, batch_delay_s=0.002
    )
    if is_loaded:
        made.start(SPEC, echo, lambda: 0)
    return made


def ask(target: ModelService, method: str, path: str, body: Any = b"") -> tuple[int, Any]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = asyncio.run(target.handle(Request(method, path, "", {}, raw)))
    assert isinstance(response, Response)
    return response.status, json.loads(response.body)


def test_configuration() -> None:
    for path in ("/v2/models/n/config", "/v2/models/n/versions/1/config"):
        assert ask(service(), "GET", path) == (200, triton.model_config("n", SPEC, 0.002))
    assert ask(service(is_loaded=False), "GET", "/v2/models/m/config")[0] == 503


def test_statistics_count_what_was_answered_and_what_failed() -> None:
    target = service()
    assert ask(target, "GET", "/v2/models/m/stats")[1]["model_stats"][0]["last_inference"] == 0
    assert ask(target, "POST", "/v2/models/m/infer", GOOD)[0] == 200
    assert ask(target, "POST", "/v2/models/m/infer", BAD)[0] == 400
    for path, name in (("/v2/models/stats", "m"), ("/v2/models/n/stats", "n"), ("/v2/models/n/versions/1/stats", "n")):
        status, document = ask(target, "GET", path)
        (found,) = document["model_stats"]
        assert (status, found["name"], found["version"]) == (200, name, "1")
        assert found["inference_stats"]["success"]["count"] == found["inference_stats"]["fail"]["count"] == 1
        assert found["inference_stats"]["success"]["ns"] > 0
        assert found["inference_stats"]["fail"]["ns"] > 0
        assert found["last_inference"] > 1e12


def test_a_model_may_be_called_stats() -> None:
    assert ask(service("stats"), "GET", "/v2/models/stats")[1]["platform"] == "test"
    assert "model_stats" in ask(service("stats"), "GET", "/v2/models/stats/stats")[1]


def test_the_repository() -> None:
    ready = {"name": "m", "version": "1", "state": "READY", "reason": ""}
    assert ask(service(), "POST", "/v2/repository/index") == (200, [ready, {**ready, "name": "n"}])
    loading = service(is_loaded=False)
    assert ask(loading, "POST", "/v2/repository/index", {})[1][0]["state"] == "LOADING"
    assert ask(loading, "POST", "/v2/repository/index", {"ready": True}) == (200, [])
    assert ask(service(), "POST", "/v2/repository/models/m/load", {}) == (200, {})
    assert ask(loading, "POST", "/v2/repository/models/m/load")[0] == 503
    status, error = ask(service(), "POST", "/v2/repository/models/m/unload", {"parameters": {}})
    assert (status, error) == (412, {"error": triton.NO_UNLOAD})


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v2/models/m/config", 405),
        ("POST", "/v2/models/stats", 405),
        ("GET", "/v2/repository/index", 405),
        ("GET", "/v2/repository/models/m/unload", 405),
        ("GET", "/v2/repository", 404),
        ("POST", "/v2/repository/models/m", 404),
        ("GET", "/v2/models/q/config", 404),
        ("GET", "/v2/models/m/versions/2/stats", 404),
        ("POST", "/v2/repository/models/q/load", 404),
        ("POST", "/v2/repository/models/q/unload", 404),
    ],
)
def test_what_is_not_there_is_said(method: str, path: str, status: int) -> None:
    got, document = ask(service(), method, path)
    assert got == status
    assert document["error"]


def call(method: str, answer: Any, **fields: Any) -> dict[str, Any]:
    request = getattr(service_pb2, f"{method}Request")(**fields)
    made = answer.FromString(extensions.call(service(), method, request.SerializeToString()))
    found: dict[str, Any] = MessageToDict(made, preserving_proto_field_name=True)
    return found


def test_tritons_own_messages_read_the_same_over_grpc() -> None:
    config = call("ModelConfig", service_pb2.ModelConfigResponse, name="n")["config"]
    assert (config["name"], config["platform"], config["max_batch_size"]) == ("n", "test", 4)
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32"}]
    assert config["output"] == [{"name": "y", "data_type": "TYPE_STRING", "dims": ["2"]}]
    assert config["dynamic_batching"] == {"max_queue_delay_microseconds": "2000"}
    (found,) = call("ModelStatistics", service_pb2.ModelStatisticsResponse)["model_stats"]
    assert (found["name"], found["version"]) == ("m", "1")
    assert set(found["inference_stats"]) >= {"success", "fail", "queue", "compute_infer"}
    models = call("RepositoryIndex", service_pb2.RepositoryIndexResponse, ready=True)["models"]
    assert models[0] == {"name": "m", "version": "1", "state": "READY"}
    assert call("RepositoryModelLoad", service_pb2.RepositoryModelLoadResponse, model_name="m") == {}


def test_what_grpc_refuses() -> None:
    parameter = {"config": service_pb2.ModelRepositoryParameter(string_param="{}")}
    load = service_pb2.RepositoryModelLoadRequest(model_name="m", parameters=parameter).SerializeToString()
    with pytest.raises(RequestError, match="takes no parameters, got config"):
        extensions.call(service(), "RepositoryModelLoad", load)
    unload = service_pb2.RepositoryModelUnloadRequest(model_name="m").SerializeToString()
    with pytest.raises(RequestError, match="does not unload") as caught:
        extensions.call(service(), "RepositoryModelUnload", unload)
    assert caught.value.status == 412
    with pytest.raises(RequestError, match="unknown model ''"):
        extensions.call(service(), "ModelConfig", b"")
    with pytest.raises(RequestError, match="truncated"):
        extensions.call(service(), "ModelConfig", b"\x0a\x05a")

"""The routes, answered without a socket."""

import asyncio
import gzip
import json
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.aio.admin.endpoint import Request, Response
from tidegate.runtime.errors import ModelError, RequestError
from tidegate.runtime.execute.model import Inputs, Outputs
from tidegate.runtime.metrics import RuntimeCounters
from tidegate.runtime.protocols.tensors import Tensor
from tidegate.runtime.protocols.v2 import EXTENSIONS, ModelSpec, TensorSpec
from tidegate.runtime.service import ModelService, ServicePhase

SPEC = ModelSpec(
    platform="test",
    inputs=(TensorSpec("x", "FP32", (-1,)),),
    outputs=(TensorSpec("y", "FP32", (-1,)),),
    concurrency=7,
)
GOOD = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}


async def echo(inputs: Inputs) -> Outputs:
    return {"y": Tensor("y", inputs[0].datatype, inputs[0].shape, inputs[0].data)}


def service(infer: Callable[[Inputs], Awaitable[Outputs]] | None = echo) -> ModelService:
    made = ModelService(("m", "n"), RuntimeCounters(), body_bytes=1000)
    if infer is not None:
        made.start(SPEC, infer, lambda: 3)
    return made


def ask(
    target: ModelService, method: str, path: str, body: Any = b"", headers: dict[str, str] | None = None
) -> tuple[int, Any, Response]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = asyncio.run(target.handle(Request(method, path, "", headers or {}, raw)))
    assert isinstance(response, Response)
    parsed = json.loads(response.body) if response.content_type == "application/json" else response.body
    return response.status, parsed, response


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"ready": True}),
        ("/v2/models", {"models": ["m", "n"]}),
        ("/v2/models/m/ready", {"name": "m", "ready": True}),
        ("/v2/models/n/versions/1/ready", {"name": "n", "ready": True}),
        ("/tidegate/declared", {"concurrency": 7}),
    ],
)
def test_what_can_be_read(path: str, document: dict[str, Any]) -> None:
    assert ask(service(), "GET", path)[:2] == (200, document)
    assert ask(service(), "HEAD", path)[0] == 200
    status, error, response = ask(service(), "POST", path)
    assert (status, error) == (405, {"error": "GET only"})
    assert tuple(response.headers) == (("Allow", "GET"),)


def test_metadata() -> None:
    status, server, _ = ask(service(), "GET", "/v2")
    assert (status, server["name"], server["extensions"]) == (200, "tidegate", list(EXTENSIONS))
    for path in ("/v2/models/m", "/v2/models/m/versions/1"):
        status, model, _ = ask(service(), "GET", path)
        assert (status, model["name"], model["versions"], model["platform"]) == (200, "m", ["1"], "test")
        assert model["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1]}]


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/", 404, "there is no / here"),
        ("GET", "/v3", 404, "there is no /v3 here"),
        ("GET", "/v2/health", 404, "there is no /v2/health here"),
        ("GET", "/v2/models/q", 404, "unknown model 'q'; this server has m, n"),
        ("POST", "/v2/models/q/infer", 404, "unknown model 'q'; this server has m, n"),
        ("GET", "/v2/models/%ff%00", 404, "unknown model"),
        ("GET", "/v2/models/m/versions/2", 404, "model 'm' has no version '2', only '1'"),
        ("POST", "/v2/models/m/versions/2/infer", 404, "model 'm' has no version '2', only '1'"),
        ("GET", "/v2/models/m/versions", 404, "there is no /v2/models/m/versions here"),
        ("GET", "/v2/models/m/what", 404, "there is no /v2/models/m/what here"),
        ("GET", "/v2/models/m/infer", 405, "POST only"),
        ("DELETE", "/metrics", 405, "GET only"),
        ("POST", "/v2/models/m/infer", 400, "the request is not JSON"),
    ],
)
def test_what_is_not_there_is_said_in_the_protocols_shape(method: str, path: str, status: int, says: str) -> None:
    got, document, response = ask(service(), method, path)
    assert got == status
    assert says in document["error"]
    assert response.content_type == "application/json"


def test_an_inference() -> None:
    target = service()
    status, document, _ = ask(target, "POST", "/v2/models/n/versions/1/infer", {**GOOD, "id": "7"})
    assert status == 200
    assert document == {
        "model_name": "n",
        "model_version": "1",
        "id": "7",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]}],
    }
    assert 'nv_inference_request_success{model="m",version="1"} 1' in metrics(target)


def test_a_binary_inference() -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    raw = head + struct.pack("<2f", 1, 2)
    status, body, response = ask(
        service(), "POST", "/v2/models/m/infer", raw, {"inference-header-content-length": str(len(head))}
    )
    assert (status, response.content_type) == (200, "application/octet-stream")
    length = int(dict(response.headers)["Inference-Header-Content-Length"])
    assert json.loads(body[:length])["outputs"][0]["parameters"] == {"binary_data_size": 8}
    assert body[length:] == struct.pack("<2f", 1, 2)


def test_a_compressed_request() -> None:
    raw = gzip.compress(json.dumps(GOOD).encode())
    assert ask(service(), "POST", "/v2/models/m/infer", raw, {"content-encoding": "gzip"})[0] == 200
    bomb = gzip.compress(bytes(100_000))
    status, document, _ = ask(service(), "POST", "/v2/models/m/infer", bomb, {"content-encoding": "gzip"})
    assert status == 413
    assert document["error"].startswith("the body is larger than 1000 bytes when decompressed: the limit of the model")


def metrics(target: ModelService) -> str:
    status, text, response = ask(target, "GET", "/metrics")
    assert status == 200
    assert response.content_type.startswith("text/plain")
    return bytes(text).decode()


def test_before_the_model_is_loaded_it_lives_but_is_not_ready() -> None:
    target = service(None)
    assert ask(target, "GET", "/v2/health/live")[0] == 200
    assert ask(target, "GET", "/v2/health/ready")[:2] == (503, {"ready": False})
    assert ask(target, "GET", "/v2/models/m/ready")[:2] == (503, {"name": "m", "ready": False})
    for method, path in (
        ("GET", "/v2/models/m"),
        ("GET", "/tidegate/declared"),
        ("POST", "/v2/models/m/infer"),
    ):
        assert ask(target, method, path, GOOD)[:2] == (503, {"error": "model 'm' is still loading"})
    assert 'nv_inference_request_failure{model="m",version="1",reason="REJECTED"} 1' in metrics(target)


def test_a_server_that_stops_takes_nothing_new() -> None:
    target = service()
    target.phase = ServicePhase.STOPPING
    assert ask(target, "GET", "/v2/health/ready")[0] == 503
    assert ask(target, "POST", "/v2/models/m/infer", GOOD)[:2] == (503, {"error": "model 'm' is stopping"})


def test_a_model_that_is_loaded_after_the_order_to_stop_does_not_become_ready() -> None:
    target = service(None)
    target.phase = ServicePhase.STOPPING
    target.start(SPEC, echo, lambda: 0)
    assert target.phase is ServicePhase.STOPPING


def failing(error: Exception) -> ModelService:
    async def infer(inputs: Inputs) -> Outputs:
        raise error

    return service(infer)


def test_failures_are_reported_and_counted_by_who_is_to_blame(capsys: pytest.CaptureFixture[str]) -> None:
    for error, status, says, reason in (
        (RequestError("too odd", 422), 422, "too odd", "OTHER"),
        (RequestError("strange status", 7), 400, "strange status", "OTHER"),
        (ModelError("it broke (h.py, line 3)"), 500, "it broke (h.py, line 3)", "BACKEND"),
        (ZeroDivisionError("inner detail"), 500, "the model server failed; its log says why", "BACKEND"),
    ):
        target = failing(error)
        assert ask(target, "POST", "/v2/models/m/infer", GOOD)[:2] == (status, {"error": says})
        assert f'nv_inference_request_failure{{model="m",version="1",reason="{reason}"}} 1' in metrics(target)
    assert "inner detail" in capsys.readouterr().err


def test_long_messages_are_cut() -> None:
    status, document, _ = ask(failing(ModelError("x" * 5000)), "POST", "/v2/models/m/infer", GOOD)
    assert (status, len(document["error"])) == (500, 1000)


def test_messages_are_text_whatever_a_model_says() -> None:
    assert ask(failing(ModelError("no \udcff")), "POST", "/v2/models/m/infer", GOOD)[1] == {"error": "no ?"}


def test_a_client_that_goes_away_is_counted_and_the_idle_signal_comes() -> None:
    async def main() -> None:
        started = asyncio.Event()

        async def infer(inputs: Inputs) -> Outputs:
            started.set()
            await asyncio.Event().wait()
            return {}

        target = service(infer)
        idle = asyncio.Event()
        target.on_idle = idle.set
        async with asyncio.TaskGroup() as group:
            body = json.dumps(GOOD).encode()
            task = group.create_task(target.handle(Request("POST", "/v2/models/m/infer", "", {}, body)))
            await started.wait()
            assert target.active == 1
            task.cancel()
            await idle.wait()
        assert target.active == 0
        response = await target.handle(Request("GET", "/metrics", "", {}))
        assert isinstance(response, Response)
        assert b'reason="CANCELED"} 1' in response.body
        assert b'nv_inference_pending_request_count{model="m",version="1"} 3' in response.body

    asyncio.run(main())


@given(
    st.sampled_from(["GET", "POST", "HEAD", "PUT", "x"]),
    st.lists(st.sampled_from(["v2", "models", "m", "infer", "versions", "1", "ready", "%", "%zz", "..", ""])),
    st.binary(max_size=100),
    st.dictionaries(
        st.sampled_from(["content-encoding", "inference-header-content-length"]),
        st.sampled_from(["gzip", "deflate", "br", "5", "-5", "", "x"]),
    ),
)
def test_nothing_that_a_client_sends_is_our_fault(
    method: str, parts: list[str], body: bytes, headers: dict[str, str]
) -> None:
    status, _, _ = ask(service(), method, "/" + "/".join(parts), body, headers)
    assert 200 <= status < 500


class Batches:
    batching = (8, 0.0)

    def set_batching(self, max_batch: int, delay_s: float) -> None:
        if max_batch > 8:
            raise RequestError("max_batch: got 9; allowed: 1 to 8")
        self.batching = (max_batch, delay_s)


ORDERED = {"tidegate-epoch": "3"}


def batching(target: ModelService, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    status, answer, _ = ask(target, "POST", "/tidegate/batching", body, ORDERED if headers is None else headers)
    return status, answer


def test_the_backend_changes_the_batches_of_a_running_model() -> None:
    made = ModelService(("m",), RuntimeCounters(), body_bytes=1000)
    made.start(SPEC, echo, lambda: 0, batching=Batches())
    assert batching(made, {"max_batch": 4, "delay_s": 0.005}) == (200, {"max_batch": 4, "delay_s": 0.005})
    assert made.batch_delay_s == 0.005
    assert batching(made, {"max_batch": 9, "delay_s": 0})[0] == 400
    more: list[Any] = [b"{", [], {"max_batch": 4}, {"max_batch": True, "delay_s": 0}, {"max_batch": 4, "delay_s": 61}]
    for wrong in more:
        status, answer = batching(made, wrong)
        assert status == 400 and "max_batch" in answer["error"]


def test_an_order_without_the_backends_field_finds_no_such_path() -> None:
    made = ModelService(("m",), RuntimeCounters(), body_bytes=1000)
    made.start(SPEC, echo, lambda: 0, batching=Batches())
    assert batching(made, {"max_batch": 4, "delay_s": 0}, {})[0] == 404


def test_a_model_that_loads_or_forms_no_batches_refuses_the_order() -> None:
    assert batching(service(None), {"max_batch": 4, "delay_s": 0}) == (409, {"error": "the model is still loading"})
    assert batching(service(), {"max_batch": 4, "delay_s": 0})[0] == 409

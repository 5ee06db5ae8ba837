"""The shipped model server over gRPC, as a process, spoken to by real clients on TCP and unix sockets."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.support.live.runtime_process import RuntimeProcess, free_port, running

pytestmark = pytest.mark.live

HANDLER = """
import time

class Model:
    inputs = {"x": ("FP32", [-1, 2]), "s": ("BYTES", [-1, 1])}
    outputs = {"y": ("FP32", [-1, 2]), "t": ("BYTES", [-1, 1]), "rows": ("INT32", [-1])}
    max_batch_size = 8

    def predict(self, inputs):
        time.sleep(0.02)
        rows = len(inputs["x"])
        return {"y": inputs["x"] * 2, "t": inputs["s"], "rows": [rows] * rows}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeProcess]:
    folder = tmp_path_factory.mktemp("handler")
    (folder / "handler.py").write_text(HANDLER)
    environment = {"HANDLER": f"{folder}/handler.py:Model", "NAME": "m", "MAX_BATCH": 8, "BATCH_DELAY": 0.05}
    with running(f"127.0.0.1:{free_port()}", environment) as process:
        process.wait_for("/v2/health/ready")
        yield process


def tensors(first: float, word: bytes = b"\xffa") -> list[Any]:
    x = triton.InferInput("x", [1, 2], "FP32")
    x.set_data_from_numpy(numpy.array([[first, 2]], "f4"))
    s = triton.InferInput("s", [1, 1], "BYTES")
    s.set_data_from_numpy(numpy.array([[word]], object))
    return [x, s]


def test_tritons_client_unmodified(server: RuntimeProcess) -> None:
    client = triton.InferenceServerClient(server.listen)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("m", "1")
    assert client.get_server_metadata().name == "tidegate"
    assert [tensor.name for tensor in client.get_model_metadata("m").inputs] == ["x", "s"]
    for compression in (None, "gzip", "deflate"):
        result = client.infer("m", tensors(5), request_id="7", compression_algorithm=compression)
        assert result.as_numpy("y").tolist() == [[10, 4]]
        assert result.as_numpy("t").tolist() == [[b"\xffa"]]
        assert result.get_response().id == "7"
    with pytest.raises(triton.InferenceServerException, match="unknown model 'other'; this server has m"):
        client.infer("other", tensors(1))
    client.close()


def test_requests_of_both_protocols_share_a_batch(server: RuntimeProcess) -> None:
    client = triton.InferenceServerClient(server.listen)
    rows: list[int] = []
    done = threading.Event()

    def answered(result: Any, error: Exception | None) -> None:
        assert error is None
        rows.append(int(result.as_numpy("rows")[0]))
        if len(rows) == 8:
            done.set()

    body = (
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]},'
        b' {"name": "s", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}]}'
    )
    for _ in range(8):
        client.async_infer("m", tensors(1), answered)
    status, _, _ = server.request("POST", "/v2/models/m/infer", body)
    assert done.wait(10)
    assert status == 200
    assert max(rows) > 1
    client.close()


def test_tritons_stream_in_order_with_an_error_in_between(server: RuntimeProcess) -> None:
    client = triton.InferenceServerClient(server.listen)
    reported: list[tuple[Any, Any]] = []
    client.start_stream(lambda result, error: reported.append((result, error)))
    for at in range(5):
        client.async_stream_infer("m" if at != 2 else "other", tensors(at), request_id=str(at))
    client.stop_stream()
    assert [float(result.as_numpy("y")[0, 0]) for result, error in reported if error is None] == [0, 2, 6, 8]
    assert "unknown model 'other'" in str(reported[2][1])
    client.close()


def test_tritons_asyncio_client(server: RuntimeProcess) -> None:
    async def main() -> None:
        async with triton_aio.InferenceServerClient(server.listen) as client:
            result = await client.infer("m", tensors(4))
            assert result.as_numpy("y").tolist() == [[8, 4]]

    asyncio.run(main())


def test_health_and_reflection_as_grpcs_own_clients_ask(server: RuntimeProcess) -> None:
    with grpc.insecure_channel(server.listen) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest(service="m")).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            health.Check(health_pb2.HealthCheckRequest(service="other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "inference.GRPCInferenceService" in database.get_services()
        service = DescriptorPool(database).FindServiceByName("inference.GRPCInferenceService")
        assert service.methods_by_name["ModelInfer"].input_type.full_name == "inference.ModelInferRequest"


def test_over_a_unix_socket_with_large_messages_until_it_is_reported_to_stop(tmp_path: Path) -> None:
    (tmp_path / "handler.py").write_text("class Model:\n    def predict(self, inputs):\n        return inputs\n")
    listen = f"unix:{tmp_path}/s"
    with running(listen, {"HANDLER": f"{tmp_path}/handler.py:Model", "NAME": "m"}) as process:
        process.wait_for("/v2/health/ready")
        client = triton.InferenceServerClient(listen)
        x = triton.InferInput("x", [1 << 20, 4], "FP32")
        x.set_data_from_numpy(numpy.arange(4 << 20, dtype="f4").reshape(1 << 20, 4))
        assert client.infer("m", [x]).as_numpy("x")[-1, -1] == (4 << 20) - 1
        with grpc.insecure_channel(listen) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            process.process.send_signal(signal.SIGTERM)
            with pytest.raises(grpc.RpcError) as caught:
                list(watch)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        client.close()
        assert process.process.wait(10) == 0

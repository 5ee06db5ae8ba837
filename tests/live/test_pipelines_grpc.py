"""Pipelines called over gRPC by a client of Triton: by the model's name, in raw tensors, errors as statuses."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.live.test_pipelines import STAGE, Pipelines
from tests.support.live.deployment import deployment, places

grpcclient = pytest.importorskip("tritonclient.grpc")
pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

LARGE = 300_000
"""Values of a request that is larger than a stream's window."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipelines]:
    folder = tmp_path_factory.mktemp("pipelines")
    with deployment(folder, *places(folder, 8)) as place:
        place.up()
        found = Pipelines(place, folder)
        wide = STAGE.replace("-1, 2", "-1, -1")
        found.deploy(
            found.stage("double", factor=2.0, output="doubled", code=wide),
            found.stage("plus", added=1.0, work_s=0.05, code=wide),
            found.pipeline("both", "function: double", "{function: plus, inputs: {x: doubled}}"),
        )
        found.until_ready("both")
        yield found


def infer(world: Pipelines, values: np.ndarray, name: str = "x", **more: object) -> Any:
    given = grpcclient.InferInput(name, values.shape, "FP32")
    given.set_data_from_numpy(values)
    with grpcclient.InferenceServerClient(world.place.gateway.removeprefix("http://")) as client:
        return client.infer("both", [given], **more)


def test_a_call_runs_through_the_stages_and_gets_the_tensors_it_asked_for(world: Pipelines) -> None:
    values = np.array([[1.0, 2.0]], dtype=np.float32)
    answer = infer(world, values, request_id="mine", outputs=[grpcclient.InferRequestedOutput("x")])
    assert answer.as_numpy("x").tolist() == [[3.0, 5.0]], "doubled, then one more"
    found = answer.get_response()
    assert (found.model_name, found.id) == ("both", "mine")
    assert list(found.raw_output_contents), "raw, as the request"
    with grpcclient.InferenceServerClient(world.place.gateway.removeprefix("http://")) as client:
        assert client.is_model_ready("both")


def test_a_message_beyond_the_window_is_read_whole(world: Pipelines) -> None:
    values = np.arange(LARGE, dtype=np.float32).reshape(3, -1)
    assert np.array_equal(infer(world, values).as_numpy("x"), 2.0 * values + 1.0)
    squeezed = infer(world, values, compression_algorithm="gzip")
    assert np.array_equal(squeezed.as_numpy("x"), 2.0 * values + 1.0)


def test_errors_name_the_stage_and_a_deadline_ends_the_call(world: Pipelines) -> None:
    values = np.array([[1.0, 2.0]], dtype=np.float32)
    with pytest.raises(grpcclient.InferenceServerException, match="'y'") as unknown:
        infer(world, values, name="y")
    assert unknown.value.status() == "StatusCode.INVALID_ARGUMENT"
    with pytest.raises(grpcclient.InferenceServerException) as late:
        infer(world, values, client_timeout=0.02)
    assert late.value.status() == "StatusCode.DEADLINE_EXCEEDED"
    with grpc.insecure_channel(world.place.gateway.removeprefix("http://")) as channel:
        config = channel.unary_unary("/inference.GRPCInferenceService/ModelConfig")
        with pytest.raises(grpc.RpcError) as refused:
            config(b"\x0a\x04both")
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "takes ModelInfer; its stages: double, plus" in refused.value.details()


def commands() -> list[bytes]:
    """The command lines of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # It has ended.
            found.append(path.read_bytes())
    return found


def test_typed_contents_of_a_megabyte_run_through_both_stages(world: Pipelines) -> None:
    """They are converted in a process of their own, which the worker starts for them."""
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="both")
    given = request.inputs.add(name="x", datatype="FP32", shape=[2, LARGE // 2])
    values = np.arange(LARGE, dtype=np.float32)
    given.contents.fp32_contents.extend(values.tolist())
    options = [("grpc.max_receive_message_length", 1 << 26)]
    with grpc.insecure_channel(world.place.gateway.removeprefix("http://"), options) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    found = np.array(answer.outputs[0].contents.fp32_contents, dtype=np.float32)
    assert np.array_equal(found, 2.0 * values + 1.0)
    assert any(b"tidegate.gateway.pipelines.main" in command for command in commands())


def test_the_breakdown_is_in_the_trailers(world: Pipelines) -> None:
    """A typed request gets a typed answer."""
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="both")
    given = request.inputs.add(name="x", datatype="FP32", shape=[1, 2])
    given.contents.fp32_contents.extend([1.0, 2.0])
    with grpc.insecure_channel(world.place.gateway.removeprefix("http://")) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer, call = stub.ModelInfer.with_call(request)
    assert list(answer.outputs[0].contents.fp32_contents) == [3.0, 5.0]
    trailers = dict(call.trailing_metadata())
    entries = (each.strip().split(";dur=") for each in trailers["server-timing"].split(","))
    found = {name: float(value) for name, value in entries}
    assert sum(found[name] for name in ("entry", "double", "plus", "answer")) == pytest.approx(found["total"], abs=0.01)
    assert found["plus"] >= 50.0

"""The real Triton over gRPC behind ``tidegate up``: what the front door does not know of its service passes."""

import json
import queue
from collections.abc import Iterator

import grpc
import numpy
import pytest
import tritonclient.grpc as tritonclient

from tests.support.live import triton
from tests.support.live.deployment import Deployment, deployment, places

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(120),
    pytest.mark.needs(tool="triton"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("triton")
    manifest = f"""
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: double
  annotations: {{tidegate.dev/min-scale: "1", tidegate.dev/max-scale: "1"}}
spec:
  server: {{command: {json.dumps(triton.command(triton.repository(folder), "{metrics_port}", grpc=True))}}}
  env: {json.dumps(triton.environment())}
  protocol: grpc
  metrics: {{}}
  concurrency: 32
"""
    with deployment(folder, *places(folder, 1)) as made:
        made.up()
        with made.sdk() as tidegate:
            tidegate.deploy(manifest, base=folder, wait=True)
        yield made


@pytest.fixture
def client(world: Deployment) -> Iterator[tritonclient.InferenceServerClient]:
    with tritonclient.InferenceServerClient(world.gateway.partition("://")[2]) as made:
        yield made


def tensor(*values: float) -> list[tritonclient.InferInput]:
    made = tritonclient.InferInput("x", [1, 2], "FP32")
    made.set_data_from_numpy(numpy.array([values], numpy.float32))
    return [made]


def test_inferences_by_the_models_name_batch_as_over_rest(client: tritonclient.InferenceServerClient) -> None:
    assert client.infer("double", tensor(1, 2)).as_numpy("y").tolist() == [[2, 4]]
    results: queue.Queue[tuple[tritonclient.InferResult, Exception | None]] = queue.Queue()
    for at in range(64):
        client.async_infer("double", tensor(at, 0), lambda result, error: results.put((result, error)))
    answers = [results.get(timeout=20) for _ in range(64)]
    assert [error for _, error in answers] == [None] * 64
    assert sorted(float(result.as_numpy("y")[0, 0]) for result, _ in answers) == [2.0 * at for at in range(64)]
    statistics = client.get_inference_statistics("double").model_stats[0]
    assert statistics.inference_count == 65
    assert statistics.execution_count < 65


def test_a_stream_of_inferences(client: tritonclient.InferenceServerClient) -> None:
    values: list[float] = []

    def answered(result: tritonclient.InferResult, error: Exception | None) -> None:
        assert error is None
        values.append(float(result.as_numpy("y")[0, 0]))

    client.start_stream(answered)
    for at in range(16):
        client.async_stream_infer("double", tensor(at, 0))
    client.stop_stream()
    assert sorted(values) == [2.0 * at for at in range(16)]


def test_methods_that_only_triton_has_pass(client: tritonclient.InferenceServerClient) -> None:
    assert client.get_model_config("double").config.max_batch_size == 8
    assert client.get_model_metadata("double").platform == "python"
    assert client.is_model_ready("double")
    with pytest.raises(tritonclient.InferenceServerException, match="expected") as caught:
        wrong = tritonclient.InferInput("x", [1, 3], "FP32")
        wrong.set_data_from_numpy(numpy.zeros((1, 3), numpy.float32))
        client.infer("double", [wrong])
    assert caught.value.status() == f"StatusCode.{grpc.StatusCode.INVALID_ARGUMENT.name}"

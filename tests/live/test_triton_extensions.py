"""Triton's extensions through the front door, as perf_analyzer uses them: tritonclient unmodified, REST and gRPC."""

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.support.live.deployment import Deployment, deployment, places

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

HANDLER = """
class Double:
    inputs = {"x": ("FP32", [-1, 2])}
    outputs = {"y": ("FP32", [-1, 2])}
    max_batch_size = 8

    def predict(self, inputs):
        return {"y": inputs["x"] * 2}
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("extensions")
    (folder / "double.py").write_text(HANDLER)
    with deployment(folder, *places(folder, 1)) as made:
        made.up()
        made.deploy(f"{folder}/double.py:Double", "--min-scale", "1", "--max-scale", "1", "--wait", name="double")
        yield made


def place(world: Deployment) -> str:
    return world.gateway.partition("://")[2]


def tensor(module: Any) -> list[Any]:
    made = module.InferInput("x", [1, 2], "FP32")
    made.set_data_from_numpy(numpy.array([[1, 2]], "f4"))
    return [made]


def moved(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    """Returns by how much the counts grew."""
    first, second = before["model_stats"][0], after["model_stats"][0]
    grown = {key: int(second[key]) - int(first.get(key, 0)) for key in ("inference_count", "execution_count")}
    for part in ("success", "queue", "compute_input", "compute_infer", "compute_output"):
        old = first["inference_stats"][part]
        grown[part] = int(second["inference_stats"][part]["count"]) - int(old.get("count", 0))
    assert int(second["inference_stats"]["success"]["ns"]) > int(first["inference_stats"]["success"].get("ns", 0))
    return grown


FIVE = dict.fromkeys(
    ("inference_count", "execution_count", "success", "queue", "compute_input", "compute_infer", "compute_output"), 5
)


def test_over_rest(world: Deployment) -> None:
    with triton_http.InferenceServerClient(place(world)) as client:
        assert {"model_configuration", "statistics"} <= set(client.get_server_metadata()["extensions"])
        config = client.get_model_config("double")
        assert (config["name"], config["platform"], config["max_batch_size"]) == ("double", "python", 8)
        assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}]
        assert "max_queue_delay_microseconds" in config["dynamic_batching"]
        before = client.get_inference_statistics("double")
        for _ in range(5):
            assert client.infer("double", tensor(triton_http)).as_numpy("y").tolist() == [[2, 4]]
        assert moved(before, client.get_inference_statistics("double", "1")) == FIVE
        named = {"host": "double.localhost"}
        assert client.get_model_repository_index(headers=named) == [
            {"name": "double", "version": "1", "state": "READY", "reason": ""}
        ]
        assert "model_repository" in client.get_server_metadata(headers=named)["extensions"]
        assert client.get_inference_statistics(headers=named)["model_stats"][0]["name"] == "double"
        client.load_model("double")
        with pytest.raises(InferenceServerException, match="takes no parameters, got config"):
            client.load_model("double", config="{}")
        with pytest.raises(InferenceServerException, match="does not unload its model"):
            client.unload_model("double")
        assert client.infer("double", tensor(triton_http)).as_numpy("y").tolist() == [[2, 4]]


def test_over_grpc(world: Deployment) -> None:
    options = [("grpc.default_authority", "double.localhost")]
    with triton_grpc.InferenceServerClient(place(world)) as client:
        assert {"model_configuration", "statistics"} <= set(client.get_server_metadata().extensions)
        config = client.get_model_config("double", as_json=True)["config"]
        assert (config["name"], config["platform"], config["max_batch_size"]) == ("double", "python", 8)
        assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": ["2"]}]
        before = client.get_inference_statistics("double", as_json=True)
        for _ in range(5):
            assert client.infer("double", tensor(triton_grpc)).as_numpy("y").tolist() == [[2, 4]]
        assert moved(before, client.get_inference_statistics("double", "1", as_json=True)) == FIVE
        client.load_model("double")
        with pytest.raises(InferenceServerException, match="does not unload its model") as caught:
            client.unload_model("double")
        assert caught.value.status() == "StatusCode.FAILED_PRECONDITION"
    with triton_grpc.InferenceServerClient(place(world), channel_args=options) as client:
        (found,) = client.get_model_repository_index().models
        assert (found.name, found.version, found.state) == ("double", "1", "READY")
        assert client.get_inference_statistics().model_stats[0].name == "double"

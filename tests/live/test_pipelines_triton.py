"""A pipeline as the HTTP client of Triton sees it: a model like others, by its metadata and its answers."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.live.test_pipelines import Pipelines
from tests.support.live.deployment import deployment, places

httpclient = pytest.importorskip("tritonclient.http")
grpcclient = pytest.importorskip("tritonclient.grpc")
pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipelines]:
    folder = tmp_path_factory.mktemp("pipelines")
    with deployment(folder, *places(folder, 4)) as place:
        place.up()
        found = Pipelines(place, folder)
        found.deploy(
            found.stage("double", factor=2.0, output="doubled"),
            found.stage("plus", added=1.0),
            found.pipeline("both", "function: double", "{function: plus, inputs: {x: doubled}}"),
        )
        found.until_ready("both")
        yield found


X = {"name": "x", "datatype": "FP32", "shape": [-1, 2]}


def test_a_client_reads_the_metadata_first_and_calls_by_them(world: Pipelines) -> None:
    with httpclient.InferenceServerClient(world.place.gateway.removeprefix("http://")) as client:
        assert client.is_model_ready("both")
        found = client.get_model_metadata("both")
        assert (found["name"], found["inputs"], found["outputs"]) == ("both", [X], [X])
        given = httpclient.InferInput(found["inputs"][0]["name"], [1, 2], found["inputs"][0]["datatype"])
        for is_binary in (True, False):
            given.set_data_from_numpy(np.array([[1.0, 2.0]], dtype=np.float32), binary_data=is_binary)
            wanted = httpclient.InferRequestedOutput(found["outputs"][0]["name"], binary_data=is_binary)
            answer = client.infer("both", [given], outputs=[wanted], request_id="mine")
            assert answer.as_numpy("x").tolist() == [[3.0, 5.0]]
            assert (answer.get_response()["model_name"], answer.get_response()["id"]) == ("both", "mine")


def test_the_metadata_are_the_same_over_grpc(world: Pipelines) -> None:
    with grpcclient.InferenceServerClient(world.place.gateway.removeprefix("http://")) as client:
        found = client.get_model_metadata("both", as_json=True)
    assert (found["name"], found["versions"]) == ("both", ["1"])
    assert [each["name"] for each in found["inputs"] + found["outputs"]] == ["x", "x"]
    assert found["inputs"][0]["shape"] == ["-1", "2"]

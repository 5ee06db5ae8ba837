"""The README's part on several kinds of accelerators, as its reader types it; bodies that only announce their size."""

import socket
from collections.abc import Iterator

import pytest

from tests.support.deadline import Patience
from tests.support.live.deployment import Deployment, deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

ACCELERATORS = """
accelerators:
  - {name: t4, kind: emulated, count: 4, memory: 16Gi, price-per-hour: 0.5, profile: {base: 10ms, per-item: 5ms}}
  - {name: v100, kind: emulated, count: 2, memory: 16Gi, price-per-hour: 3, profile: {base: 5ms, per-item: 2ms}}
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("emulated")
    (folder / "accelerators.yaml").write_text(ACCELERATORS)
    with deployment(folder, "--accelerators-file", str(folder / "accelerators.yaml")) as made:
        made.up()
        made.deploy(made.handler(), "--slo", "p98=200ms", "--min-scale", "1", "--wait")
        yield made


def test_load_finds_the_inputs_of_the_class_on_emulated_accelerators(world: Deployment) -> None:
    found = world.ask("load", "echo", "--rate", "20", "--for", "1s", "--arrivals", "even")
    assert found["codes"] == {"200": found["sent"]}
    answer = world.infer().json()["outputs"]
    assert answer == [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [0.0, 0.0]}]


@pytest.mark.parametrize("before", [b"", b"3\r\nabc\r\n"], ids=["at once", "behind another chunk"])
@pytest.mark.parametrize("place", ["gateway", ".q", ".m"], ids=["gateway", "queue_proxy", "model server"])
def test_a_chunk_above_the_limit_is_refused_when_it_is_announced(world: Deployment, place: str, before: bytes) -> None:
    patience = Patience(5.0)
    with socket.socket(socket.AF_INET if place == "gateway" else socket.AF_UNIX) as client:
        client.settimeout(10.0)
        if place == "gateway":
            host, _, port = world.gateway.removeprefix("http://").rpartition(":")
            client.connect((host, int(port)))
        else:
            (path,) = (each for each in world.state.run.iterdir() if each.name.endswith(place))
            client.connect(str(path / "s" if place == ".m" else path))
        client.sendall(
            b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n" + before + b"7fffffff\r\nabc"
        )
        answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413 "), answer
    assert b"body_too_large" in answer
    assert not patience.is_over, "not after the time limit of the body"

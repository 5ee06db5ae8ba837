"""Two deployments in one real Redis, with functions of the same name: nothing of one is the other's."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from tests.support.live.deployment import Deployment, deployment, places
from tests.support.live.redis_server import RedisServer
from tests.support.live.remote_gateway import RemoteGateway, remote_gateways

pytestmark = [pytest.mark.live, pytest.mark.timeout(240), pytest.mark.needs(tool="redis")]

TIMES = """
class Times:
    arrays = "plain"
    inputs = {"x": ("FP32", [-1, 2])}
    outputs = {"y": ("FP32", [-1, 2])}
    def predict(self, inputs):
        return {"y": [[FACTOR * each for each in row] for row in inputs["x"]]}
"""


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(folder(tmp_path, "redis"))
    yield server
    server.kill()


def folder(parent: Path, name: str) -> Path:
    found = parent / name
    found.mkdir()
    return found


def times(place: Deployment, factor: int) -> str:
    file = place.folder / "times.py"
    file.write_text(TIMES.replace("FACTOR", str(factor)))
    return f"{file}:Times"


def answer(place: Deployment) -> list[float]:
    reply = place.infer(timeout=60.0)
    assert reply.status_code == 200, reply.text
    return list(reply.json()["outputs"][0]["data"])


def test_functions_of_one_name_are_each_deployments_own(tmp_path: Path, redis: RedisServer) -> None:
    homes = [folder(tmp_path, name) for name in ("one", "two")]
    flags = ("--store-url", redis.url)
    with (
        deployment(homes[0], *flags, *places(homes[0], 1)) as one,
        deployment(homes[1], *flags, *places(homes[1], 2)) as two,
    ):
        for place, factor in ((one, 2), (two, 3)):
            place.up()
            place.deploy(times(place, factor), "--min-scale", "1")
        ones, threes = answer(one), answer(two)
        assert [3 * each for each in ones] == [2 * each for each in threes]
        two.deploy(times(two, 3), "--max-scale", "2")
        two.until(lambda: two.status("echo")["revision"] == "echo-00002", 60.0, "the second revision")
        assert one.status("echo")["revision"] == "echo-00001", "revisions are counted for each"
        two.cli("delete", "echo")
        assert two.ask("list") == []
        assert answer(one) == ones
        one.kill()
        one.up()
        assert answer(one) == ones, "it finds its own records again"
        assert one.stop() == 0
        assert two.stop() == 0


def test_a_gateway_of_another_deployment_by_the_same_name_uses_nothing_of_it(
    tmp_path: Path, redis: RedisServer
) -> None:
    """The gateways have one name too: it takes back no registration but its own."""
    home, other = folder(tmp_path, "one"), folder(tmp_path, "other")
    store = ("--store-url", redis.url, "--store-name", "blue", "--gateway-workers", "0")
    with deployment(home, *store, *places(home, 1)) as one:
        one.up()
        one.deploy(times(one, 2), "--initial-scale", "0", "--min-scale", "0")
        with remote_gateways(one, redis.port, 1) as (own,):
            stranger = Deployment(other)
            stranger.state.prepare()
            assert stranger.state.link_token != one.state.link_token
            gateway = RemoteGateway(stranger, own.name, redis.port)
            try:
                gateway.start()
                one.until(
                    lambda: gateway.log.exists() and "of a deployment with another token" in gateway.text,
                    30.0,
                    "the stranger to say that the table is not its own",
                )
                one.until(lambda: own.infer(timeout_s=60.0).status_code == 200, 60.0, "its own gateway to serve")
                assert gateway.url is None, "it serves nothing"
                assert len({each["worker"] for each in one.status()["gateways"]}) == 1
                assert one.status()["faults"] == []
            finally:
                gateway.close()
            with Redis(port=redis.port) as client:
                assert "cmdstat_hdel" not in client.info("commandstats"), "no registration was taken back"
        assert one.stop() == 0

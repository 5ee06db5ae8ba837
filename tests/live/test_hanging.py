"""What hangs without ending (a stopped process answers nothing and closes nothing) does not take others along."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.deadline import Patience
from tests.support.live.deployment import Deployment, deployment, is_alive, places

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]


def asked(world: Deployment, count: int, gateway: str | None = None) -> Callable[[], list[int]]:
    """Requests on connections of their own, all at once; the answer waits for their status codes."""
    limit_s, found = 60.0, []
    url = gateway or world.gateway

    def ask() -> None:
        found.append(world.infer(gateway=url, timeout=limit_s).status_code)

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()

    def answers() -> list[int]:
        for thread in threads:
            thread.join(limit_s)
        return found

    return answers


@pytest.mark.early
@pytest.mark.parametrize("is_adopted", [False, True])
def test_a_gateway_worker_that_hangs_is_replaced_and_who_waits_in_its_socket_is_served(
    tmp_path: Path, is_adopted: bool
) -> None:
    """Half of the new connections reach the stopped worker's socket. ``is_adopted``: an earlier control process has
    started it."""
    with deployment(tmp_path, "--gateway-workers", "2") as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--concurrency", "8", "--wait")
        if is_adopted:
            world.kill()
            world.up()
        pid = world.living()["gateway-g0"]
        os.kill(pid, signal.SIGSTOP)
        answers = asked(world, 16)
        world.until(lambda: "gateway-g0.2" in world.living(), 30.0, "its successor")
        assert answers() == [200] * 16
        world.until(lambda: not is_alive(pid), 20.0, "the stopped one to be gone")
        world.until(lambda: world.status()["faults"] == [], 10.0, "no fault any more")
        assert [each["worker"] for each in world.status()["gateways"]] == ["g0.2", "g1"]
        assert "has not answered for 10 s" in world.log.read_text()


def test_a_gateway_worker_that_comes_back_in_time_is_kept(tmp_path: Path) -> None:
    with deployment(tmp_path, "--gateway-workers", "1") as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        pid = world.living()["gateway-g0"]
        os.kill(pid, signal.SIGSTOP)
        answers = asked(world, 4)
        world.until(lambda: "source g0" in str(world.status()["faults"]), 8.0, "its silence to be reported")
        os.kill(pid, signal.SIGCONT)
        assert answers() == [200] * 4
        world.until(lambda: world.status()["faults"] == [], 10.0, "no fault any more")
        assert world.status()["gateways"][0]["pid"] == pid


@pytest.mark.early
def test_a_model_server_that_hangs_behind_no_limit_keeps_no_share_of_the_traffic(tmp_path: Path) -> None:
    """Two replicas with ``concurrency: 0``; one server is stopped. What it was given waits, what comes goes round it,
    and when it goes on everything is answered and it is used again."""
    with deployment(tmp_path, "--gateway-workers", "1", *places(tmp_path, 2)) as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "2", "--concurrency", "0", "--wait")
        world.until_replicas(2)
        world.until(lambda: have_served(world) == 2, 15.0, "both to have work from the gateway")
        servers = {name: pid for name, pid in world.living().items() if name.endswith(".server")}
        name, pid = sorted(servers.items())[0]
        os.kill(pid, signal.SIGSTOP)
        stuck = []

        def is_out() -> bool:
            """Of two idle replicas the same one may be chosen each time: more requests until both have some."""
            if ejected(world) == 0.0:
                stuck.append(asked(world, 4))
                time.sleep(0.5)
            return ejected(world) == 1.0

        world.until(is_out, 20.0, f"{name} to be put out")
        patience = Patience(5.0)
        assert asked(world, 20)() == [200] * 20
        assert not patience.is_over, "none of them was given to the server that hangs"
        os.kill(pid, signal.SIGCONT)
        assert {code for answers in stuck for code in answers()} == {200}
        world.until(lambda: ejected(world) == 0, 30.0, "it to be used again")


def have_served(world: Deployment) -> int:
    """The replicas that have answered something, after four more requests at once."""
    asked(world, 4)()
    answered = {
        name.rpartition('replica="')[2].partition('"')[0]: value
        for name, value in metric(world, "queue_proxy_requests_total")
        if "2xx" in name
    }
    return sum(value > 0 for value in answered.values())


def ejected(world: Deployment) -> float:
    """Replicas that get no work now."""
    return sum(value for _, value in metric(world, "gateway_ejected_replicas"))


def metric(world: Deployment, name: str) -> list[tuple[str, float]]:
    """Each series of a metric, with its value now."""
    with world.sdk() as tidegate:
        lines = tidegate.metrics().splitlines()
    parts = [line.rpartition(" ") for line in lines if line.startswith(f"tidegate_{name}{{")]
    return [(series, float(value)) for series, _, value in parts]


@pytest.mark.parametrize("stopped", [".server", ".proxy", "gateway-"])
@pytest.mark.parametrize("is_controlled", [True, False])
def test_the_end_does_not_wait_for_what_is_stopped(tmp_path: Path, stopped: str, is_controlled: bool) -> None:
    """With a control process and after its death; a request is on its way."""
    with deployment(tmp_path, "--gateway-workers", "1") as world:
        world.up()
        world.deploy(world.handler(work_s=0.5), "--min-scale", "1", "--wait")
        gateway = world.gateway
        if not is_controlled:
            world.kill()
        for name, pid in world.living().items():
            if stopped in name:
                os.kill(pid, signal.SIGSTOP)
        answers = asked(world, 1, gateway)
        time.sleep(0.2)
        patience = Patience(10.0)
        world.cli("down")
        assert not patience.is_over
        assert not world.living()
        assert answers() == [200], "it went on, and what was accepted is answered"

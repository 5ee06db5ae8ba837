"""The control process as people run it: up, deploy, serve, sleep, wake, crash, take-over, down."""

import json
import os
import signal
import subprocess
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.live.deployment import REQUEST, Deployment, deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(90)]


PAUSE_S = 0.01
"""Between the requests of one thread: what is judged is that none is lost."""


class Load:
    """Requests one after the other from several threads until they are to stop."""

    def __init__(self, world: Deployment, threads: int = 4) -> None:
        self.counts: Counter[int | str] = Counter()
        self._url = f"{world.gateway}/v2/models/echo/infer"
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        with httpx.Client(timeout=20.0, trust_env=False, verify=False) as client:
            while not self._stop.wait(PAUSE_S):
                try:
                    self.counts[client.post(self._url, json=REQUEST).status_code] += 1
                except httpx.HTTPError as error:
                    self.counts[type(error).__name__] += 1


def test_a_function_from_deploy_to_delete(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        done = world.cli("deploy", world.handler(), "--name", "echo", "--latency", "200ms")
        assert "echo is ready" in done.stderr
        answer = world.infer()
        assert answer.json()["outputs"][0]["data"] == [2.0, 4.0]
        assert "model;dur=" in answer.headers["server-timing"]
        assert world.ask("invoke", "echo", "--data", json.dumps(REQUEST))["status"] == 200
        status = world.status("echo")
        assert (status["state"], status["ready"], status["latency_s"]) == ("ready", 1, 0.2)
        assert [each["name"] for each in world.ask("list")] == ["echo"]
        assert "initial_scale" in world.cli("explain", "echo", "-v").stdout
        assert "echo is loaded" in world.cli("logs", "echo").stdout
        with world.sdk() as sdk:
            assert sdk.invoke("echo", REQUEST)["outputs"][0]["data"] == [2.0, 4.0]
            metrics = sdk.metrics()
        assert "tidegate_gateway_requests_total" in metrics
        assert "tidegate_queue_proxy_requests_total" in metrics
        assert "tidegate_cold_start_seconds_bucket" in metrics
        world.cli("delete", "echo")
        world.until_replicas(0)
        assert world.infer().status_code == 404
        world.cli("down")
        assert world.living() == {}


def test_nothing_survives_a_normal_end(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        world.deploy(world.handler(), "--wait")
        pids = [pid for pid in world.living().values() if pid]
        assert len(pids) >= 3
        assert world.stop() == 0
        assert world.living() == {}
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


def test_a_second_up_is_reported_who_holds_the_directory(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        holder = world.up()
        refused = world.cli("up", *world.flags, code=1)
        assert f"process {holder.pid}" in refused.stderr
        assert "tidegate down" in refused.stderr


def test_a_port_of_somebody_else_is_said_and_shared_with_none(tmp_path: Path) -> None:
    with deployment(tmp_path / "a") as first, deployment(tmp_path / "b") as second:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        address = (first.up().gateway or "").partition("://")[2]
        refused = second.cli("up", "--gateway-listen", address, "--control-listen", "127.0.0.1:0", code=1)
        assert f"cannot listen on {address}" in refused.stderr
        assert second.living() == {}


def test_two_hundred_first_requests_cause_one_first_start(tmp_path: Path) -> None:
    with deployment(tmp_path, "--gateway-workers", "2") as world:
        world.up()
        world.deploy(world.handler(load_s=0.5), "--initial-scale", "0", "--concurrency", "1", "--max-scale", "1")
        assert world.replicas() == 0
        gateway = world.gateway
        with ThreadPoolExecutor(200) as threads:
            answers = list(threads.map(lambda _: world.infer(gateway=gateway).status_code, range(200)))
        assert Counter(answers) == {200: 200}
        with world.sdk() as sdk:
            (start,) = sdk.cold_starts("echo")
        assert start.from_zero
        assert start.phases.decide_s is not None
        assert start.phases.schedule_s is not None


def test_zero_to_one_to_zero_again_and_again_loses_nothing(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        world.deploy(world.handler(), "--initial-scale", "0", "--scale-to-zero-after", "0s")
        for _ in range(3):
            assert world.infer().status_code == 200
            assert world.infer().status_code == 200, "perhaps just while it goes to sleep"
            world.until_replicas(0)


def _serving(world: Deployment) -> dict[str, int]:
    """Workers and replicas; each control process starts fork servers of its own."""
    return {name: pid for name, pid in world.living().items() if not name.startswith("fork-")}


def test_a_killed_control_process_is_not_missed_and_its_successor_takes_over(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--max-scale", "1", "--wait")
        gateway, before = world.gateway, _serving(world)
        with Load(world) as load:
            world.kill()
            assert world.infer(gateway=gateway).status_code == 200
            gone = world.cli("status", code=1)
            assert "left behind: echo-00001" in gone.stderr
            world.up()
            assert world.gateway == gateway
            world.until(lambda: world.status("echo")["ready"] == 1, 10.0, "the function to be ready")
        assert set(load.counts) == {200}
        assert _serving(world) == before, "the same processes, no double ones"
        world.until(
            lambda: (world.status()["gateways"][0]["table"] or "").startswith("2."),
            5.0,
            "the worker to take the new epoch's table",
        )
        status = world.status()
        assert status["epoch"] == 2
        assert status["functions"][0]["revisions"][0]["replicas"][0]["adopted"]
        assert world.stop() == 0
        assert world.living() == {}


def test_down_ends_what_a_killed_control_process_left(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        world.deploy(world.handler(), "--wait")
        world.kill()
        assert world.living() != {}
        ended = world.ask("down")["ended"]
        assert any(each.startswith("gateway-g0") for each in ended)
        assert world.living() == {}
        assert world.ask("down")["ended"] == []


def test_functions_survive_a_restart_and_wake_up(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        world.deploy(world.handler(), "--scale-to-zero-after", "1s", "--wait")
        world.cli("down")
        world.up()
        assert world.status("echo")["state"] == "asleep"
        assert world.infer().status_code == 200


def test_a_killed_gateway_worker_is_replaced_on_the_same_socket(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up("--gateway-workers", "1")
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        os.kill(world.living()["gateway-g0"], signal.SIGKILL)
        answers = [world.infer().status_code for _ in range(3)]
        assert answers == [200] * 3, "connections wait in the listening socket"
        assert world.status()["gateways"][0]["restarts"] == 1


def test_a_killed_model_server_is_replaced(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        name, pid = next((key, pid) for key, pid in world.living().items() if key.endswith(".server"))
        os.kill(pid, signal.SIGKILL)
        world.until(lambda: name not in world.living() and world.replicas() == 1, 5.0, "another replica")
        assert world.infer().status_code == 200


def test_a_model_that_cannot_be_loaded_is_reported_everywhere(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(
        "class Model:\n"
        "    def load(self):\n"
        "        raise ValueError('the weights are missing')\n"
        "    def predict(self, inputs):\n"
        "        return inputs\n"
    )
    with deployment(tmp_path) as world:
        world.up()
        failed = world.cli("deploy", f"{broken}:Model", "--name", "echo", code=1)
        assert "the weights are missing" in failed.stderr
        refused = world.infer()
        assert refused.status_code == 503
        assert "the weights are missing" in refused.text
        status = world.status("echo")
        assert status["state"] == "failed"
        assert "the weights are missing" in status["message"]
        world.deploy(world.handler(), "--wait")
        assert world.infer().status_code == 200


def test_a_new_revision_takes_over_without_a_lost_request(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        world.deploy(world.handler(work_s=0.01), "--min-scale", "1", "--wait")
        with Load(world) as load:
            world.deploy(world.handler(work_s=0.01), "--min-scale", "1", "--wait")
            status = world.status("echo")
            assert status["revision"] == "echo-00002"
            world.until(lambda: len(world.status("echo")["revisions"]) == 1, 10.0, "the old one to leave")
        assert set(load.counts) == {200}


def test_a_normal_end_answers_what_was_accepted(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        world.deploy(world.handler(load_s=3.0, work_s=0.3), "--initial-scale", "0", "--scale-to-zero-after", "5s")
        gateway = world.gateway
        with ThreadPoolExecutor(3) as threads:
            answers = [threads.submit(world.infer, gateway=gateway) for _ in range(3)]
            with world.sdk() as sdk:
                world.until(lambda: sdk.function("echo").traffic.waiting == 3, 5.0, "three waiting requests")
            assert world.stop() == 0
            assert [answer.result().status_code for answer in answers] == [200] * 3
        assert world.living() == {}


def test_wrong_input_is_exit_code_two_with_every_fault(tmp_path: Path) -> None:
    manifest = tmp_path / "bad.yaml"
    manifest.write_text(
        "apiVersion: tidegate.dev/v1alpha1\nkind: Function\nmetadata: {name: Bad_Name}\n"
        "spec: {server: {model: nowhere.onnx}, port: x}\n"
    )
    with deployment(tmp_path) as world:
        world.up()
        wrong = world.cli("deploy", str(manifest), code=2)
        assert "line 3" in wrong.stderr
        assert "metadata.name" in wrong.stderr
        assert "spec.port" in wrong.stderr
        assert "nowhere.onnx" in wrong.stderr
        flag = world.cli("deploy", world.handler(), "--name", "echo", "--latency", "soon", code=2)
        assert "--latency" in flag.stderr
        assert "ghost" in world.cli("status", "ghost", code=2).stderr
        assert world.ask("list") == []


@pytest.mark.needs(tool="clients")
def test_curl_speaks_to_it(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        world.deploy(world.handler(), "--wait")
        host, port = world.gateway.removeprefix("http://").split(":")
        for url in (
            f"{world.gateway}/functions/echo/v2/models/echo/infer",
            f"http://echo.localhost:{port}/v2/models/echo/infer",
        ):
            done = subprocess.run(
                ["curl", "-sS", "--resolve", f"echo.localhost:{port}:{host}", url, "-d", json.dumps(REQUEST)],
                capture_output=True,
                text=True,
                check=True,
                timeout=20,
            )
            assert json.loads(done.stdout)["outputs"][0]["data"] == [2.0, 4.0]

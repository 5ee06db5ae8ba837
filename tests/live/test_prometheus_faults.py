"""Alerts that fire in a real Prometheus by the fault that they are for, and clear after it: replicas that fail, a disk
that is full, doors that are shut, processes that hang."""

import contextlib
import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from tests.live.test_disk_full import fill_disk
from tests.live.test_prometheus import Client, clears, fires
from tests.support.live.deployment import REQUEST, Deployment, deployment, places
from tests.support.live.prometheus_server import prometheus
from tests.support.live.redis_server import RedisServer
from tests.support.live.remote_gateway import remote_gateways
from tests.support.live.tenants import ACME, closed_function, tenants_file

pytestmark = [pytest.mark.live, pytest.mark.needs(tool="prometheus"), pytest.mark.timeout(180)]

MODEL_SERVER = """
import os, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
port, folder = int(sys.argv[1]), sys.argv[2]
def there(name):
    return os.path.exists(os.path.join(folder, name))
try:
    os.close(os.open(os.path.join(folder, "taken"), os.O_CREAT | os.O_EXCL))
    is_first = True
except FileExistsError:
    is_first = False
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.answer(500 if self.path == "/metrics" and there("no-metrics") else 200)
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        if there("all-broken") or is_first and there("one-broken"):
            self.close_connection = True
        else:
            self.answer(200)
    def answer(self, status):
        body = b"tgi_request_success 1\\ntgi_queue_size 2\\ntgi_batch_current_size 3\\n"
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
"""A server without a class: files in a folder make the first replica, or all of them, hang up without an answer, and
break the metrics."""
LONG_PATH = "functions/echo/" + 3000 * "x"


def deploy_raw(world: Deployment, folder: Path, replicas: int, **annotations: str) -> None:
    """Deploys ``MODEL_SERVER`` as the function ``raw``; its files are in ``folder``."""
    folder.mkdir()
    script = world.folder / "server.py"
    script.write_text(MODEL_SERVER)
    given = {"min-scale": str(replicas), "max-scale": str(replicas), "concurrency": "2", **annotations}
    document = {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "Function",
        "metadata": {"name": "raw", "annotations": {f"tidegate.dev/{key}": value for key, value in given.items()}},
        "spec": {
            "server": {"command": [sys.executable, str(script), "{port}", str(folder)]},
            "metrics": {"path": "/metrics"},
        },
    }
    (world.folder / "raw.json").write_text(json.dumps(document))
    world.cli("deploy", str(world.folder / "raw.json"))
    world.until(lambda: world.status("raw")["ready"] == replicas, 30.0, f"{replicas} replicas")


def test_replicas_that_hang_up_are_ejected_until_all_do_and_both_clear(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    with deployment(tmp_path, *places(tmp_path, 2)) as world:
        world.up()
        deploy_raw(world, folder, 2, **{"outlier-failures": "3", "outlier-ejection": "4s"})
        with prometheus(tmp_path / "prometheus", world.state.root) as watcher:
            world.until(lambda: watcher.query('tidegate_replicas{state="ready"}'), 20.0, "the replicas to be seen")
            client = Client(f"{world.gateway}/functions/raw/x")
            try:
                (folder / "one-broken").touch()
                assert fires(world, watcher, "TidegateReplicasEjected")["function"] == "raw"
                (folder / "all-broken").touch()
                assert fires(world, watcher, "TidegateCircuitOpen")["function"] == "raw"
                for name in ("one-broken", "all-broken"):
                    (folder / name).unlink()
                for name in ("TidegateCircuitOpen", "TidegateReplicasEjected"):
                    clears(world, watcher, name)
            finally:
                client.close()


def test_a_full_disk_loses_lines_and_keeps_jobs_in_memory_and_says_so(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    with deployment(tmp_path, *places(tmp_path, 1), "--log-access-sampling", "1") as world:
        world.up()
        go_on.touch()  # the request that warms the replica waits for it too
        world.deploy(world.handler(work_until=go_on), "--min-scale", "1", "--wait")
        go_on.unlink()
        with prometheus(tmp_path / "prometheus", world.state.root) as watcher:
            world.until(lambda: watcher.query('tidegate_replicas{state="ready"}'), 20.0, "the replica to be seen")
            url = f"{world.gateway}/v2/models/echo/infer"
            accepted = httpx.post(url, json=REQUEST, headers={"Prefer": "respond-async"}, trust_env=False)
            assert accepted.status_code == 202
            fill_disk(world, 0)
            try:
                go_on.touch()
                assert fires(world, watcher, "TidegateJobsUnwritten")["worker"] == "g0"
                assert world.cli("deploy", world.handler(name="other"), code=1).stderr
                assert fires(world, watcher, "TidegateFaults")["deployment"] == "state"
                with httpx.Client(trust_env=False, base_url=world.gateway) as client:
                    dropped = lambda: client.get(LONG_PATH).content and "TidegateAccessLogDropped" in watcher.firing()  # noqa: E731
                    for _ in range(600):
                        client.get(LONG_PATH)
                    world.until(dropped, 40.0, "TidegateAccessLogDropped to fire")
            finally:
                fill_disk(world, resource.RLIM_INFINITY)
            for name in ("TidegateJobsUnwritten", "TidegateFaults", "TidegateAccessLogDropped"):
                clears(world, watcher, name)
            job = httpx.get(f"{world.gateway}{accepted.headers['location']}", trust_env=False)
            assert job.status_code == 200, job.text


@contextlib.contextmanager
def crowd(world: Deployment, count: int) -> Iterator[None]:
    """Holds connections to the gateway."""
    host, _, port = world.gateway.partition("://")[2].rpartition(":")
    with contextlib.ExitStack() as held:
        for _ in range(count):
            held.enter_context(socket.create_connection((host, int(port))))
        yield


def stopped(world: Deployment) -> int:
    """Stops a replica's queue_proxy; returns its pid."""
    pid = next(pid for name, pid in world.living().items() if name.startswith("echo-") and not name.endswith(".server"))
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_doors_that_are_shut_and_metrics_that_cannot_be_read_are_said_and_clear(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    with deployment(tmp_path, *places(tmp_path, 2), "--limits-connections", "16") as world:
        world.up()
        deploy_raw(world, folder, 1)
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        with prometheus(tmp_path / "prometheus", world.state.root, scrape_s=3) as watcher:
            seen = 'tidegate_app_metrics_up{function="raw"} == 1'
            world.until(lambda: watcher.query(seen), 20.0, "the model server's metrics to be read")

            def is_shed() -> bool:
                with crowd(world, 24):
                    return "TidegateConnectionsShed" in watcher.firing()

            (folder / "no-metrics").touch()
            world.until(is_shed, 40.0, "TidegateConnectionsShed to fire")
            assert fires(world, watcher, "TidegateModelMetricsMissing")["function"] == "raw"
            (folder / "no-metrics").unlink()
            pid = stopped(world)
            try:
                assert fires(world, watcher, "TidegateMetricsIncomplete")["deployment"] == "state"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            for name in ("TidegateConnectionsShed", "TidegateModelMetricsMissing", "TidegateMetricsIncomplete"):
                clears(world, watcher, name)


def starve(pid: int) -> None:
    """Lets a process have two milliseconds of a processor in 2.4 s: a round that is due begins in one of them and goes
    on in the next."""
    for _ in range(2):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.2)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.002)


def test_rounds_of_a_control_process_that_lacks_a_processor_are_said_to_be_late_and_it_clears(tmp_path: Path) -> None:
    with deployment(tmp_path, *places(tmp_path, 1)) as world:
        world.up()
        holder = world.state.holder()
        assert holder is not None
        with prometheus(tmp_path / "prometheus", world.state.root) as watcher:
            rounds = "sum(tidegate_control_round_seconds_count)"
            world.until(lambda: (watcher.value(rounds) or 0) > 5, 20.0, "rounds to be seen")
            assert "TidegateDecisionsLate" not in watcher.firing()

            def late() -> Mapping[str, str] | None:
                starve(holder.pid)
                world.until(lambda: watcher.query("up == 1"), 20.0, "a scrape between two of these")
                return watcher.firing().get("TidegateDecisionsLate")

            found = world.until(late, 60.0, "TidegateDecisionsLate to fire")
            assert found["deployment"] == "state"
            clears(world, watcher, "TidegateDecisionsLate")


NEVER_STARTS = """
class Echo:
    def load(self):
        raise RuntimeError("no such device")
    def predict(self, inputs):
        return inputs
"""
TWO_KINDS = "accelerators: [{name: one, kind: cpu, cores: 1, count: 1}, {name: two, kind: cpu, cores: 1, count: 1}]"


@pytest.mark.deep
def test_starts_that_fail_for_a_minute_on_one_kind_are_said_and_clear(tmp_path: Path) -> None:
    (tmp_path / "kinds.yaml").write_text(TWO_KINDS)
    (tmp_path / "never.py").write_text(NEVER_STARTS)
    with deployment(tmp_path, "--accelerators-file", str(tmp_path / "kinds.yaml")) as world:
        world.up()
        world.cli("deploy", str(tmp_path / "never.py") + ":Echo", "--name", "echo", "--min-scale", "1", "--no-wait")
        with prometheus(tmp_path / "prometheus", world.state.root) as watcher:
            world.until(lambda: "TidegateStartsRevoked" in watcher.firing(), 120.0, "TidegateStartsRevoked to fire")
            assert watcher.firing()["TidegateStartsRevoked"]["revision"] == "echo-00001"
            clears(world, watcher, "TidegateStartsRevoked")


@pytest.mark.needs(tool="redis")
def test_a_redis_that_is_away_is_said_of_quotas_and_rooms_and_clears(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    redis = RedisServer(tmp_path / "redis")
    tenants = tenants_file(tmp_path, "{requests-per-minute: 6000}")
    flags = ("--store-url", redis.url, "--store-name", "blue", "--gateway-workers", "0")
    names = {"TidegateQuotasLocal", "TidegateRoomsLocal"}
    try:
        with deployment(tmp_path, *flags, "--tenants-file", str(tenants)) as world:
            world.up()
            with (
                remote_gateways(world, redis.port, 2) as gateways,
                prometheus(tmp_path / "prometheus", world.state.root) as watcher,
            ):
                closed_function(world, {"api-keys": True})
                url = f"{gateways[0].url}/v2/models/echo/infer"

                def status() -> int:
                    key = {"x-api-key": ACME}
                    return httpx.post(url, json=REQUEST, headers=key, timeout=30.0, trust_env=False).status_code

                def is_said() -> bool:
                    assert status() == 200
                    return names <= watcher.firing().keys()

                world.until(lambda: status() == 200, 30.0, "the function at the gateway")
                world.until(lambda: watcher.query("tidegate_gateway_rooms_local"), 20.0, "the gateways to be seen")
                assert not names & watcher.firing().keys()
                redis.kill()
                world.until(is_said, 60.0, "both alerts to fire")
                redis.start()
                for name in names:
                    clears(world, watcher, name)
    finally:
        redis.kill()

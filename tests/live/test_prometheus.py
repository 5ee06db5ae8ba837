"""A real Prometheus over a real deployment: it finds it, every recording rule has data, and alerts fire by the fault
that they are for and clear after it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from docs.boards.boards import BOARDS, queries
from tests.support.live.cluster import CHART
from tests.support.live.deployment import REQUEST, Deployment, deployment, places
from tests.support.live.prometheus_server import Prometheus, prometheus
from tidegate.deploy.kubernetes.resources.chart import render

pytestmark = [pytest.mark.live, pytest.mark.needs(tool="prometheus"), pytest.mark.timeout(180)]

FAULTY = """
class Echo:
    arrays = "plain"
    inputs = {"x": ("FP32", [-1, 2])}
    outputs = {"y": ("FP32", [-1, 2])}
    def predict(self, inputs):
        raise RuntimeError("broken model")
"""


TOKEN_SERVER = Path(__file__).parents[1] / "support" / "models" / "openai_server.py"
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": 4}


class Client:
    """Sends requests until it is closed, and counts the answers."""

    def __init__(self, url: str, request: Mapping[str, Any] = REQUEST) -> None:
        self._request = request
        self.answered = 0
        self.failed = 0
        self._url = url
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with httpx.Client(trust_env=False, timeout=30.0) as client:
            while not self._is_over.wait(0.02):
                if client.post(self._url, json=self._request).is_success:
                    self.answered += 1
                else:
                    self.failed += 1

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()


@contextmanager
def load(world: Deployment, name: str = "echo") -> Iterator[Client]:
    client = Client(f"{world.gateway}/v2/models/{name}/infer")
    try:
        yield client
    finally:
        client.close()


@contextmanager
def chat(world: Deployment) -> Iterator[Client]:
    """Deploys a function whose tokens are counted, and calls it."""
    document = {
        "apiVersion": "tidegate.dev/v1alpha1",
        "kind": "Function",
        "metadata": {"name": "chat", "annotations": {"tidegate.dev/min-scale": "1", "tidegate.dev/max-scale": "1"}},
        "spec": {"server": {"command": [sys.executable, str(TOKEN_SERVER), "{port}", "0"]}, "protocol": "openai"},
    }
    manifest = world.folder / "chat.json"
    manifest.write_text(json.dumps(document))
    world.cli("deploy", str(manifest))
    client = Client(f"{world.gateway}/v1/chat/completions", CHAT)
    try:
        yield client
    finally:
        client.close()


def fires(world: Deployment, watcher: Prometheus, name: str) -> dict[str, str]:
    """Waits until an alert fires; returns its labels."""
    found = world.until(lambda: watcher.firing().get(name), 40.0, f"{name} to fire")
    return dict(found)


def clears(world: Deployment, watcher: Prometheus, name: str) -> None:
    world.until(lambda: name not in watcher.firing(), 60.0, f"{name} to clear")


def empty(watcher: Prometheus, panels: list[str]) -> list[str]:
    """Returns the queries without data."""
    return [query for query in panels if not watcher.query(query)]


def shortened(panels: list[str]) -> list[str]:
    return [query.replace("[1m]", "[5s]").replace("[1h]", "[10s]") for query in panels]


def lint(world: Deployment) -> None:
    """Lets Prometheus' own linter read a scrape."""
    holder = world.state.holder()
    assert holder is not None
    token = {"authorization": f"Bearer {world.state.read_token()}"}
    text = httpx.get(f"{holder.api}/metrics", headers=token, trust_env=False).text
    done = subprocess.run(("promtool", "check", "metrics"), input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or done.stdout


def test_every_rule_and_panel_has_data_and_the_figures_are_those_of_the_client(tmp_path: Path) -> None:
    with deployment(tmp_path, *places(tmp_path, 3), "--metrics-http-server", "true") as world:
        world.up()
        with prometheus(tmp_path / "prometheus", world.state.root) as watcher:
            # Not deployed yet: what counts from zero is seen from zero.
            world.until(lambda: watcher.value("up") == 1, 20.0, "the deployment to be found")
            world.cli("deploy", world.handler(), "--name", "echo", "--latency", "500ms", "--min-scale", "1")
            with load(world) as client, chat(world):
                world.until(lambda: all(watcher.recorded().values()), 60.0, "all rules to have data")
                panels = [query for board in BOARDS for query in shortened(queries(board))]
                world.until(lambda: not empty(watcher, panels), 30.0, "all panels of the boards to have data")
                lint(world)
            total = 'sum(tidegate_gateway_ended_requests_total{function="echo",outcome="answered"})'
            world.until(lambda: watcher.value(total) == client.answered, 10.0, f"{client.answered} answers")
            served = 'sum(tidegate_cost_requests_total{function="echo"})'
            world.until(
                lambda: watcher.value(served) == client.answered, 10.0, "the cost's requests to be the client's"
            )
            active = 'sum(http_server_active_requests{function="echo"})'
            convention = (
                'sum(http_server_request_duration_seconds_count{function="echo",http_response_status_code="200"})'
            )
            figures = {
                active: 0,
                convention: client.answered,
                'function:tidegate_sla_objective:ratio{function="echo"}': 0.98,
                'up{job="tidegate",deployment="state"}': 1,
            }
            world.until(  # a scrape that the machine has no time for leaves a gap
                lambda: {query: watcher.value(query) for query in figures} == figures, 10.0, f"{figures}"
            )
            price = 'function:tidegate_price_per_hour:sum{function="echo"}'
            world.until(lambda: watcher.value(price) is not None, 10.0, "a price")


@pytest.mark.timeout(240)
def test_the_demos_console_and_boards_show_what_its_client_counted(tmp_path: Path) -> None:
    """Rates, shares and percentiles within 2 %, at each number of replicas with enough requests."""
    command = (sys.executable, "-m", "tidegate.control.cli", "demo", "--fast", "--json", "--report")
    done = subprocess.run((*command, tmp_path / "report.html"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["figures_agree"], (found["figures"], found["compared"])
    assert 2 in {each["ready"] for each in found["compared"]}
    assert all(each["boards"] is not None for each in found["compared"])
    assert "the boards&#x27; in Prometheus" in (tmp_path / "report.html").read_text()


def test_counters_never_fall_when_a_worker_dies_and_its_alert_fires_and_clears(tmp_path: Path) -> None:
    with deployment(tmp_path, "--gateway-workers", "2") as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        with prometheus(tmp_path / "prometheus", world.state.root) as watcher:
            world.until(lambda: watcher.query('tidegate_replicas{state="ready"}'), 20.0, "the replica to be seen")
            for _ in range(20):
                assert world.infer().is_success
            total = "sum(tidegate_gateway_requests_total)"
            world.until(lambda: watcher.value(total) == 20, 10.0, "20 requests")
            world.end("gateway-g0")
            assert fires(world, watcher, "TidegateGatewayRestarts")["worker"] == "g0"
            for _ in range(5):
                assert world.infer().is_success
            world.until(lambda: watcher.value(total) == 25, 10.0, "25 requests")
            assert watcher.value(f"resets({total}[1m:1s])") == 0
            clears(world, watcher, "TidegateGatewayRestarts")


def test_a_model_that_fails_and_replicas_that_break_are_said_and_clear(tmp_path: Path) -> None:
    with deployment(tmp_path, *places(tmp_path, 2)) as world:
        world.up()
        broken = tmp_path / "broken.py"
        broken.write_text(FAULTY)
        world.deploy(world.handler(), "--min-scale", "1", "--latency", "500ms", "--wait")
        with prometheus(tmp_path / "prometheus", world.state.root) as watcher:
            world.until(lambda: watcher.query('tidegate_replicas{state="ready"}'), 20.0, "the replica to be seen")
            world.deploy(f"{broken}:Echo", "--min-scale", "1", "--latency", "500ms", "--wait")
            with load(world):
                for name in ("TidegateRequestsFail", "TidegateSlaBurnsFast", "TidegateSlaBurns"):
                    assert fires(world, watcher, name)["function"] == "echo"
            world.deploy(world.handler(), "--min-scale", "1", "--latency", "500ms", "--wait")
            with load(world):
                for name in ("TidegateRequestsFail", "TidegateSlaBurnsFast", "TidegateSlaBurns"):
                    clears(world, watcher, name)
            os.kill(next(pid for name, pid in world.living().items() if name.endswith(".server")), signal.SIGKILL)
            assert fires(world, watcher, "TidegateReplicasBreak")["function"] == "echo"
            clears(world, watcher, "TidegateReplicasBreak")


def test_requests_that_wait_and_a_missing_replica_are_said_and_clear(tmp_path: Path) -> None:
    with deployment(tmp_path, *places(tmp_path, 1)) as world:
        world.up()
        world.deploy(world.handler(load_s=12.0), "--min-scale", "1")
        with prometheus(tmp_path / "prometheus", world.state.root) as watcher:
            waiting = threading.Thread(target=lambda: world.infer(timeout=60.0))
            waiting.start()
            for name in ("TidegateWaitingTooLong", "TidegateReplicasMissing"):
                assert fires(world, watcher, name)["function"] == "echo"
            waiting.join()
            for name in ("TidegateWaitingTooLong", "TidegateReplicasMissing"):
                clears(world, watcher, name)


def test_a_control_process_that_died_is_said_until_the_next_one_answers(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        with prometheus(tmp_path / "prometheus", world.state.root) as watcher:
            world.until(lambda: watcher.value("up") == 1, 20.0, "the deployment to be found")
            world.kill()
            assert fires(world, watcher, "TidegateDown")["deployment"] == "state"
            world.up()
            clears(world, watcher, "TidegateDown")
            targets = json.loads(world.state.targets.read_text())
            assert world.state.holder() is not None
            assert targets[0]["targets"][0] in str(world.state.holder())


def scrape_config(monitor: Mapping[str, Any], target: str, token: Path) -> dict[str, Any]:
    """What the Prometheus Operator makes of the chart's PodMonitor, with the Pod's address as it would be found."""
    spec = monitor["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    labels = {each["targetLabel"]: each["replacement"] for each in endpoint["relabelings"]}
    return {
        "job_name": spec["selector"]["matchLabels"][spec["jobLabel"]],
        "scrape_interval": endpoint["interval"],
        "metrics_path": endpoint["path"],
        "authorization": {"credentials_file": str(token)},
        "static_configs": [{"targets": [target], "labels": labels}],
    }


def test_the_pod_monitor_of_the_chart_scrapes_the_listener_that_has_metrics_alone(tmp_path: Path) -> None:
    """No token of the deployment is needed, and the rules have what they have with the API's scrape."""
    values = {"monitoring": {"podMonitor": {"enabled": True, "interval": "1s"}, "tokenSecret": "scrape"}}
    monitor = yaml.safe_load(render(CHART, "models", values)["monitoring.yaml"])
    token = tmp_path / "scrape"
    token.write_text("of-scrapes-alone\n")
    listener = ("--metrics-listen", "127.0.0.1:0", "--metrics-token-file", str(token))
    with deployment(tmp_path, *places(tmp_path, 2), *listener) as world:
        world.up()
        url = httpx.URL(world.ask("status")["metrics"])
        config = scrape_config(monitor, f"{url.host}:{url.port}", token)
        with prometheus(tmp_path / "prometheus", world.state.root, scrape=config) as watcher:
            world.until(lambda: watcher.value('up{job="tidegate",deployment="models"}') == 1, 20.0, "the target")
            world.deploy(world.handler(), "--min-scale", "1", "--latency", "500ms")
            assert all(world.infer().status_code == 200 for _ in range(7))
            total = 'sum(tidegate_gateway_ended_requests_total{function="echo",outcome="answered"})'
            world.until(lambda: watcher.value(total) == 7, 20.0, "the answers to be counted")
            rule = 'function:tidegate_sla_objective:ratio{function="echo"}'
            world.until(lambda: watcher.value(rule) == 0.98, 20.0, "a rule with data")

            def status(path: str, given: str, method: str = "GET") -> int:
                headers = {"authorization": f"Bearer {given}"}
                return httpx.request(method, url.join(path), headers=headers, trust_env=False).status_code

            own, deployments = token.read_text().strip(), (world.state.root / "token").read_text().strip()
            assert status("/metrics", own) == 200
            assert status("/metrics", deployments) == status("/metrics", "none") == 401
            assert status("/metrics", own, "POST") == 405
            assert {status(path, deployments) for path in ("/api/v1/status", "/healthz", "/console", "/")} == {404}
            assert status("/api/v1/shutdown", deployments, "POST") == 404
        assert world.stop() == 0

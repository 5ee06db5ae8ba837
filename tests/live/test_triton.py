"""The real Triton behind ``tidegate up``: its metrics arrive in our words, and its batching shows in them."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy
import pytest
import tritonclient.http as tritonclient

from benchmarks.deployment import free_port
from tests.support.live import triton
from tests.support.live.deployment import Deployment, deployment, places

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(120),
    pytest.mark.needs(tool="triton"),
]

RELAY = """
import socket, sys, threading
def pump(source, sink):
    while data := source.recv(65536):
        sink.sendall(data)
    sink.shutdown(socket.SHUT_WR)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    one, _ = listener.accept()
    other = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
    for pair in ((one, other), (other, one)):
        threading.Thread(target=pump, args=pair, daemon=True).start()
"""


def manifest(models: Path, *, metrics_port: str = "{metrics_port}", metrics: str = "{}") -> str:
    return f"""
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: double
  annotations: {{tidegate.dev/min-scale: "1", tidegate.dev/max-scale: "1", tidegate.dev/latency: 2s}}
spec:
  server: {{command: {json.dumps(triton.command(models, metrics_port))}}}
  env: {json.dumps(triton.environment())}
  metrics: {metrics}
  concurrency: 32
"""


@contextmanager
def serving(folder: Path, **spec: str) -> Iterator[Deployment]:
    with deployment(folder, *places(folder, 2)) as world:
        world.up()
        with world.sdk() as tidegate:
            tidegate.deploy(manifest(triton.repository(folder), **spec), base=folder, wait=True)
        yield world


def ask(world: Deployment, count: int) -> None:
    """So many requests of one inference, 32 at a time, each answered right."""
    place = world.gateway.removeprefix("http://")

    def one(number: int) -> None:
        with tritonclient.InferenceServerClient(place) as client:
            given = tritonclient.InferInput("x", [1, 2], "FP32")
            given.set_data_from_numpy(numpy.array([[number, 1.5]], dtype=numpy.float32))
            assert client.infer("double", [given]).as_numpy("y").tolist() == [[2.0 * number, 3.0]]

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(one, range(count)))


def figure(world: Deployment, name: str) -> float | None:
    """One figure of /metrics, whatever its labels."""
    with world.sdk() as tidegate:
        found = re.search(rf"^tidegate_{name}(?:{{[^}}]*}})? (\S+)$", tidegate.metrics(), re.MULTILINE)
    return None if found is None else float(found[1])


def most(world: Deployment, metric: str, group: str | None) -> float | None:
    """The largest value of a series."""
    with world.sdk() as tidegate:
        found = [line for line in tidegate.series("double", metric=metric).lines if line.group == group]
    return max((value for line in found for _, value in line.points if value is not None), default=None)


def test_what_triton_counts_arrives_in_our_words_and_batches_show(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        world.until(lambda: figure(world, "app_metrics_up"), 10.0, "the metrics")
        with world.sdk() as tidegate:
            text = tidegate.metrics()
        assert re.search(r'^tidegate_app_metrics_series{[^}]*engine="triton"[^}]*} 9$', text, re.MULTILINE)
        assert figure(world, "app_metrics_missing_figures") == 0
        ask(world, 200)
        world.until(lambda: figure(world, "app_inferences_total") == 200, 10.0, "200 inferences")
        executions = figure(world, "app_executions_total")
        assert executions is not None
        assert 25 <= executions < 200
        request_s, queue_s, compute_s = (
            figure(world, f"app_{name}_seconds_total") for name in ("request", "queue", "compute")
        )
        assert request_s is not None
        assert queue_s is not None
        assert compute_s is not None
        assert compute_s >= 200 * 0.02
        assert request_s >= queue_s > 0
        assert figure(world, "app_max_batch_inferences") == 8
        assert figure(world, "app_batch_inferences_sum") == 200
        assert figure(world, "queue_proxy_batch_fill_ratio_count") == executions
        for metric, least in (("server-batch", 1.5), ("compute-s", 0.02), ("queue-s", 1e-4)):
            world.until(lambda: (most(world, metric, "cpu") or 0.0) >= least, 10.0, metric)  # noqa: B023 asked at once
        world.until(lambda: most(world, "ips", None), 10.0, "the rate")


def test_a_stopped_metrics_endpoint_is_stale_after_three_seconds_and_none_else_notices(tmp_path: Path) -> None:
    shown, real = free_port(), free_port()
    relay = subprocess.Popen([sys.executable, "-c", RELAY, str(shown), str(real)])
    try:
        with serving(tmp_path, metrics_port=str(real), metrics=f"{{port: {shown}}}") as world:
            world.until(lambda: figure(world, "app_metrics_up") == 1, 10.0, "the metrics")
            os.kill(relay.pid, signal.SIGSTOP)
            world.until(lambda: figure(world, "app_metrics_up") == 0, 10.0, "stale metrics")
            assert (figure(world, "app_metrics_age_seconds") or 0.0) > 3.0
            ask(world, 64)
            assert figure(world, "app_inferences_total") == 0
            os.kill(relay.pid, signal.SIGCONT)
            world.until(lambda: figure(world, "app_inferences_total") == 64, 10.0, "what was counted meanwhile")
    finally:
        relay.kill()
        relay.wait()


def test_a_wrong_port_is_said_and_harms_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, metrics=f"{{port: {free_port()}}}", metrics_port=str(free_port())) as world:
        world.until(lambda: figure(world, "app_metrics_failures_total"), 10.0, "a failure")
        ask(world, 64)
        assert figure(world, "app_metrics_up") == 0
        lines = world.cli("logs", "double", "--source", "proxy").stdout
        assert "application metrics: no connection to 127.0.0.1:" in lines

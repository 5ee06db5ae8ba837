"""Start-up time and memory of the data plane's processes and of replicas, beside a bare ``python -c pass``.

    python -m benchmarks.start_up [--runs 15]

Each process is started ``--runs`` times, one after the other, round robin, with a model server that is up already:

- ``exec_to_listening_ms``: from just before the exec until its admin endpoint answered (polled every millisecond);
- ``exec_to_ready_ms``: until ``ready`` came on ``/events`` (queue_proxy) or ``/healthz`` answered (gateway);
- ``cpu_ms``: processor time of the process until then, which other load on the machine disturbs less;
- ``rss_mb``, ``private_mb``: resident and private memory (``/proc/PID/smaps_rollup``) 0.3 s later, idle.

A replica (queue_proxy and model server of a small ONNX model, over the local backend) has ``spawn_to_ready_ms``, from
the order to *ready*, and the memory of its model server: *warm* from the fork servers, whose memory is reported beside
it, and *cold* by two spawns that import everything.

Prints one JSON line per process: medians and the worst; ``python -c pass`` has only its time to exit and its memory.
The exit code is 1 if queue_proxy or warm replica exceeds its bound; times are not judged by fewer than five runs.
"""

import argparse
import asyncio
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from benchmarks.replica_starts import measure

ROOT = Path(__file__).resolve().parents[1]
SETTLE_S = 0.3
PATIENCE_S = 10.0
QUEUE_PROXY_READY_MS, QUEUE_PROXY_RSS_MB = 200.0, 30.0
"""What the queue_proxy promises."""
WARM_REPLICA_MS = 300.0
"""What a replica of the shipped server promises for a small ONNX model."""
JUDGED_RUNS = 5


class _Model(BaseHTTPRequestHandler):
    """A model server that is ready."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


class _UnixConnection(HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(str(self._path))


def wait_for_admin(path: Path) -> None:
    """Until ``/healthz`` answers on a unix socket."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        connection = _UnixConnection(path)
        try:
            connection.request("GET", "/healthz")
            if connection.getresponse().read() == b"ok":
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.001)
        finally:
            connection.close()


def wait_for_ready(path: Path) -> None:
    """Until ``/events`` says ready."""
    connection = _UnixConnection(path)
    try:
        connection.request("GET", "/events")
        answer = connection.getresponse()
        while json.loads(answer.readline())["state"] != "ready":
            pass
    finally:
        connection.close()


def memory_mb(pid: int) -> tuple[float, float]:
    """(resident, private) in MB."""
    kilobytes = {"Rss": 0, "Private_Clean": 0, "Private_Dirty": 0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        if name in kilobytes:
            kilobytes[name] = int(value.split()[0])
    return kilobytes["Rss"] / 1024, (kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]) / 1024


def processor_ms(pid: int) -> float:
    """Time on a processor so far, of the main thread, in milliseconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def environment(**more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **more}


def run_pass() -> dict[str, float]:
    """``python -c pass``: the floor."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-c", "pass"], check=True, env=environment())
    elapsed = time.perf_counter() - began
    program = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-P", "-c", program], stdin=subprocess.PIPE, env=environment()) as process:
        time.sleep(SETTLE_S)
        resident, private = memory_mb(process.pid)
        processor = processor_ms(process.pid)
        process.communicate()
    return {"exec_to_exit_ms": elapsed * 1e3, "cpu_ms": processor, "rss_mb": resident, "private_mb": private}


def run_queue_proxy(directory: Path, model_port: int) -> dict[str, float]:
    admin = directory / "proxy.sock"
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        settings = environment(
            TIDEGATE_LISTEN_FD=str(listener.fileno()),
            TIDEGATE_UPSTREAM=f"127.0.0.1:{model_port}",
            TIDEGATE_ADMIN=f"unix:{admin}",
            TIDEGATE_READINESS_PATH="/v2/health/ready",
            TIDEGATE_CONCURRENCY="4",
            TIDEGATE_REPLICA="bench-00001-aaaaa",
        )
        command = [sys.executable, "-P", "-m", "tidegate.queue_proxy.main"]
        return measured(command, settings, listener.fileno(), admin, wait_for_ready)


def run_gateway(directory: Path) -> dict[str, float]:
    admin = directory / "gateway.sock"
    config = directory / "gateway.json"
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        config.write_text(
            json.dumps(
                {
                    "worker": "g0",
                    "listen_fd": listener.fileno(),
                    "admin": str(admin),
                    "table_file": str(directory / "routes.json"),
                    "token": "bench",
                }
            )
        )
        command = [sys.executable, "-P", "-m", "tidegate.gateway.main", "--config", str(config)]
        return measured(command, environment(), listener.fileno(), admin, wait_for_admin)


def measured(
    command: list[str], settings: dict[str, str], fd: int, admin: Path, until_ready: Callable[[Path], None]
) -> dict[str, float]:
    """Starts one process, waits until it listens and is ready, reads its memory, ends it."""
    admin.unlink(missing_ok=True)
    began = time.perf_counter()
    process = subprocess.Popen(command, env=settings, pass_fds=(fd,), cwd=admin.parent)
    try:
        wait_for_admin(admin)
        listening = time.perf_counter()
        until_ready(admin)
        ready = time.perf_counter()
        processor = processor_ms(process.pid)
        time.sleep(SETTLE_S)
        resident, private = memory_mb(process.pid)
    finally:
        process.terminate()
        process.wait()
    return {
        "exec_to_listening_ms": (listening - began) * 1e3,
        "exec_to_ready_ms": (ready - began) * 1e3,
        "cpu_ms": processor,
        "rss_mb": resident,
        "private_mb": private,
    }


def summary(name: str, runs: list[dict[str, float]]) -> dict[str, object]:
    line: dict[str, object] = {"benchmark": "start_up", "process": name, "runs": len(runs)}
    for key in runs[0]:
        values = [run[key] for run in runs]
        line[key] = round(statistics.median(values), 1)
        line[f"{key}_worst"] = round(max(values), 1)
    return line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    model = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    threading.Thread(target=model.serve_forever, daemon=True).start()
    found: dict[str, list[dict[str, float]]] = {"python -c pass": [], "queue_proxy": [], "gateway": []}
    with tempfile.TemporaryDirectory(prefix="start-") as directory:
        for _ in range(options.runs):
            found["python -c pass"].append(run_pass())
            found["queue_proxy"].append(run_queue_proxy(Path(directory), model.server_port))
            found["gateway"].append(run_gateway(Path(directory)))
    model.shutdown()
    found |= asyncio.run(measure(options.runs, memory_mb))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    for name, runs in found.items():
        print(json.dumps(summary(name, runs) | {"machine": machine}))
    ready_ms, rss_mb = (
        statistics.median(run[measure] for run in found["queue_proxy"]) for measure in ("exec_to_ready_ms", "rss_mb")
    )
    is_quick = ready_ms < QUEUE_PROXY_READY_MS or options.runs < JUDGED_RUNS
    holds = is_quick and rss_mb < QUEUE_PROXY_RSS_MB
    if not holds:
        print(f"queue_proxy: over {QUEUE_PROXY_READY_MS:g} ms or {QUEUE_PROXY_RSS_MB:g} MB", file=sys.stderr)
    warm_ms = statistics.median(run["spawn_to_ready_ms"] for run in found["replica, warm"])
    is_warm_quick = warm_ms <= WARM_REPLICA_MS or options.runs < JUDGED_RUNS
    if not is_warm_quick:
        print(f"replica, warm: over {WARM_REPLICA_MS:g} ms", file=sys.stderr)
    return 0 if holds and is_warm_quick else 1


if __name__ == "__main__":
    sys.exit(main())

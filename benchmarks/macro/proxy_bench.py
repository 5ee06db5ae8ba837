"""What a request costs at a proxy: ours beside nginx, same core, same run, interleaved.

    python -m benchmarks.macro.proxy_bench [--seconds 2] [--rounds 5] [--connections 32] [--peer NAME=COMMAND]...

The proxy runs on core 0; backend (nginx with a constant answer) and load (wrk) share core 1. Figures are CPU time of
the proxy per request over all its threads (/proc/PID/task/*/schedstat), since on two cores the requests per second
are limited by the load side. Each round visits every proxy once; ratios to nginx are taken per round and their median
is reported, after one warm-up round. A peer's COMMAND may contain {port} (to listen on) and {upstream} (host:port).

Prints one JSON line per proxy and load, then a table. Needs Linux, wrk and nginx.
"""

import argparse
import contextlib
import json
import os
import platform
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROXY_CORE, LOAD_CORE = "0", "1"
REFERENCE = "nginx"
LOADS = ("post", "get")
START_S = 10.0

_NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_timeout 75s; keepalive_requests 1000000000;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  {http}
}}
"""
_BACKEND = """
  server {{ listen 127.0.0.1:{port} backlog=4096; default_type application/json;
    location / {{ return 200 '{{"model_name":"resnet","outputs":[{{"name":"output","shape":[1,4],"datatype":"FP32","data":[0.1,0.2,0.3,0.4]}}]}}'; }} }}
"""  # noqa: E501 - one directive
_PROXY = """
  upstream backend {{ server {upstream}; keepalive 64; keepalive_requests 1000000000; }}
  server {{ listen 127.0.0.1:{port} backlog=4096; client_max_body_size 0;
    location / {{ proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_set_header Host $host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Proto $scheme; proxy_set_header X-Forwarded-Host $host; proxy_buffering on; }} }}
"""


@dataclass
class Candidate:
    """One proxy under test and what was measured of it, by load."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    cpu_us: dict[str, list[float]] = field(default_factory=lambda: {load: [] for load in LOADS})
    rps: dict[str, list[float]] = field(default_factory=lambda: {load: [] for load in LOADS})
    p99_us: dict[str, list[float]] = field(default_factory=lambda: {load: [] for load in LOADS})


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process, in nanoseconds."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += int((task / "schedstat").read_text().split()[0])
    return total


def start(core: str, command: list[str], port: int, **environment: str) -> subprocess.Popen[bytes]:
    """Starts a server pinned to a core and waits until its port accepts."""
    process = subprocess.Popen(
        ["taskset", "-c", core, *command], cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.DEVNULL
    )
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"{shlex.join(command)} ended with {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.2):
            return process
        time.sleep(0.02)
    process.kill()
    raise RuntimeError(f"{shlex.join(command)} does not listen on {port} within {START_S} s")


def nginx_command(nginx: str, folder: Path, http: str) -> list[str]:
    folder.mkdir()
    config = folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=folder, http=http))
    return [nginx, "-c", str(config), "-p", str(folder), "-e", str(folder / "error.log")]


@contextlib.contextmanager
def candidates(nginx: str, peers: list[str], chosen: set[str]) -> Iterator[list[Candidate]]:
    """The backend and every proxy before it; all end with the block."""
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            backend = free_port()
            started.append(
                start(LOAD_CORE, nginx_command(nginx, folder / "backend", _BACKEND.format(port=backend)), backend)
            )
            upstream = f"127.0.0.1:{backend}"
            result = []
            for label, command, environment, port in _commands(nginx, folder, upstream, peers):
                if not chosen or label in chosen or label == REFERENCE:
                    process = start(PROXY_CORE, command, port, **environment)
                    started.append(process)
                    result.append(Candidate(label, port, process))
            yield result
        finally:
            for process in started:
                process.send_signal(signal.SIGKILL)
                process.wait()


def _commands(
    nginx: str, folder: Path, upstream: str, peers: list[str]
) -> Iterator[tuple[str, list[str], dict[str, str], int]]:
    port = free_port()
    http = _PROXY.format(port=port, upstream=upstream)
    yield REFERENCE, nginx_command(nginx, folder / "nginx", http), {}, port
    port = free_port()
    yield (
        "relay",
        [sys.executable, "-P", "-c", _module("benchmarks.macro.relay", f"127.0.0.1:{port}", upstream)],
        {},
        port,
    )
    port = free_port()
    environment = {
        "QUEUE_SERVING_PORT": str(port),
        "TIDEGATE_UPSTREAM": upstream,
        "TIDEGATE_ADMIN": f"unix:{folder}/admin.sock",
        "CONTAINER_CONCURRENCY": "100",
        "SERVING_REVISION": "bench-00001",
    }
    yield "queue_proxy", [sys.executable, "-P", "-m", "queue_proxy.main"], environment, port
    for peer in peers:
        name, _, command = peer.partition("=")
        port = free_port()
        yield name, shlex.split(command.format(port=port, upstream=upstream)), {}, port


def _module(name: str, *arguments: str) -> str:
    """Source that runs a module of this checkout (``-P`` keeps the working directory off the path)."""
    call = f"sys.argv[1:] = {list(arguments)!r}; runpy.run_module({name!r}, run_name='__main__')"
    return f"import sys, runpy; sys.path.append({str(ROOT)!r}); {call}"


def visit(candidate: Candidate, load: str, seconds: int, connections: int) -> tuple[float, float, float]:
    """One run of wrk: CPU us per request, requests/s, p99 in us. Raises RuntimeError when a request failed."""
    url = f"http://127.0.0.1:{candidate.port}"
    command = ["taskset", "-c", LOAD_CORE, "wrk", "-t1", f"-c{connections}", f"-d{seconds}s"]
    before = cpu_ns(candidate.process.pid)
    done = subprocess.run(
        [*command, "-s", str(HERE / "load.lua"), url, "--", load], capture_output=True, text=True, check=True
    )
    used = cpu_ns(candidate.process.pid) - before
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise RuntimeError(f"wrk told no result: {done.stdout}{done.stderr}")
    result = json.loads(lines[0].removeprefix("RESULT "))
    if result["errors"] or not result["requests"]:
        raise RuntimeError(f"{candidate.name}, {load}: {result['errors']} of {result['requests']} requests failed")
    return used / 1e3 / result["requests"], result["requests"] / (result["duration_us"] / 1e6), result["p99_us"]


def measure(proxies: list[Candidate], loads: tuple[str, ...], rounds: int, seconds: int, connections: int) -> None:
    """All rounds, the first (warm-up) dropped."""
    for number in range(rounds + 1):
        for load in loads:
            for candidate in proxies:
                cpu, rps, p99 = visit(candidate, load, seconds if number else 1, connections)
                if number:
                    candidate.cpu_us[load].append(cpu)
                    candidate.rps[load].append(rps)
                    candidate.p99_us[load].append(p99)


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def report(proxies: list[Candidate], loads: tuple[str, ...], connections: int) -> None:
    reference = next(candidate for candidate in proxies if candidate.name == REFERENCE)
    machine = (
        f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    )
    rows = []
    for load in loads:
        for candidate in proxies:
            pairs = zip(candidate.cpu_us[load], reference.cpu_us[load], strict=True)
            ratios = [ours / theirs for ours, theirs in pairs]
            row = {
                "benchmark": "proxy",
                "load": load,
                "proxy": candidate.name,
                "cpu_us_per_request": round(statistics.median(candidate.cpu_us[load]), 2),
                "ratio_to_nginx": round(statistics.median(ratios), 3),
                "ratio_min": round(min(ratios), 3),
                "ratio_max": round(max(ratios), 3),
                "requests_per_s": round(statistics.median(candidate.rps[load])),
                "p99_us": round(statistics.median(candidate.p99_us[load])),
                "rounds": len(ratios),
                "connections": connections,
                "commit": commit(),
                "machine": machine,
            }
            rows.append(row)
            print(json.dumps(row))
    print(f"\n{'load':6}{'proxy':14}{'CPU us/request':>16}{'x nginx':>10}{'spread':>16}{'requests/s':>12}{'p99 us':>9}")
    for row in rows:
        spread = f"{row['ratio_min']:.2f}-{row['ratio_max']:.2f}"
        print(
            f"{row['load']:6}{row['proxy']:14}{row['cpu_us_per_request']:16.2f}{row['ratio_to_nginx']:10.2f}"
            f"{spread:>16}{row['requests_per_s']:12}{row['p99_us']:9}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU per request of the proxies beside nginx")
    parser.add_argument("--seconds", type=int, default=2, help="of each visit, whole seconds")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="these proxies beside nginx")
    parser.add_argument("--load", action="append", choices=LOADS, help="default: both")
    arguments = parser.parse_args()
    nginx = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    missing = [
        name
        for name, found in (("nginx", nginx), ("wrk", shutil.which("wrk")), ("taskset", shutil.which("taskset")))
        if not found
    ]
    if missing or nginx is None:
        print(f"NOT MEASURED: {', '.join(missing)} is not installed (Debian: apt install nginx-light wrk util-linux)")
        return 1
    if (os.cpu_count() or 1) < 2:
        print("NOT MEASURED: two cores are needed, one for the proxy and one for the load")
        return 1
    loads = tuple(arguments.load or LOADS)
    with candidates(nginx, arguments.peer, set(arguments.only)) as proxies:
        measure(proxies, loads, arguments.rounds, arguments.seconds, arguments.connections)
        report(proxies, loads, arguments.connections)
    return 0


if __name__ == "__main__":
    sys.exit(main())

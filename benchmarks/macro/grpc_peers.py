"""The gRPC server of the benchmark and the proxies before it: HTTP/2 on both sides, cleartext, one core."""

import json
import shlex
import subprocess
from dataclasses import dataclass

from benchmarks.macro import peers
from benchmarks.macro.harness import Bench, Server, Stage, free_port

_NGINX = """
  upstream backend {{ server {upstream}; keepalive 64; keepalive_requests 1000000000; }}
  server {{ listen 127.0.0.1:{port} http2 backlog=4096; client_max_body_size 0; client_body_buffer_size 256k;
    http2_max_concurrent_streams 1000;
    location / {{ grpc_pass grpc://backend; grpc_read_timeout 75s; grpc_send_timeout 75s; }} }}
"""
_HAPROXY = """
global
  nbthread 1
  maxconn 8000
defaults
  mode http
  timeout connect 5s
  timeout client 75s
  timeout server 75s
  http-reuse always
  option forwardfor
frontend front
  bind 127.0.0.1:{port} proto h2 backlog 4096
  default_backend back
backend back
  server one {upstream} proto h2
"""


@dataclass(frozen=True, slots=True)
class Visit:
    """One run of the load against one server."""

    cpu_us: float
    """Processor time of the server per call."""
    calls_per_s: float
    p50_us: float
    p99_us: float


def backend(stage: Stage) -> Server:
    """Answers unary calls with 300 bytes and echoes streams (``benchmarks/macro/gogrpc/serve.go``)."""
    address = f"127.0.0.1:{free_port()}"
    command = [stage.bench.tools["gogrpc"], "serve", address]
    return stage.start("direct", stage.bench.machine.load_core, command, address, environment={"GOMAXPROCS": "1"})


def proxies(stage: Stage, upstream: str) -> list[Server]:
    """nginx first, then HAProxy where it is there, our proxy in Go, ``--peer`` ones, and queue_proxy."""
    core = stage.bench.machine.proxy_core
    found = [_nginx(stage, upstream)]
    if "haproxy" in stage.bench.tools:
        port = free_port()
        file = stage.folder / "haproxy.cfg"
        file.write_text(_HAPROXY.format(port=port, upstream=upstream))
        words = [stage.bench.tools["haproxy"], "-q", "-db", "-f", str(file)]
        found.append(stage.start("haproxy", core, words, f"127.0.0.1:{port}"))
    address = f"127.0.0.1:{free_port()}"
    words = [stage.bench.tools["gogrpc"], "proxy", address, upstream]
    found.append(stage.start("go", core, words, address, environment={"GOMAXPROCS": "1"}))
    for peer in stage.bench.peers:
        label, _, command = peer.partition("=")
        port = free_port()
        filled = {"{port}": str(port), "{upstream}": upstream, "{upstream_port}": upstream.rpartition(":")[2]}
        for mark, value in filled.items():
            command = command.replace(mark, value)
        found.append(stage.start(label, core, shlex.split(command), f"127.0.0.1:{port}"))
    return [*found, peers.queue_proxy(stage, upstream)]


def _nginx(stage: Stage, upstream: str) -> Server:
    port = free_port()
    words = peers.nginx_command(stage, stage.folder / "nginx", _NGINX.format(port=port, upstream=upstream))
    return stage.start("nginx", stage.bench.machine.proxy_core, words, f"127.0.0.1:{port}")


def load(bench: Bench, server: Server, words: tuple[str, ...], seconds: float) -> Visit:
    """Raises RuntimeError when a call failed."""
    command = [bench.tools["taskset"], "-c", bench.machine.load_core, bench.tools["gogrpc"], "load"]
    command += ["-seconds", str(seconds), *words, server.address]
    before = server.cpu_us()
    done = subprocess.run(command, capture_output=True, text=True, env={"GOMAXPROCS": "1"}, check=False)
    used = server.cpu_us() - before
    if done.returncode:
        raise RuntimeError(f"{server.name}, {' '.join(words) or 'unary'}: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    return Visit(used / found["calls"], found["calls"] / found["seconds"], found["p50_us"], found["p99_us"])

"""Start-up of each backend and each proxy. All proxies: one core, keep-alive both ways, no access log."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.macro.harness import Server, Stage, answered, free_port
from tidegate.records.codec import encode
from tidegate.records.payload_rules import PayloadRules
from tidegate.records.route_table import FunctionRoute, GroupRoute, ReplicaRoute, RevisionRoute, RouteTable

TOKEN = "bench-token"
FUNCTION = "resnet"
TENSOR_BYTES = 602_112
"""A float32 image of 3 x 224 x 224."""
LIMIT = 100
NULL_SLOTS = 4000
"""``benchmarks/macro/replica.py`` does not give back the slots of the requests, up to 32, that each visit ends with."""

_NGINX = """
daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
worker_rlimit_nofile 20000;
events {{ worker_connections 16384; }}
http {{
  access_log off; keepalive_timeout 75s; keepalive_requests 1000000000; sendfile on;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  {http}
}}
"""
_BACKEND = """
  server {{ listen 127.0.0.1:{port} backlog=4096; default_type application/json; root {folder}/files;
    location /files/ {{ rewrite ^/files(.*)$ $1 break; }}
    location / {{ return 200 '{{"model_name":"resnet","outputs":[{{"name":"output","shape":[1,4],"datatype":"FP32","data":[0.1,0.2,0.3,0.4]}}]}}'; }} }}
"""  # noqa: E501 - one directive
_PROXY = """
  upstream backend {{ server {upstream}; keepalive 64; keepalive_requests 1000000000; }}
  server {{ listen 127.0.0.1:{port} backlog=4096; client_max_body_size 0;
    location / {{ proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_set_header Host $host; proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Proto $scheme; proxy_set_header X-Forwarded-Host $host; {streaming} }} }}
"""
_STREAMING = (
    "proxy_buffering off; proxy_buffer_size 64k; proxy_buffers 8 64k; "
    "proxy_request_buffering off; client_body_buffer_size 256k;"
)
"""For large bodies and events: everybody passes them on as they come."""
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
  {streaming}
frontend front
  bind 127.0.0.1:{port} backlog 4096
  default_backend back
backend back
  server one {upstream}
"""


def nginx_backend(stage: Stage) -> Server:
    """A constant answer to everything, and ``/files/tensor`` (600 KB), ``/files/large`` (200 MB, a sparse file)."""
    port = free_port()
    folder = stage.folder / "backend"
    files = folder / "files"
    files.mkdir(parents=True)
    (files / "tensor").write_bytes(b"\1\2\3\4" * (TENSOR_BYTES // 4))
    with (files / "large").open("wb") as large:
        large.truncate(200_000_000)
    command = nginx_command(stage, folder, _BACKEND.format(port=port, folder=folder))
    return stage.start("direct", stage.bench.machine.load_core, command, f"127.0.0.1:{port}")


def origin(stage: Stage) -> Server:
    """Our own backend (``benchmarks/macro/origin.py``)."""
    address = f"127.0.0.1:{free_port()}"
    return stage.module("direct", stage.bench.machine.load_core, ["benchmarks.macro.origin", address], address)


def nginx_command(stage: Stage, folder: Path, http: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    config = folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=folder, http=http))
    return [stage.bench.tools["nginx"], "-c", str(config), "-p", str(folder), "-e", str(folder / "error.log")]


def proxies(stage: Stage, upstream: str, *, streaming: bool = False, only: Sequence[str] = ()) -> list[Server]:
    """nginx first, then every peer that is there, then queue_proxy; ``only``: these of them."""
    core = stage.bench.machine.proxy_core
    found = []
    for name in ("nginx", "haproxy", "go", *stage.bench.peers):
        label, _, command = name.partition("=")
        if (only and label not in only) or label in stage.bench.absent:
            continue
        port = free_port()
        address = f"127.0.0.1:{port}"
        environment = {}
        if label == "nginx":
            config = _PROXY.format(port=port, upstream=upstream, streaming=_STREAMING if streaming else "")
            words = nginx_command(stage, stage.folder / "nginx", config)
        elif label == "haproxy":
            file = stage.folder / "haproxy.cfg"
            file.write_text(
                _HAPROXY.format(port=port, upstream=upstream, streaming="option http-no-delay" if streaming else "")
            )
            words = [stage.bench.tools["haproxy"], "-q", "-db", "-f", str(file)]
        elif label == "go":
            words = [stage.bench.tools["go"], address, upstream]
            environment = {"GOMAXPROCS": "1"}
        else:
            filled = {"{port}": str(port), "{upstream}": upstream, "{upstream_port}": upstream.rpartition(":")[2]}
            for mark, value in filled.items():
                command = command.replace(mark, value)
            words = shlex.split(command)
        found.append(stage.start(label, core, words, address, environment=environment))
    if not only or "queue_proxy" in only:
        found.append(queue_proxy(stage, upstream))
    return found


def null_replica(stage: Stage) -> Server:
    """A replica that grants slots and answers at once (``benchmarks/macro/replica.py``): the gateway is the limit."""
    address = f"127.0.0.1:{free_port()}"
    words = ["benchmarks.macro.replica", address, str(NULL_SLOTS)]
    return stage.module("replica", stage.bench.machine.load_core, words, address)


def relay(stage: Stage, upstream: str) -> Server:
    """The engine without an application: the floor under every real one."""
    address = f"127.0.0.1:{free_port()}"
    module = "benchmarks.macro.relay"
    return stage.module("relay", stage.bench.machine.proxy_core, [module, address, upstream], address)


def queue_proxy(
    stage: Stage,
    upstream: str,
    *,
    limit: int = LIMIT,
    name: str = "queue_proxy",
    core: str | None = None,
    local: bool = False,
) -> Server:
    """All features on, configured by Knative's variables where there is one; ``NAME.sock`` in the stage's folder is its
    admin socket. ``local``: it listens on a unix socket for its gateway alone, as with the local backend."""
    port = free_port()
    token = stage.folder / "token"
    token.write_text(TOKEN)
    environment = {
        "QUEUE_SERVING_PORT": str(port),
        "CONTAINER_CONCURRENCY": str(limit),
        "SERVING_REVISION": f"{FUNCTION}-00001",
        "TIDEGATE_FUNCTION": FUNCTION,
        "TIDEGATE_GROUP": "cpu",
        "TIDEGATE_REPLICA": name,
        "TIDEGATE_UPSTREAM": upstream,
        "TIDEGATE_TOKEN_FILE": str(token),
        "TIDEGATE_ADMIN": f"unix:{stage.folder}/{name}.sock",
    }
    core = core if core is not None else stage.bench.machine.proxy_core
    if local:
        listener = stage.unix_listener(f"{name}.listen")
        environment["TIDEGATE_LISTEN_FD"] = str(listener.fileno())
        address = f"unix:{listener.getsockname()}"
        words = ["tidegate.queue_proxy.main"]
        return stage.module(name, core, words, address, fds=(listener.fileno(),), environment=environment)
    server = stage.module(name, core, ["tidegate.queue_proxy.main"], f"127.0.0.1:{port}", environment=environment)
    answered(server.address, f"/v2/models/{FUNCTION}/infer")
    return server


def route(name: str, replicas: Sequence[Server]) -> FunctionRoute:
    """A function with one revision on these queue_proxies."""
    group = GroupRoute(
        accelerator="cpu", weight=1.0, replicas=tuple(ReplicaRoute(id=r.name, address=r.address) for r in replicas)
    )
    return FunctionRoute(
        name=name,
        models=(name,),
        protocol="v2",
        timeout_s=30.0,
        latency_s=1.0,
        queue_requests=10_000,
        queue_bytes=1 << 28,
        max_wait_s=30.0,
        batch_header="tidegate-batch-size",
        bytes_per_item=None,
        overhead_bytes=0.0,
        max_batch=1024,
        revisions=(RevisionRoute(id=f"{name}-00001", percent=100.0, groups=(group,)),),
    )


def gateway(
    stage: Stage,
    replicas: Sequence[Server],
    *,
    name: str = "gateway",
    workers: int = 1,
    cores: Sequence[str] = (),
    others: Sequence[FunctionRoute] = (),
    more: Mapping[str, object] | None = None,
    payload: PayloadRules | None = None,
) -> Server:
    """Gateway workers that share one port, in front of these queue_proxies; ready when they answer.

    ``NAME-N.sock`` in the stage's folder is the admin socket of worker N; ``others``: more functions in the table;
    ``more``: entries of the workers' configuration (``gateway/config.py``); ``payload``: which payloads are sampled.
    """
    own = replace(route(FUNCTION, replicas), payload=payload)
    table = RouteTable(epoch=1, number=1, workers=workers, default=FUNCTION, functions=(own, *others))
    (stage.folder / f"{name}.json").write_bytes(encode(table))
    whole = Server(name, "")
    port = 0
    for index in range(workers):
        listener = stage.listener(port)
        port = listener.getsockname()[1]
        whole.address = f"127.0.0.1:{port}"
        admin = f"unix:{stage.folder}/{name}-{index}.sock"
        config = stage.folder / f"{name}-{index}.json"
        config.write_text(
            json.dumps(
                {
                    "worker": f"g{index}",
                    "listen_fd": listener.fileno(),
                    "admin": admin,
                    "table_file": str(stage.folder / f"{name}.json"),
                    "token": TOKEN,
                    "workers": workers,
                    **(more or {}),
                }
            )
        )
        core = cores[index] if cores else stage.bench.machine.proxy_core
        server = stage.module(
            name, core, ["tidegate.gateway.main", "--config", str(config)], admin, fds=(listener.fileno(),)
        )
        whole.processes += server.processes
    for _ in range(8 * workers):
        answered(whole.address, f"/v2/models/{FUNCTION}/infer")
    return whole


def both(*hops: Server) -> Server:
    """Several hops as one server: the first is asked, the CPU time of all counts."""
    processes = [process for hop in hops for process in hop.processes]
    return Server("+".join(hop.name for hop in hops), hops[0].address, processes)

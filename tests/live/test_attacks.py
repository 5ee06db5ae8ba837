"""What a hostile client may do to a deployment from outside, with raw sockets: each attack against real processes."""

import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.deadline import Patience
from tests.support.live.certificates import contexts, make_certificate
from tests.support.live.deployment import Deployment, deployment, places
from tests.support.live.tenants import ACME, tenants_file

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

SECRET = "db-password-4711"
CRASHY = f"""
class Crashy:
    inputs = {{"x": ("FP32", [-1])}}
    outputs = {{"y": ("FP32", [-1])}}
    def load(self):
        print("connecting with {SECRET}", flush=True)
        raise RuntimeError("no database {SECRET}")
    def predict(self, inputs):
        return inputs
"""


def deploy(place: Deployment, name: str, handler: str, **spec: Any) -> None:
    """Deploys a class of a file in the folder by a manifest."""
    manifest = place.folder / f"{name}.yaml"
    head = {"apiVersion": "tidegate.dev/v1alpha1", "kind": "Function"}
    annotations = {"tidegate.dev/min-scale": "1", "tidegate.dev/max-scale": "1"} | spec.pop("annotations", {})
    metadata = {"name": name, "annotations": annotations}
    manifest.write_text(json.dumps({**head, "metadata": metadata, "spec": {"server": {"handler": handler}, **spec}}))
    place.cli("deploy", "--no-wait", str(manifest))


@contextmanager
def tenants(folder: Path, *flags: str) -> Iterator[Deployment]:
    with deployment(folder, "--gateway-workers", "1", "--tenants-file", str(tenants_file(folder)), *flags) as place:
        place.up()
        yield place


@contextmanager
def few_descriptors(most: int) -> Iterator[None]:
    """Processes that are started meanwhile may have so many descriptors, of which none can have more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)


def is_closed(sock: socket.socket, within_s: float) -> bool:
    """Whether the other side ends a connection in time."""
    sock.settimeout(within_s)
    try:
        while sock.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def get(place: Deployment, path: str, **headers: str) -> httpx.Response:
    return httpx.get(place.gateway + path, headers=headers, timeout=20.0, trust_env=False, verify=False)


def test_health_of_a_protected_function_shows_nothing_of_its_server(tmp_path: Path) -> None:
    (tmp_path / "crashy.py").write_text(CRASHY)
    with tenants(tmp_path) as place:
        deploy(place, "crashy", "crashy.py:Crashy", access={"api-keys": True})
        place.until(lambda: SECRET in place.cli("status", "crashy").stdout, 60.0, "the failure")
        host = {"host": "crashy.localhost"}

        def failed(path: str) -> httpx.Response | None:
            shown = get(place, path, **host)
            assert SECRET not in shown.text
            return shown if shown.status_code == 503 else None

        for path in ("/v2/health/ready", "/v2/models/crashy/ready"):  # Between two attempts to start it may be ready.
            shown = place.until(partial(failed, path), 30.0, "the gateway to know it").json()
            assert (shown["ready"], shown["error"]) == (False, "it cannot be served now; its operator can see why")
        listed = get(place, "/v1/models").json()["data"]
        assert [entry["id"] for entry in listed] == ["crashy"]
        assert not {"status", "ready"} & listed[0].keys(), "names alone"
        for name in ("v2-crashy.localhost", "crashy.localhost"):
            tag = {"tidegate-tag": "v2"} if name == "crashy.localhost" else {}
            assert get(place, "/x", host=name, **tag).status_code == 401, "whether a tag exists is for its callers"
        answered = get(place, "/x", host="v2-crashy.localhost", authorization=f"Bearer {ACME}")
        assert answered.status_code == 404


@pytest.mark.early
def test_silent_connections_to_the_api_lock_none_out(tmp_path: Path) -> None:
    with deployment(tmp_path, "--gateway-workers", "1") as place:
        with few_descriptors(256):
            holder = place.up(as_program=True)
        assert holder.api is not None
        address = address_of(holder.api)
        slow = socket.create_connection(address)
        slow.sendall(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n")
        silent = [socket.create_connection(address) for _ in range(300)]
        try:
            patience = Patience(30.0)
            place.deploy(place.handler(), "--min-scale", "1")
            place.until(lambda: place.status("echo")["ready"] > 0, 30.0, "a replica")
            assert not patience.is_over
            assert descriptors(holder.pid) < 200, "the rest is kept for replicas and workers"
            assert "the API has 64 connections, its limit" in place.log.read_text()
            assert is_closed(silent[-1], 15.0), "without a request it has the time of a head"
            assert is_closed(slow, 15.0), "a head that never ends"
        finally:
            for sock in (slow, *silent):
                sock.close()


def test_the_api_answers_to_its_own_names_alone(tmp_path: Path) -> None:
    with deployment(tmp_path, "--gateway-workers", "1") as place:
        url = f"{place.up().api}/healthz"
        assert httpx.get(url, headers={"host": "localhost:80"}, trust_env=False, verify=False).status_code == 200
        for host in ("localhost.evil.example", "[::1].evil.example", "localhost:80.evil.example", "[::1"):
            assert httpx.get(url, headers={"host": host}, trust_env=False, verify=False).status_code == 403, host


def test_the_front_door_closes_what_is_too_much_and_says_so(tmp_path: Path) -> None:
    flags = ("--limits-connections", "64", "--limits-connections-per-client", "40", "--limits-head-timeout", "2s")
    with deployment(tmp_path, "--gateway-workers", "1", *flags) as place:
        holder = place.up()
        address = address_of(place.gateway)
        with socket.create_connection(address, source_address=("127.0.0.2", 0)) as known:
            known.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
            assert known.recv(65536).startswith(b"HTTP/1.1 200")
            many = [socket.create_connection(address) for _ in range(100)]
            patience = Patience(10.0)
            with socket.create_connection(address, source_address=("127.0.0.3", 0)) as other:
                other.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
                assert other.recv(65536).startswith(b"HTTP/1.1 200"), "one address does not take all places"
            more = [socket.create_connection(address, source_address=("127.0.0.4", 0)) for _ in range(40)]
            known.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n")
            assert known.recv(65536).startswith(b"HTTP/1.1 200")
            assert sum(is_closed(sock, 0.02) for sock in many) >= 60
            assert all(is_closed(sock, 5.0) for sock in (*many, *more))
            assert not patience.is_over, "a silent connection has the time of a head"
        for sock in (*many, *more):
            sock.close()
        log = place.state.logs / "gateway-g0.log"
        place.until(lambda: "client connections closed at once" in log.read_text(), 5.0, "a line in the log")
        token = {"authorization": f"Bearer {(place.state.root / 'token').read_text().strip()}"}

        def shed() -> set[str]:
            lines = httpx.get(f"{holder.api}/metrics", headers=token, trust_env=False, verify=False).text.splitlines()
            return {line.split()[0] for line in lines if "_shed_connections_total{" in line and not line.endswith(" 0")}

        place.until(lambda: len(shed()) == 2, 10.0, "both limits in the metric")


def test_silent_handshakes_are_counted_and_end(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    flags = ("--gateway-tls-cert", str(certificate), "--gateway-tls-key", str(key), "--limits-connections", "32")
    with deployment(tmp_path, "--gateway-workers", "1", *flags) as place:
        place.up()
        address = address_of(place.gateway.replace("https", "http"))
        silent = [socket.create_connection(address) for _ in range(200)]
        worker = place.living()["gateway-g0"]
        place.until(lambda: descriptors(worker) < 80, 5.0, "the surplus to be closed")
        assert sum(not is_closed(sock, 0.02) for sock in silent) <= 16
        assert all(is_closed(sock, 15.0) for sock in silent), "a handshake has ten seconds"
        for sock in silent:
            sock.close()
        answer = httpx.get(f"{place.gateway}/v2/health/live", verify=contexts(certificate, key)[1], trust_env=False)
        assert answer.status_code == 200


def test_bodies_that_drip_start_no_replica_and_end(tmp_path: Path) -> None:
    """24 connections, each with one byte of a body: they were 24 requests, which filled four replicas."""
    flags = ("--limits-body-idle-timeout", "6s", *places(tmp_path, 4))
    with deployment(tmp_path, "--gateway-workers", "1", *flags) as place:
        place.up()
        place.deploy(place.handler(), "--min-scale", "1", "--max-scale", "4", "--wait")
        fields = b"host: x\r\ntidegate-batch-size: 1\r\ncontent-length: 1000\r\n"
        head = b"POST /v2/models/echo/infer HTTP/1.1\r\n%b\r\n{" % fields
        slow = [socket.create_connection(address_of(place.gateway)) for _ in range(24)]
        for sock in slow:
            sock.sendall(head)
        begun, most = time.monotonic(), 0
        while time.monotonic() - begun < 5.0:
            assert place.infer().status_code == 200, "the only slot is free"
            most = max(most, place.replicas())
        assert most == 1
        for sock in slow:
            sock.settimeout(30.0)
            answer = sock.recv(65536)
            assert answer.startswith(b"HTTP/1.1 408 "), answer
            assert b"limits.body-min-rate 500 bytes/s" in answer
            sock.close()

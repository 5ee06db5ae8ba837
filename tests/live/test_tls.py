"""A front door with a certificate, as curl, httpx, browsers' WebSockets and our own commands meet it."""

import json
import os
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from tests.live.test_hot_restart import deploy_streams, workers
from tests.support.live.certificates import make_certificate
from tests.support.live.deployment import REQUEST, Deployment, deployment
from tests.support.live.strict_clients import Hammer

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

INFER = "/v2/models/echo/infer"
LARGE = os.urandom(600_000)


def tls_flags(folder: Path) -> tuple[str, ...]:
    certificate, key = make_certificate(folder)
    return ("--gateway-tls-cert", str(certificate), "--gateway-tls-key", str(key), "--gateway-workers", "1")


def served(address: str) -> bytes:
    """The certificate that a new connection gets, as DER."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((host, int(port)), timeout=10.0) as line,
        context.wrap_socket(line, server_hostname="localhost") as tls,
    ):
        found = tls.getpeercert(binary_form=True)
    assert found is not None
    return found


def der(file: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(file.read_text())


def plain(address: str, data: bytes) -> bytes:
    """What comes back for bytes that are no TLS; the connection must end."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10.0) as line:
        line.sendall(data)
        answer = b""
        try:
            while more := line.recv(4096):
                answer += more
        except ConnectionResetError:
            return answer
    return answer


def address_of(world: Deployment) -> str:
    scheme, _, address = world.gateway.partition("://")
    assert scheme == "https"
    return address


def test_every_client_is_served_over_tls(tmp_path: Path) -> None:
    with deployment(tmp_path, *tls_flags(tmp_path)) as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        deploy_streams(world)
        address, ca = address_of(world), str(tmp_path / "localhost.crt")

        context = ssl.create_default_context(cafile=ca)
        with connect(f"wss://{address}/functions/streams/socket", ssl=context) as line:
            line.send("hello")
            assert line.recv(timeout=10) == "hello"
        with httpx.Client(verify=context, trust_env=False, timeout=30) as client:
            answer = client.post(f"{world.gateway}/functions/streams/echo", content=LARGE)
            assert answer.content == LARGE, "600 KB up and down"
            assert client.post(f"{world.gateway}{INFER}", json=REQUEST).status_code == 200

        assert world.ask("invoke", "echo", "--data", json.dumps(REQUEST))["status"] == 200
        assert world.ask("invoke", "echo", "--cacert", ca, "--data", json.dumps(REQUEST))["status"] == 200
        assert world.ask("invoke", "echo", "--v2", "--input", "x=[[1.0, 2.0]]")["y"] == [[2.0, 4.0]]
        with world.sdk() as sdk:
            assert sdk.invoke("echo", REQUEST)["outputs"][0]["data"] == [2.0, 4.0]
        status = world.status()
        assert status["gateway"] == world.gateway
        assert status["functions"][0]["path_url"].startswith("https://")
        assert {each["check"]: each["verdict"] for each in world.ask("doctor")}["certificate"] == "note", (
            "two days left"
        )


@pytest.mark.needs(tool="clients")
def test_curl_is_offered_http2_and_keeps_its_connection(tmp_path: Path) -> None:
    with deployment(tmp_path, *tls_flags(tmp_path)) as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        address, ca = address_of(world), str(tmp_path / "localhost.crt")
        curl = ["curl", "-sS", "--cacert", ca, "-w", "\n%{http_version} %{num_connects}\n"]
        url = f"https://localhost:{address.rpartition(':')[2]}{INFER}"
        resolve = ["--resolve", f"{url.split('/')[2]}:{address.rpartition(':')[0]}"]
        done = subprocess.run(
            [*curl, *resolve, url, url, "-d", json.dumps(REQUEST)],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        assert done.stdout.count("[2.0,4.0]") == 2 or done.stdout.count("[2.0, 4.0]") == 2
        assert done.stdout.split("\n")[1] == "2 1", "curl is offered HTTP/2 and takes it"
        assert done.stdout.split("\n")[3] == "2 0", "the connection is kept"


def test_others_than_the_certified_are_not_trusted(tmp_path: Path) -> None:
    other, _ = make_certificate(tmp_path, "other")
    with deployment(tmp_path, *tls_flags(tmp_path)) as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        refused = world.cli("invoke", "echo", "--cacert", str(other), "--data", json.dumps(REQUEST), code=1)
        assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr
        (tmp_path / "localhost.crt").write_text(other.read_text())  # not what is served: its key is another
        refused = world.cli("invoke", "echo", "--data", json.dumps(REQUEST), code=1)
        assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr


def test_a_new_certificate_is_served_without_a_restart_and_without_a_failed_request(tmp_path: Path) -> None:
    with deployment(tmp_path, *tls_flags(tmp_path)) as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--concurrency", "4", "--wait")
        address = address_of(world)
        first, (worker,) = der(tmp_path / "localhost.crt"), workers(world)
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust.check_hostname = False
        trust.verify_mode = ssl.CERT_NONE
        body = json.dumps(REQUEST).encode()
        with Hammer(world.gateway, body, path=INFER, fresh=2, kept=2, tls=trust) as hammer:
            world.until(lambda: hammer.answered > 50, 20.0, "some answers")
            assert served(address) == first
            renew(tmp_path, key_type="rsa:2048")  # of another type: the old one must not be offered beside it
            second = der(tmp_path / "localhost.crt")
            world.until(lambda: served(address) == second, 15.0, "the new certificate by itself")
            renew(tmp_path)
            third = der(tmp_path / "localhost.crt")
            report = world.ask("reload")
            assert (report["reloaded"], report["faults"], report["needs_up"]) == (["g0"], {}, [])
            assert served(address) == third
            renew(tmp_path)
            os.kill(worker["pid"], signal.SIGHUP)
            fourth = der(tmp_path / "localhost.crt")
            world.until(lambda: served(address) == fourth, 5.0, "the new certificate after SIGHUP")
            before = hammer.answered
            world.until(lambda: hammer.answered > before + 50, 20.0, "more answers")
        assert not hammer.failures
        assert hammer.connections == 2, "the kept connections went on"
        assert [each["pid"] for each in workers(world)] == [worker["pid"]]


def test_a_broken_pair_keeps_the_old_one_and_says_so(tmp_path: Path) -> None:
    with deployment(tmp_path, *tls_flags(tmp_path)) as world:
        world.up()
        address, file = address_of(world), tmp_path / "localhost.crt"
        good = file.read_text()
        first = served(address)
        file.write_text("-----BEGIN CERTIFICATE-----\nbroken\n")
        result = world.cli("reload", code=1)
        assert "the old one stays" in result.stderr
        world.until(lambda: any("the old one stays" in each for each in world.status()["faults"]), 10.0, "the fault")
        assert served(address) == first
        file.write_text(good)
        world.until(lambda: world.status()["faults"] == [], 15.0, "the fault to be over")
        assert served(address) == first


def test_what_is_no_tls_is_closed_without_a_word(tmp_path: Path) -> None:
    with deployment(tmp_path, *tls_flags(tmp_path)) as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        address = address_of(world)
        assert b"HTTP/1.1 2" not in plain(address, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        plain(address, os.urandom(5000))
        plain(address, b"\x16\x03\x01\x00\xa5" + os.urandom(0xA5))
        plain(address, b"\x00" * 10)
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port))).close()
        assert world.ask("invoke", "echo", "--data", json.dumps(REQUEST))["status"] == 200
        log = (world.state.logs / "gateway-g0.log").read_text()
        assert "Traceback" not in log
        assert "SSL" not in log


def test_a_hot_restart_over_tls_loses_nothing(tmp_path: Path) -> None:
    with deployment(tmp_path, *tls_flags(tmp_path)) as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--concurrency", "4", "--wait")
        trust = ssl.create_default_context(cafile=str(tmp_path / "localhost.crt"))
        with Hammer(world.gateway, json.dumps(REQUEST).encode(), path=INFER, fresh=2, kept=2, tls=trust) as hammer:
            for _ in range(2):
                world.ask("restart")
                before = hammer.answered
                world.until(lambda before=before: hammer.answered > before + 50, 20.0, "more answers")  # type: ignore[misc]
        assert not hammer.failures


def test_all_that_is_wrong_with_the_files_is_reported_at_once(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    _, other_key = make_certificate(tmp_path, "other")
    with deployment(tmp_path) as world:
        flags = (*world.flags, "--gateway-tls-cert")
        wrong = world.cli("up", *flags, "nowhere.crt", "--gateway-tls-key", str(certificate), code=2)
        assert "nowhere.crt (No such file or directory)" in wrong.stderr
        assert "a private key in PEM" in wrong.stderr
        wrong = world.cli("up", *flags, str(certificate), "--gateway-tls-key", str(other_key), code=2)
        assert "the key of the certificate" in wrong.stderr
        wrong = world.cli("up", *flags, str(certificate), code=2)
        assert "both or none" in wrong.stderr
    assert key.exists()


def test_the_private_key_is_nowhere_in_the_state_directory(tmp_path: Path) -> None:
    with deployment(tmp_path, *tls_flags(tmp_path)) as world:
        world.up()
        secret = (tmp_path / "localhost.key").read_text().splitlines()[1]
        for file in world.state.root.rglob("*"):
            if file.is_file():
                assert secret.encode() not in file.read_bytes(), file
                assert file.stat().st_mode & 0o077 == 0, f"{file} is readable by others"


def renew(folder: Path, key_type: str = "P-256") -> None:
    """Replaces the pair by a new one, each file at once."""
    fresh = folder / f"renewed-{time.monotonic_ns()}"
    fresh.mkdir()
    make_certificate(fresh, key_type=key_type)
    for name in ("localhost.key", "localhost.crt"):
        (fresh / name).replace(folder / name)

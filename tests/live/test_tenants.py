"""Tenants in a real deployment: keys and tokens with real clients, quotas over four gateway workers, and no secret in
anything that is written or shown."""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.deadline import Patience
from tests.support.live.certificates import contexts, make_certificate
from tests.support.live.deployment import REQUEST, Deployment, deployment
from tests.support.live.tenants import ACME, OTHER, closed_function, in_one_minute, infer_load, tenants_file
from tests.support.live.tokens import Issuer, claims

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]


def ask(place: Deployment, **headers: str) -> httpx.Response:
    url = f"{place.gateway}/v2/models/echo/infer"
    return httpx.post(url, json=REQUEST, headers=headers, timeout=20.0, trust_env=False, verify=False)


def test_keys_and_quotas_from_the_command_line(tmp_path: Path) -> None:
    """As a user goes about it: a key, a file, a function; calls with and without; a changed file; what was used."""
    words = (sys.executable, "-m", "tidegate.control.cli", "tenant-key", "--json")
    made = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    file = tmp_path / "tenants.yaml"
    file.write_text(f"tenants: [{{name: acme, keys: ['{made['sha256']}'], quotas: {{requests-per-minute: 1000}}}}]\n")
    with deployment(tmp_path, "--gateway-workers", "2", "--tenants-file", str(file)) as place:
        place.up()
        closed_function(place, {"api-keys": True})
        denied = ask(place)
        assert (denied.status_code, denied.json()["code"]) == (401, "unauthenticated")
        assert denied.headers["www-authenticate"] == 'Bearer realm="tidegate"'
        assert ask(place, authorization="Bearer tg-wrong").status_code == 401
        assert [ask(place, **{"x-api-key": made["key"]}).status_code for _ in range(3)] == [200] * 3
        place.until(lambda: place.ask("tenants")[0]["requests"] == 3, 10.0, "the workers' counts")
        assert "acme" in place.cli("tenants").stdout

        file.write_text("tenants: [{name: acme, keys: [tg-plain-text-key-000]}, {name: x, weight: none}]\n")
        result = place.cli("reload", code=2)
        assert "tenants[0].keys[0]" in result.stderr and "tenants[1].weight" in result.stderr
        assert "tg-plain-text-key-000" not in result.stdout + result.stderr
        assert ask(place, **{"x-api-key": made["key"]}).status_code == 200, "a file with a fault changes nothing"

        file.write_text("tenants: []\n")
        result = place.cli("reload")  # the process looks at the file by itself too, and may have been first
        assert "tenant acme: gone" in result.stderr + place.log.read_text()
        place.until(lambda: ask(place, **{"x-api-key": made["key"]}).status_code == 401, 5.0, "the key to open nothing")


# --- tokens ----------------------------------------------------------------------------------------------------------


class Endpoint:
    """An issuer's HTTPS endpoint of keys."""

    def __init__(self) -> None:
        self.shown: dict[str, Any] | None = None
        self.asked = 0


@contextmanager
def issuing(folder: Path) -> Iterator[tuple[Endpoint, str, Path]]:
    """The endpoint, its URL, and its certificate."""
    certificate, key = make_certificate(folder)
    endpoint = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the library's name
            endpoint.asked += 1
            body = b"" if endpoint.shown is None else json.dumps(endpoint.shown).encode()
            self.send_response(200 if body else 503)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.socket = contexts(certificate, key)[0].wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield endpoint, f"https://localhost:{server.server_address[1]}/keys", certificate
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.mark.early
def test_tokens_of_an_issuer_over_https_with_keys_that_roll_over(tmp_path: Path, monkeypatch: Any) -> None:
    first, second = Issuer().rsa("one"), Issuer().ec("two")
    with issuing(tmp_path) as (endpoint, url, certificate):
        endpoint.shown = first.jwks()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        flags = ("--gateway-workers", "2", "--tenants-file", str(tenants_file(tmp_path)))
        with deployment(tmp_path, *flags) as place:
            place.up()
            rule = {"issuer": "https://id.example", "audience": "tidegate", "jwks": url, "tenant-claim": "tenant"}
            closed_function(place, {"jwt": rule})

            def code(token: str) -> int:
                return ask(place, authorization=f"Bearer {token}").status_code

            token = first.sign("one", claims(time.time()))
            place.until(lambda: code(token) == 200, 10.0, "the issuer's keys")
            assert code(first.sign("one", claims(time.time(), tenant="unknown"))) == 403
            assert code(first.sign("one", claims(time.time() - 1000))) == 401
            assert code(Issuer().rsa("one").sign("one", claims(time.time()))) == 401
            assert ask(place, authorization=f"Bearer {ACME}").status_code == 401, "keys are not taken here"

            endpoint.shown = {"keys": [*first.jwks()["keys"], *second.jwks()["keys"]]}
            rolled = second.sign("two", claims(time.time() + 60))
            place.until(lambda: code(rolled) == 200, 20.0, "the new key to be read")

            endpoint.shown = None
            asked = endpoint.asked
            unknown = Issuer().ec("three").sign("three", claims(time.time()))
            assert code(unknown) == 401
            place.until(lambda: endpoint.asked > asked, 20.0, "the keys to be asked for")
            place.until(lambda: "the last ones are used" in str(place.status()["faults"]), 10.0, "a fault")
            assert code(rolled) == 200, "an endpoint that is away locks no client out"
            place.kill()
            place.up()
            assert code(second.sign("two", claims(time.time()))) == 200, "nor does a restart meanwhile"


# --- quotas ----------------------------------------------------------------------------------------------------------


def test_a_quota_over_four_workers_is_met_within_two_percent(tmp_path: Path) -> None:
    """One window of a minute, offered three times its quota on many connections."""
    quota = 200
    file = tenants_file(tmp_path, f"{{requests-per-minute: {quota}}}")
    with deployment(tmp_path, "--gateway-workers", "4", "--tenants-file", str(file)) as place:
        place.up()
        closed_function(place, {"api-keys": True})

        async def run() -> Counter[int]:
            (codes,) = await in_one_minute([(f"{place.gateway}/v2/models/echo/infer", 75.0)], 8.0)
            return codes

        codes = asyncio.run(run())
        error = codes[200] / quota - 1
        sys.stdout.write(f"\nquota {quota}/min over 4 workers: {dict(codes)}, {error:+.2%}\n")
        assert codes.keys() == {200, 429}, "nothing else is answered"
        assert -0.02 <= error <= 0


def test_requests_at_the_same_time_are_bounded_over_all_workers(tmp_path: Path) -> None:
    file = tenants_file(tmp_path, "{concurrency: 6}")
    with deployment(tmp_path, "--gateway-workers", "4", "--tenants-file", str(file)) as place:
        place.up()
        are_decided = tmp_path / "decided"
        are_decided.touch()
        closed_function(place, {"api-keys": True}, work_until=are_decided, concurrency=20)
        ask(place, **{"x-api-key": ACME})

        async def run() -> Counter[int]:
            """The admitted ones run until all others have been refused."""
            are_decided.unlink()

            async def one() -> int:
                async with httpx.AsyncClient(trust_env=False, verify=False, timeout=20.0) as client:
                    url = f"{place.gateway}/v2/models/echo/infer"
                    return (await client.post(url, json=REQUEST, headers={"x-api-key": ACME})).status_code

            patience = Patience(5.0)
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(one()) for _ in range(30)]
                running = asked
                while len(running) > 6 and not patience.is_over:
                    _, still = await asyncio.wait(running, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
                    running = list(still)
                are_decided.touch()
            return Counter(task.result() for task in asked)

        admitted: list[int] = []
        while 6 not in admitted and len(admitted) < 5:  # places that another worker holds are lent after a moment
            time.sleep(1.0)  # for those that have ended to be reported
            codes = asyncio.run(run())
            sys.stdout.write(f"\n30 at once, 6 allowed: {dict(codes)}\n")
            assert codes[200] + codes[429] == 30
            admitted.append(codes[200])
        assert max(admitted) == 6, "never more, and all places are given out"


def test_without_the_control_process_each_worker_goes_by_its_part(tmp_path: Path) -> None:
    """``kill -9`` of the process that holds the pool: requests are admitted or asked to come back, nothing else; never
    more than the quota; shared again when it is back."""
    quota, rate = 12, 60.0
    file = tenants_file(tmp_path, f"{{requests-per-second: {quota}}}")
    with deployment(tmp_path, "--gateway-workers", "2", "--tenants-file", str(file)) as place:
        place.up()
        closed_function(place, {"api-keys": True})
        assert ask(place, **{"x-api-key": ACME}).status_code == 200
        url = f"{place.gateway}/v2/models/echo/infer"
        place.kill()
        alone = asyncio.run(infer_load(url, ACME, seconds=5.0, rate=rate))
        codes = sum(alone.values(), Counter[int]())
        assert codes.keys() == {200, 429}, codes
        assert codes[200] <= quota * (len(alone) + 1), "an answer may be late, a window's quota is not larger for that"
        place.up()
        again = asyncio.run(infer_load(url, ACME, seconds=3.0, rate=rate))
        assert sum(again.values(), Counter[int]()).keys() == {200, 429}
        assert place.status()["faults"] == []


# --- nothing is disclosed --------------------------------------------------------------------------------------------


def test_no_secret_is_in_anything_that_is_written_or_shown(tmp_path: Path) -> None:
    """Keys, tokens and payloads of requests of every outcome; then every file of the state directory, metrics, status,
    decisions, recordings, answers and the process's own output are searched for them."""
    issuer = Issuer().ec("one")
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps(issuer.jwks()))
    file = tenants_file(tmp_path, "{requests-per-minute: 8}")
    payload = "payload-of-a-tenant-1234567"
    token = issuer.sign("one", claims(time.time()))
    expired = issuer.sign("one", claims(time.time() - 1000))
    secrets = [ACME, OTHER, "tg-wrong-key-000000", payload, *token.split("."), *expired.split(".")[1:]]
    flags = (
        "--gateway-workers",
        "2",
        "--tenants-file",
        str(file),
        "--log-access-sampling",
        "1",
        "--log-level",
        "debug",
    )
    with deployment(tmp_path, *flags) as place:
        place.up()
        rule = {"issuer": "https://id.example", "audience": "tidegate", "jwks": str(keys), "tenant-claim": "tenant"}
        closed_function(place, {"api-keys": True, "jwt": rule})
        url = f"{place.gateway}/v2/models/echo/infer"
        answers = []
        body = {**REQUEST, "parameters": {"note": payload}}
        with httpx.Client(trust_env=False, verify=False, timeout=20.0) as client:
            for given in (ACME, OTHER, "tg-wrong-key-000000", token, expired, "eyJ.eyJ.") * 6:
                for field in ("authorization", "x-api-key"):
                    value = f"Bearer {given}" if field == "authorization" else given
                    answers.append(client.post(url, json=body, headers={field: value}))
        assert {answer.status_code for answer in answers} >= {200, 401, 403, 429}
        shown = [answer.text + str(answer.headers) for answer in answers]
        time.sleep(2.5)
        api = {"authorization": f"Bearer {place.state.token}"}
        holder = place.state.holder()
        assert holder is not None and holder.api is not None
        with httpx.Client(base_url=holder.api, headers=api, trust_env=False, verify=False, timeout=20.0) as client:
            of_echo = (f"functions/echo{part}" for part in ("", "/explain", "/decisions", "/recording", "/series"))
            paths = ("status", "functions", "tenants", *of_echo)
            shown += [client.get(f"/api/v1/{path}").text for path in paths]
            shown.append(client.get("/metrics").text)
        assert 'tidegate_gateway_tenant_requests_total{tenant="acme"}' in shown[-1]
        shown += [place.cli("status").stdout, place.cli("explain", "echo", "-v").stdout, place.cli("tenants").stdout]
        assert place.stop() == 0
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file() and path.name != "token"]
    written = {str(path): path.read_bytes() for path in [*files, place.log]}
    assert any(b"/v2/models/echo/infer" in data for data in written.values()), "there is an access log"
    for secret in secrets:
        assert len(secret) > 8
        assert not [path for path, data in written.items() if secret.encode() in data]
        assert not [text[:200] for text in shown if secret in text]

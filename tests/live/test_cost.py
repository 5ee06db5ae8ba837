"""Costs of a real deployment: they equal what two tenants' clients counted and what the replica's life cost, over a
control process that is killed, a gateway worker that dies and a function that is deleted."""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live.deployment import Deployment, deployment
from tests.support.live.tenants import ACME, SECOND, tenants_file
from tidegate.deploy.local.records import RecordStore
from tidegate.deploy.local.recovery import survey

pytestmark = [pytest.mark.live, pytest.mark.early, pytest.mark.timeout(180)]

PRICE_PER_HOUR = 36.0
LONG_S, SHORT_S = 1.2, 0.8
REQUESTS = 10
"""Of each client: two of acme's with long requests, one of second's with short ones. On a busy machine each request
takes some more at its client than at the gateway; of requests of about one length that changes the shares little."""

SERVER = """
import sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if "work=" in self.path:
            time.sleep(float(self.path.rpartition("work=")[2]))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *words):
        pass
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def deploy(place: Deployment) -> None:
    """A function that works for as long as a request says, for callers with a key."""
    (place.folder / "server.py").write_text(SERVER)
    manifest = place.folder / "function.json"
    annotations = {"tidegate.dev/min-scale": "1", "tidegate.dev/max-scale": "1"}
    spec = {
        "server": {"command": [sys.executable, "server.py", "{port}"]},
        "concurrency": 16,
        "access": {"api-keys": True},
    }
    head = {"apiVersion": "tidegate.dev/v1alpha1", "kind": "Function"}
    manifest.write_text(json.dumps({**head, "metadata": {"name": "work", "annotations": annotations}, "spec": spec}))
    place.cli("deploy", str(manifest))
    place.until(lambda: place.status("work")["ready"] > 0, 30.0, "a replica")


class Client(threading.Thread):
    """Sends requests one after the other and adds up what they took."""

    def __init__(self, url: str, key: str, work_s: float, requests: int = REQUESTS) -> None:
        super().__init__()
        self.seconds = 0.0
        self.answered = 0
        self._ask = (f"{url}/functions/work/?work={work_s}", key, requests)

    def run(self) -> None:
        url, key, requests = self._ask
        with httpx.Client(trust_env=False, verify=False, timeout=60.0, headers={"x-api-key": key}) as client:
            for _ in range(requests):
                began = time.monotonic()
                self.answered += client.get(url).is_success
                self.seconds += time.monotonic() - began


def rows(view: Any) -> dict[str, Any]:
    return {row["name"]: row for row in view["rows"]}


def born_at(place: Deployment) -> float:
    """When the replica was ordered, in Unix seconds."""
    living = survey(RecordStore(place.state.processes)).living
    (found,) = {each.replica.created_at for each in living if each.replica is not None}
    return float(found)


def test_costs_equal_the_clients_own_account_and_the_replicas_life(tmp_path: Path) -> None:
    accelerators = tmp_path / "accelerators.yaml"
    accelerators.write_text(
        f"accelerators: [{{name: cpu, kind: cpu, cores: 1, count: 1, memory: 4Gi, price-per-hour: {PRICE_PER_HOUR}}}]\n"
    )
    flags = ("--accelerators-file", str(accelerators), "--tenants-file", str(tenants_file(tmp_path)))
    with deployment(tmp_path, *flags, "--gateway-workers", "2") as place:
        place.up()
        deploy(place)
        born = born_at(place)
        clients = [
            Client(place.gateway, key, work) for key, work in ((ACME, LONG_S), (ACME, LONG_S), (SECOND, SHORT_S))
        ]
        for each in clients:
            each.start()
        place.until(lambda: clients[0].answered >= REQUESTS // 3, 60.0, "a third of the requests")
        place.kill()
        place.up()
        for each in clients:
            each.join()
        assert [each.answered for each in clients] == [REQUESTS] * 3

        def counted() -> Any:
            found = rows(place.ask("cost", "work"))
            there = [found.get(name, {"requests": 0})["requests"] for name in ("acme", "second")]
            return found if there == [2 * REQUESTS, REQUESTS] else None

        found = place.until(counted, 30.0, "the count of every request, each once")
        own = [clients[0].seconds + clients[1].seconds, clients[2].seconds]
        shares = [
            found[name]["cost"] / (found["acme"]["cost"] + found["second"]["cost"]) for name in ("acme", "second")
        ]
        assert shares == pytest.approx([each / sum(own) for each in own], rel=0.02)
        busy_s = found["acme"]["busy_s"] + found["second"]["busy_s"]
        assert busy_s == pytest.approx(max(each.seconds for each in clients[:2]), rel=0.2), "they ran side by side"

        place.end("gateway-g0")
        more = Client(place.gateway, SECOND, SHORT_S, 3)
        more.start()
        more.join()

        def total_of_second() -> bool:
            return bool(rows(place.ask("cost", "work"))["second"]["requests"] == REQUESTS + more.answered)

        place.until(total_of_second, 30.0, "what a worker that died had counted, and the rest")

        living = time.time()
        place.cli("delete", "work")
        place.until(lambda: not place.replicas("work"), 30.0, "the replica's end")
        ended = time.time()
        place.until(lambda: place.ask("cost")["total"]["idle_s"] > 0, 10.0, "the last amounts")
        total = place.ask("cost")["total"]
        assert (living - born) * 0.98 <= total["device_s"] <= (ended - born) * 1.02
        assert total["cost"] == pytest.approx(total["device_s"] * PRICE_PER_HOUR / 3600.0)
        by_tenant = place.ask("cost", "--by", "tenant")
        assert sum(row["cost"] for row in by_tenant["rows"]) == pytest.approx(total["cost"], rel=0.001)
        spread = rows(place.ask("cost", "--by", "tenant", "--spread"))
        assert set(spread) == {"acme", "second"}
        assert sum(row["cost"] for row in spread.values()) == pytest.approx(total["cost"], rel=0.001)

"""docker-compose.yml without Docker: each image is made by the lines of the Dockerfile, each service runs as it is
stated there (user, command, read-only root, volumes, health check), and they find each other by name.

Grafana and the collector are in no Debian package, so their services are not run; `tests/deploy/test_compose.py` checks
what can be read of them.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.deadline import Patience
from tests.support.live.images import ROOT, Compose, composed

pytestmark = [pytest.mark.live, pytest.mark.needs(tool="compose"), pytest.mark.timeout(1200)]

TEXT = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["tide"]}]}
GET = """
import sys, urllib.request
data = sys.argv[2].encode() if len(sys.argv) > 2 else None
print(urllib.request.urlopen(sys.argv[1], data, timeout=30).read().decode())
"""


@pytest.fixture
def compose() -> Iterator[Compose]:
    # Not pytest's own folder: users of the images must be able to enter it.
    with tempfile.TemporaryDirectory(prefix="tidegate-compose-") as folder:
        Path(folder).chmod(0o755)
        with composed(Path(folder)) as found:
            yield found


def until(found: Callable[[], object], what: str) -> None:
    patience = Patience(60.0)
    while not found():
        assert not patience.is_over, f"waited {patience} for {what}"
        time.sleep(0.2)


def started(compose: Compose, service: str) -> None:
    compose.start(service)
    until(lambda: compose.is_healthy(service), f"{service} to be healthy\n{compose.log(service)}")


def get(compose: Compose, url: str, *data: str) -> str:
    """Sends a request from another container; returns the body of the answer."""
    done = compose.run("hello", "python", "-c", GET, url, *data)
    assert done.returncode == 0, done.stderr
    return done.stdout


def queried(compose: Compose, query: str) -> float | None:
    answer = json.loads(get(compose, f"http://prometheus:9090/api/v1/query?query={query}"))
    found = answer["data"]["result"]
    return float(found[0]["value"][1]) if found else None


def test_services_find_each_other_serve_are_scraped_and_keep_their_state(compose: Compose) -> None:
    for service in ("redis", "tidegate", "prometheus"):
        started(compose, service)
    deployed = compose.run("hello")
    assert deployed.returncode == 0, deployed.stderr + compose.log("tidegate")

    infer = "http://tidegate:8080/v2/models/hello/infer"
    assert "LATIN" in get(compose, infer, json.dumps(TEXT))
    until(lambda: queried(compose, "sum(up)") == 1.0, "the scrape")
    until(lambda: queried(compose, "sum(tidegate_gateway_requests_total)") == 1.0, "one request in Prometheus")
    until(lambda: queried(compose, "function:tidegate_sla_objective:ratio") == 0.98, "a recording rule")
    records = compose.run("redis", "redis-cli", "--raw", "keys", "tidegate:*").stdout
    assert "compose" in records, records

    # The processes have given up root: the image and other paths cannot be written.
    assert compose.run("tidegate", "id", "-u").stdout.strip() == "10001"
    for path in ("/opt/tidegate/new", "/etc/new", "/var/lib/new"):
        assert compose.run("tidegate", "touch", path).returncode != 0

    assert compose.stop("tidegate") == 0, compose.log("tidegate")
    assert compose.stop("redis") == 0
    for service in ("redis", "tidegate"):
        started(compose, service)
    assert "LATIN" in get(compose, infer, json.dumps(TEXT))
    assert compose.stop("tidegate") == 0


def test_docker_compose_accepts_the_file() -> None:
    done = subprocess.run(["docker-compose", "config", "--quiet"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

"""A model server that uses more memory than ``resources.memory`` allows is ended, and every view says so."""

import asyncio
import json
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.live.backends import PHASES, LocalBench, local_bench, revision, status_of
from tests.support.live.deployment import deployment
from tidegate.records.replica_state import FailureCause, ReplicaState

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

GROWS = """
import http.server, sys
kept = []
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/grow":
            for _ in range(300):
                kept.append(b"x" * 2**20)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_above_its_limit_is_ended_and_the_views_say_how_much_it_used(tmp_path: Path) -> None:
    script = tmp_path / "grows.py"
    script.write_text(GROWS)
    manifest = tmp_path / "grows.yaml"
    manifest.write_text(f"""
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata: {{name: grows}}
spec:
  server: {{command: {json.dumps([sys.executable, str(script), "{port}"])}}}
  protocol: http
  resources: {{memory: 128Mi}}
""")
    with deployment(tmp_path) as world:
        world.up()
        world.cli("deploy", str(manifest))
        url = f"{world.gateway}/functions/grows"
        try:
            httpx.get(f"{url}/grow", timeout=20.0, trust_env=False, verify=False)
        except httpx.TransportError as error:
            pytest.fail(f"the gateway answers: {error!r}")

        def replaced() -> bool:
            (revision,) = world.status("grows")["revisions"]
            return revision["crash"] is not None and revision["ready"] == 1

        world.until(replaced, 20.0, "another replica")
        (revision_,) = world.status("grows")["revisions"]
        assert revision_["crash"]["cause"] == "memory"
        assert "128 MiB that resources.memory allows" in revision_["crash"]["reason"]
        assert "128 MiB that resources.memory allows" in world.cli("logs", "grows").stdout
        assert httpx.get(f"{url}/", timeout=20.0, trust_env=False, verify=False).status_code == 200


def test_where_the_kernel_does_not_enforce_the_limit_the_backend_watches_it(tmp_path: Path) -> None:
    script = tmp_path / "grows.py"
    script.write_text(GROWS.replace("Handler(http", "Handler(http").replace('"/grow"', '"/ready"'))
    made = revision("grows", command=(sys.executable, str(script), "{port}"), memory_bytes=128 * 2**20)

    async def scenario(bench: LocalBench) -> None:
        groups = bench.local._memory._groups
        groups.parent, groups.why = None, "none for this test"
        await bench.backend.create("grows-00001-aaaaa", made, "cpu-1core", PHASES)

        def has_failed() -> bool:
            status = status_of(bench.backend, "grows-00001-aaaaa")
            return status is not None and status.state is ReplicaState.FAILED

        await bench.until(has_failed)
        status = status_of(bench.backend, "grows-00001-aaaaa")
        assert status is not None
        assert status.cause in (FailureCause.MEMORY, FailureCause.START), "before or after the probe was answered"
        assert "MiB of the 128 MiB that resources.memory allows, and was ended" in (status.reason or "")

    async def run() -> None:
        async with local_bench() as bench:
            await scenario(bench)

    asyncio.run(run())

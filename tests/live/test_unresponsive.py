"""A model server that ends nothing: its slots stay taken, it is replaced, and the views say why."""

import json
import os
import signal
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.deadline import Patience
from tests.support.live.deployment import Deployment, deployment
from tests.support.models import scripted_server

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

HANGS = """
import time
class Model:
    arrays = "plain"
    concurrency = 1
    def predict(self, inputs):
        time.sleep(inputs["x"][0][0])
        return {"y": inputs["x"]}
"""


def infer(world: Deployment, seconds: float, timeout: float = 30.0) -> httpx.Response:
    body = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [seconds, 2]}]}
    return httpx.post(
        f"{world.gateway}/v2/models/echo/infer", json=body, timeout=timeout, trust_env=False, verify=False
    )


def deploy(world: Deployment, folder: Path, *flags: str) -> None:
    path = folder / "hangs.py"
    path.write_text(HANGS)
    world.deploy(f"{path}:Model", "--wait", "--max-scale", "1", *flags)


def test_a_predict_that_hangs_keeps_its_slot_and_costs_its_replica_after_a_while(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        deploy(world, tmp_path, "--timeout", "1s", "--unresponsive-after", "5s")
        assert infer(world, 0.0).status_code == 200
        assert infer(world, 1000.0).status_code == 504
        later = infer(world, 0.0)
        assert later.status_code == 504, "it waits for the slot: nothing is sent to a server that cannot run it"
        assert later.json()["executed"] == "false"

        def held() -> bool:
            (revision,) = world.status("echo")["revisions"]
            return bool(revision["replicas"]) and revision["replicas"][0]["held"] == 1

        world.until(held, 5.0, "the status to show the held slot")

        def served() -> bool:
            return infer(world, 0.0).status_code == 200

        world.until(served, 20.0, "another replica")
        (revision,) = world.status("echo")["revisions"]
        assert revision["crash"]["cause"] == "unresponsive"
        assert "a call went on for" in revision["crash"]["reason"]
        assert "unresponsive-after 5 s" in " ".join(world.cli("status", "echo").stdout.split())
        assert "unresponsive-after 5 s" in world.cli("logs", "echo").stdout


def test_a_call_that_ends_after_its_client_left_gives_its_slot_back_at_once(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        deploy(world, tmp_path, "--unresponsive-after", "20s")
        patience = Patience(4.0)
        with pytest.raises(httpx.ReadTimeout):
            infer(world, 2.0, timeout=0.5)
        assert infer(world, 0.0).status_code == 200
        assert patience.passed_s > 1.9 and not patience.is_over, (
            "when the call had ended, not before and not much later"
        )
        (revision,) = world.status("echo")["revisions"]
        assert revision["crash"] is None


def test_a_liveness_probe_replaces_a_server_that_answers_nothing(tmp_path: Path) -> None:
    command = [sys.executable, scripted_server.__file__, "--listen", "127.0.0.1:{port}"]
    manifest = tmp_path / "stops.yaml"
    manifest.write_text(f"""
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata: {{name: stops}}
spec:
  server: {{command: {json.dumps(command)}}}
  protocol: http
  liveness: {{path: /stats, period: 200ms, timeout: 500ms, failures: 2}}
""")
    with deployment(tmp_path) as world:
        world.up()
        world.cli("deploy", str(manifest))
        (server,) = (pid for name, pid in world.living().items() if name.endswith(".server"))
        os.kill(server, signal.SIGSTOP)

        def replaced() -> bool:
            (revision,) = world.status("stops")["revisions"]
            return revision["crash"] is not None and revision["ready"] == 1

        world.until(replaced, 20.0, "another replica")
        (revision,) = world.status("stops")["revisions"]
        assert revision["crash"]["cause"] == "liveness"
        assert "its liveness probe (/stats) failed 2 times in a row" in revision["crash"]["reason"]

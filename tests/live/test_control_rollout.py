"""Where there is no room, and where a new revision must take the place of the old one; as people meet it."""

import json
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.live.deployment import Deployment, deployment, places

MODEL = str(Path(__file__).resolve().parent.parent / "support" / "models" / "scripted_server.py")

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]


def fill(world: Deployment, *names: str) -> None:
    for name in names:
        world.deploy(world.handler(name=name), "--min-scale", "1", "--max-scale", "1", "--wait", name=name)


def test_no_room_is_reported_to_deploy_status_and_clients(tmp_path: Path) -> None:
    with deployment(tmp_path, *places(tmp_path, 1)) as world:
        world.up()
        fill(world, "first")
        failed = world.cli("deploy", world.handler(), "--name", "echo", code=1)
        assert "no accelerator has room for it: cpu has 0 of 1 places free" in failed.stderr
        assert "no accelerator has room" in world.status("echo")["message"]
        refused = world.infer()
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert "capped_by" not in refused.text
        answer = json.loads(refused.text)
        assert answer["code"] == "not_servable"
        assert "retry later" in answer["action"]
        world.cli("delete", "first")
        # Refusals end with the next route table, within a second: Retry-After says so.
        world.until(lambda: world.infer().status_code == 200, 15.0, "an answer")


def test_a_redeploy_without_room_keeps_its_place_though_another_waits_for_it(tmp_path: Path) -> None:
    with deployment(tmp_path, *places(tmp_path, 2)) as world:
        world.up()
        fill(world, "first", "second")
        world.deploy(world.handler(name="third"), "--min-scale", "1", name="third")
        world.deploy(world.handler(name="first"), "--min-scale", "1", "--max-scale", "1", "--wait", name="first")
        status = world.status("first")
        assert (status["state"], status["revision"]) == ("ready", "first-00002")
        assert world.infer(name="first").status_code == 200
        assert world.replicas("third") == 0


def test_those_who_wait_for_a_server_that_never_gets_ready_are_served_by_the_fixed_one(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        world.deploy(world.handler(load_s=60.0), "--initial-scale", "0")
        with ThreadPoolExecutor(2) as threads:
            answers = [threads.submit(world.infer) for _ in range(2)]
            world.until_replicas(1)
            world.deploy(world.handler(), "--wait")
            assert [answer.result().status_code for answer in answers] == [200] * 2


def test_a_server_that_insists_on_its_port_is_replaced_in_turn(tmp_path: Path) -> None:
    with deployment(tmp_path) as world, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        manifest = tmp_path / "fixed.yaml"
        command = json.dumps([sys.executable, MODEL, "--listen", f"127.0.0.1:{port}", "--keep-working"])
        manifest.write_text(
            "apiVersion: tidegate.dev/v1alpha1\nkind: Function\n"
            "metadata: {name: fixed, annotations: {tidegate.dev/min-scale: '1'}}\n"
            f"spec: {{port: {port}, server: {{command: {command}}}}}\n"
        )
        world.up()
        world.cli("deploy", str(manifest))
        world.cli("deploy", str(manifest))
        status = world.status("fixed")
        assert (status["state"], status["revision"]) == ("ready", "fixed-00002")

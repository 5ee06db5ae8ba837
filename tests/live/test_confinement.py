"""What a model server can reach: its own files and nothing of the deployment, where the system allows that."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live.deployment import Deployment, deployment
from tests.support.models import scripted_server
from tidegate.runtime import confine

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

LOOKS = """
import json, os
class Looks:
    arrays = "plain"
    def predict(self, inputs):
        found = {}
        for name, act in json.loads(inputs["acts"][0]).items():
            try:
                found[name] = repr(eval(act))
            except Exception as error:
                found[name] = type(error).__name__
        return {"found": [json.dumps(found)]}
"""


def granted() -> dict[str, Any]:
    """What this system refuses, by means; None for what it grants."""
    command = [sys.executable, "-I", "-S", confine.__file__]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


def look(world: Deployment, **acts: str) -> dict[str, str]:
    """Values of expressions in the model server; of one that fails the kind of the error."""
    body = {"inputs": [{"name": "acts", "shape": [1], "datatype": "BYTES", "data": [json.dumps(acts)]}]}
    answer = httpx.post(
        f"{world.gateway}/v2/models/looks/infer", json=body, timeout=20.0, trust_env=False, verify=False
    )
    assert answer.status_code == 200, answer.text
    found: dict[str, str] = json.loads(answer.json()["outputs"][0]["data"][0])
    return found


def test_a_model_server_sees_nothing_of_the_deployment_and_its_own_files_as_before(tmp_path: Path) -> None:
    refused = granted()
    if refused["hide"] is not None or refused["landlock"] is not None:
        pytest.skip(f"this system confines nothing: {refused}")
    path = tmp_path / "looks.py"
    path.write_text(LOOKS)
    with deployment(tmp_path) as world:
        world.up()
        world.deploy(world.handler(), "--wait")
        world.cli("deploy", f"{path}:Looks", "--name", "looks")
        state = world.state
        own = next(name for name in world.living() if name.startswith("looks-") and name.endswith(".server"))
        neighbour = next(pid for name, pid in world.living().items() if name.startswith("echo-") and "server" in name)
        control = world.process.pid if world.process is not None else 0
        socket = "__import__('socket')"
        found = look(
            world,
            token=f"open({str(state.root / 'token')!r}).read()",
            link=f"open({str(state.link_token_file)!r}).read()",
            listing=f"sorted(os.listdir({str(state.root)!r}))",
            sockets=f"os.listdir({str(state.run)!r})",
            connect=f"{socket}.socket({socket}.AF_UNIX).connect({str(state.run / 'quotas.sock')!r})",
            signal=f"os.kill({neighbour}, 0)",
            environment=f"open('/proc/{control}/environ', 'rb').read()",
            below=f"os.listdir('/proc/{control}/root{state.root}')",
            beside=f"open({str(tmp_path / 'made.txt')!r}, 'w').write('x')",
            secret="sorted(name for name in os.environ if 'TOKEN' in name or 'CONFINE' in name)",
        )
        assert (found["token"], found["link"]) == ("FileNotFoundError", "FileNotFoundError")
        kept = ["copies", "run"] if state.run.parent == state.root else ["copies"]
        assert found["listing"] == repr(kept), "the way to its own copy and socket"
        assert found["sockets"] == f"['{own.removesuffix('.server')}.m']"
        assert found["connect"] == "FileNotFoundError"
        assert found["signal"] == "PermissionError"
        assert found["environment"] == "PermissionError"
        assert found["below"] in ("PermissionError", "FileNotFoundError")
        assert found["beside"] == "1", "everything outside of the state directory is as it was"
        assert found["secret"] == "[]"
        assert any(line.startswith("ok") and "confinement" in line for line in world.cli("doctor").stdout.splitlines())


def test_a_command_is_confined_too_and_gets_a_socket_that_only_its_queue_proxy_reaches(tmp_path: Path) -> None:
    command = [sys.executable, scripted_server.__file__, "--listen", "unix:{socket}"]
    manifest = tmp_path / "own.yaml"
    manifest.write_text(f"""
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata: {{name: own}}
spec:
  server: {{command: {json.dumps(command)}}}
  protocol: http
""")
    with deployment(tmp_path) as world:
        world.up()
        world.cli("deploy", str(manifest))
        url = f"{world.gateway}/functions/own/stats"
        assert httpx.get(url, timeout=20.0, trust_env=False, verify=False).status_code == 200
        (server,) = (pid for name, pid in world.living().items() if name.endswith(".server"))
        (folder,) = world.state.run.glob("own-*.m")
        assert [path.name for path in folder.iterdir()] == ["s"]
        assert folder.stat().st_mode & 0o077 == 0
        words = Path(f"/proc/{server}/cmdline").read_bytes().split(b"\0")
        assert words[1] == scripted_server.__file__.encode(), "the process is the command itself"
        if granted()["hide"] is None:
            mounts = Path(f"/proc/{server}/mounts").read_text()
            assert f"tmpfs {world.state.root} tmpfs" in mounts
        world.cli("delete", "own")
        world.until(lambda: not list(world.state.run.glob("own-*")), 15.0, "no socket to be left")


def test_confinement_can_be_switched_off(tmp_path: Path) -> None:
    path = tmp_path / "looks.py"
    path.write_text(LOOKS)
    with deployment(tmp_path, "--servers-confine", "false") as world:
        world.up()
        world.cli("deploy", f"{path}:Looks", "--name", "looks")
        assert look(world, token=f"len(open({str(world.state.root / 'token')!r}).read()) > 0")["token"] == "True"

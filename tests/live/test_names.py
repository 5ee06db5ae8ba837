"""Names that clash and names that do not exist: `deploy` and every protocol say what is meant."""

import os
import pty
import sys
from pathlib import Path

import grpc
import httpx
import pytest
import tritonclient.grpc as triton

from tests.support.live.deployment import REQUEST, Deployment, deployment

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]


def in_folder(world: Deployment, folder: str) -> str:
    """A copy of the handler in another folder, under the same name."""
    path = world.folder / folder / "echo.py"
    path.parent.mkdir()
    path.write_text(Path(world.handler().partition(":")[0]).read_text())
    return f"{path}:Echo"


def answered(command: list[str], answer: bytes) -> tuple[int, str]:
    """Runs a command on a terminal and types the answer to its question."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, command)
    output = b""
    try:
        while piece := os.read(terminal, 4096):
            output += piece
            if b"[y/N]" in piece:
                os.write(terminal, answer)
    except OSError:
        pass  # the terminal ends with the command
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output.decode()


def test_a_deploy_from_another_file_is_asked_about(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        flags = ("--initial-scale", "0", "--no-wait")
        first, second = in_folder(world, "one"), in_folder(world, "two")
        world.cli("deploy", first, *flags)
        world.cli("deploy", first, *flags)
        refused = world.cli("deploy", second, *flags, code=2)
        assert (
            f"the source of echo was {first}, is {second}; give --name for another name, or --replace" in refused.stderr
        )
        assert world.status("echo")["revision"] == "echo-00002", "nothing was replaced"
        world.cli("deploy", second, "--name", "echo2", *flags)
        assert answered(world.command("deploy", second, *flags), b"n\n")[0] != 0
        code, output = answered(world.command("deploy", second, *flags), b"y\n")
        assert code == 0 and "Replace it? [y/N]" in output
        world.cli("deploy", second, *flags)
        world.cli("deploy", first, "--replace", *flags)
        world.cli("delete", "echo")
        world.cli("deploy", second, *flags)


def test_an_unknown_name_is_answered_with_what_is_deployed_in_every_protocol(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        world.cli("deploy", world.handler(), "--initial-scale", "0", "--no-wait")
        manifest = tmp_path / "secret.yaml"
        manifest.write_text(
            "apiVersion: tidegate.dev/v1alpha1\nkind: Function\nmetadata: {name: secret-echo, annotations: "
            '{tidegate.dev/initial-scale: "0"}}\n'
            f"spec: {{server: {{handler: '{world.handler()}'}}, access: {{api-keys: true}}}}\n"
        )
        world.cli("deploy", str(manifest), "--no-wait")
        assert "(did you mean echo?)" in world.infer(name="ecco").json()["error"]
        assert "(deployed: echo)" in world.infer(name="secret-ech").json()["error"]
        chat = {"model": "ehco", "messages": [{"role": "user", "content": "?"}]}
        found = httpx.post(f"{world.gateway}/v1/chat/completions", json=chat, trust_env=False, verify=False)
        assert found.status_code == 404
        assert "(did you mean echo?)" in found.json()["error"]["message"]
        by_host = httpx.post(
            world.gateway, json=REQUEST, headers={"host": "ech.localhost"}, trust_env=False, verify=False
        )
        assert by_host.status_code == 404 and "(did you mean echo?)" in by_host.text
        client = triton.InferenceServerClient(world.gateway.partition("://")[2])
        with pytest.raises(triton.InferenceServerException, match=r"\(did you mean echo\?\)") as caught:
            client.infer("ecko", [])
        assert caught.value.status() == f"StatusCode.{grpc.StatusCode.NOT_FOUND.name}"

"""`tidegate deploy` as a person meets it: it waits, shows the way on a terminal, and prints a call that works."""

import json
import shlex
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.live.commands import command_server
from tests.support.live.deployment import Deployment, deployment
from tests.support.live.terminal import Terminal

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]


@contextmanager
def terminal(world: Deployment, *words: str) -> Iterator[Terminal]:
    found = Terminal(world.command(*words), world.folder)
    try:
        yield found
    finally:
        found.close()


def pasted(report: str) -> subprocess.CompletedProcess[str]:
    """Runs the call that a deploy printed, by a shell, as it stands there."""
    lines = report.splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.startswith("try it"))
    return subprocess.run(["sh", "-c", lines[at + 1]], capture_output=True, text=True, timeout=30.0, check=False)


@pytest.mark.needs(tool="clients")
def test_the_call_that_deploy_prints_works_as_it_is_pasted(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        called = pasted(world.cli("deploy", world.handler(), "--name", "echo").stderr)
        assert json.loads(called.stdout)["outputs"][0]["data"] == [1.0, 1.0]


def test_deploy_waits_and_prints_a_call(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        world.up()
        done = world.cli("deploy", world.handler(load_s=0.5), "--name", "echo")
        assert "echo is ready after" in done.stderr
        assert "load " in done.stderr
        assert "\x1b" not in done.stderr
        sleeping = world.cli("deploy", world.handler(name="later"), "--name", "later", "--initial-scale", "0")
        assert "later is asleep" in sleeping.stderr
        recorded = world.ask("deploy", world.handler(name="quick"), "--no-wait")
        assert "state" not in recorded["functions"][0]
        waited = world.ask("deploy", world.handler())["functions"][0]
        assert (waited["state"], waited["fault"]) == ("ready", None)
        assert waited["call"].startswith("curl ")


@pytest.mark.needs(tool="clients")
def test_the_call_is_no_traffic_and_names_a_key_where_one_is_required(tmp_path: Path) -> None:
    done = command_server().run(["tenant-key", "--json"], folder=tmp_path, limit_s=30.0)
    key = json.loads(done.stdout)
    tenants = tmp_path / "tenants.yaml"
    tenants.write_text(f"tenants: [{{name: ada, keys: ['{key['sha256']}']}}]\n")
    with deployment(tmp_path, "--tenants-file", str(tenants)) as world:
        world.up()
        manifest = tmp_path / "echo.yaml"
        manifest.write_text(
            "apiVersion: tidegate.dev/v1alpha1\nkind: Function\nmetadata: {name: echo}\n"
            f"spec: {{server: {{handler: '{world.handler()}'}}, access: {{api-keys: true}}}}\n"
        )
        report = world.cli("deploy", str(manifest)).stderr
        assert '-H "authorization: Bearer $KEY"' in report
        assert world.ask("status", "echo")["traffic"]["requests"] == 0
        called = pasted(f"{report}".replace("  curl", f"  KEY={key['key']}; curl"))
        assert json.loads(called.stdout)["outputs"][0]["data"] == [1.0, 1.0]


@pytest.mark.needs(tool="clients")
def test_the_call_of_a_large_input_is_pasted_too(tmp_path: Path) -> None:
    (tmp_path / "image.py").write_text(
        textwrap.dedent("""
        class Image:
            arrays = "plain"
            inputs = {"it's": ("FP32", [2, 3, 64, 64]), "names": ("BYTES", [-1])}
            def predict(self, inputs):
                return {"rows": [len(inputs["it's"])], "names": [len(inputs["names"])]}
        """)
    )
    with deployment(tmp_path) as world:
        world.up()
        done = world.cli("deploy", f"{tmp_path}/image.py")
        assert max(map(len, done.stderr.splitlines())) < 1000
        outputs = json.loads(pasted(done.stderr).stdout)["outputs"]
        assert {each["name"]: each["data"] for each in outputs} == {"rows": [2], "names": [2]}


def test_a_function_that_does_not_come_up_is_exit_code_one_with_the_servers_words(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import nowhere\nclass Bad:\n    def predict(self, inputs): ...\n")
    with deployment(tmp_path) as world:
        world.up()
        failed = world.cli("deploy", f"{tmp_path}/bad.py", code=1)
        assert "error: bad-00001: the model server exited with status 3" in failed.stderr
        assert "No module named 'nowhere'" in failed.stderr
        reported = json.loads(world.cli("deploy", f"{tmp_path}/bad.py", "--json", code=1).stdout)
        assert reported["functions"][0]["state"] == "failed"
        assert "nowhere" in reported["functions"][0]["fault"]


def test_a_terminal_shows_the_phases_and_the_servers_lines(tmp_path: Path) -> None:
    with deployment(tmp_path) as world:
        has_been_shown = tmp_path / "shown"
        try:
            with terminal(world, "up", "--detach", *world.flags) as up:
                assert up.end() == 0
                assert "control process" in up.text
            handler = world.handler(load_until=has_been_shown)
            with terminal(world, "deploy", handler, "--name", "echo") as shown:
                shown.until("echo-00001: its model server loads on")
                shown.until("  echo is loaded")
                has_been_shown.touch()
                assert shown.end() == 0
                assert "echo is ready after" in shown.text
            with terminal(world, "deploy", world.handler(load_s=30.0), "--name", "echo") as stopped:
                stopped.until("its model server loads on")
                stopped.interrupt()
                assert stopped.end() == 130
                assert "echo-00002 stays deployed" in stopped.text
            assert world.infer().status_code == 200
        finally:
            world.cli("down")


def test_an_interrupt_ends_the_wait_also_where_a_shell_started_the_command_with_interrupts_ignored(
    tmp_path: Path,
) -> None:
    with deployment(tmp_path) as world:
        world.up()
        ignoring = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
        command = [*ignoring, *world.command("deploy", world.handler(load_s=40.0), "--name", "echo")]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            while "timeout:" not in (line := process.stderr.readline()):
                assert line, "it has ended"
            process.send_signal(signal.SIGINT)
            assert process.wait(15.0) == 130


def test_the_call_of_a_grpc_function_is_pasted_too(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    root = Path(__file__).resolve().parents[2]
    with deployment(tmp_path) as world:
        world.up()
        done = world.cli("deploy", str(root / "examples" / "greeter" / "manifest.yaml"))
        words = shlex.split(done.stderr.splitlines()[-1])
        assert words[0] == "python3"
        answer = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, timeout=30.0, check=True)
        assert answer.stdout.strip() == repr(b"\x08\x01")

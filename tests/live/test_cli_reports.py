"""Commands that report on a deployment, as their user types them: explain, list, get, describe, diff, version."""

import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path

import pytest

from tests.support.live.deployment import Deployment, deployment, places

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]
LONG = "a-function-with-a-name-that-is-as-long-as-names-are"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("reports")
    with deployment(folder, *places(folder, 3)) as made:
        made.up()
        made.deploy(made.handler(), "--latency", "2s", "--min-scale", "1", "--wait")
        made.deploy(made.handler(name="other"), "--initial-scale", "0", "--no-wait", name=LONG)
        yield made


def on_terminal(world: Deployment, *arguments: str) -> str:
    """What a command prints on a terminal of 80 columns, without colours."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environ = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")} | {"NO_COLOR": "1"}
    process = subprocess.Popen(world.command(*arguments), stdout=theirs, stderr=theirs, env=environ, cwd=world.folder)
    os.close(theirs)
    data = b""
    try:
        while piece := os.read(ours, 65536):
            data += piece
    except OSError:  # the terminal's other end is closed
        pass
    finally:
        os.close(ours)
    assert process.wait(30.0) == 0, data
    return re.sub(r"\x1b\[[0-9;]*m", "", data.decode()).replace("\r\n", "\n")


def test_explain_begins_with_a_plain_sentence_and_has_figures_behind_v(world: Deployment) -> None:
    world.ask("load", "echo", "--rate", "20", "--for", "5s", "--arrivals", "even")
    plain = world.cli("explain", "echo").stdout
    assert plain.startswith("1 replica: "), plain
    assert " requests/s are " in plain.splitlines()[0]
    assert "limits that bit" not in plain
    assert "limits that bit" in world.cli("explain", "echo", "-v").stdout
    assert world.ask("explain", "echo")["summary"][0].startswith("1 replica")
    assert world.cli("explain", LONG).stdout.startswith("Asleep: ")


def test_list_never_cuts_names_and_states_at_80_columns(world: Deployment) -> None:
    lines = on_terminal(world, "list").splitlines()
    assert any(line.split()[:2] == [LONG, "asleep"] for line in lines), lines
    assert any(line.split()[:2] == ["echo", "ready"] for line in lines), lines
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)


def test_lists_for_programs(world: Deployment) -> None:
    assert world.cli("list", "-o", "name").stdout.split() == sorted([LONG, "echo"])
    assert "PRICE/H" in on_terminal(world, "list", "-o", "wide")
    names = [each["name"] for each in json.loads(world.cli("list", "-o", "json").stdout)]
    assert names == [each["name"] for each in world.ask("list")]
    assert "- name: echo" in world.cli("list", "-o", "yaml").stdout


def test_what_was_deployed_can_be_deployed_again_and_differs_in_nothing(world: Deployment) -> None:
    text = world.cli("get", "echo", "-o", "yaml").stdout
    assert "tidegate.dev/latency: 2s" in text
    file = world.folder / "again.yaml"
    file.write_text(text)
    world.cli("diff", str(file))
    changed = world.cli("diff", str(file), "--latency", "3s", code=1).stdout
    assert "-    tidegate.dev/latency: 2s\n+    tidegate.dev/latency: 3s" in changed
    (world.folder / "needs.txt").write_text("nothing-that-is-installed\n")
    own = ("--env", "COLOUR=red", "--arg", "factor=2", "--requirements", str(world.folder / "needs.txt"))
    changed = world.cli("diff", str(file), *own, "--slo", "p99=1s", code=1).stdout
    for line in ("+    COLOUR: red", "+    tidegate.dev/percentile: '99'", "+  python: "):
        assert line in changed, changed
    assert world.cli("deploy", str(file), "--replace").returncode == 0
    assert world.cli("get", "echo", "-o", "yaml").stdout.splitlines()[1:] == text.splitlines()[1:]
    code = Path(world.folder, "echo.py")
    code.write_text(code.read_text() + "\n# another line\n")
    assert "echo.py differs" in world.cli("diff", str(file), code=1).stdout.replace("\n", "")
    assert "echo.py has changed since" in world.cli("get", "echo", "-o", "yaml").stdout.splitlines()[1]


def test_describe_has_the_status_the_reasons_and_the_manifest(world: Deployment) -> None:
    text = world.cli("describe", "echo").stdout
    for part in ("REPLICA", "why it has its size", "last starts", "kind: Function"):
        assert part in text
    assert set(world.ask("describe", "echo")) == {"function", "explain", "cold_starts", "manifest"}


def test_the_version_of_the_program_and_of_the_deployment(world: Deployment) -> None:
    found = world.ask("version")
    assert found["program"] == found["deployment"] == "0.1.0"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_names_of_functions_are_completed_within_200_ms_of_processor_time(world: Deployment, shell: str) -> None:
    line = "tidegate explain ec"
    environ = os.environ | {"TIDEGATE_STATE": str(world.state.root), "_TIDEGATE_COMPLETE": f"complete_{shell}"}
    environ |= {"COMP_WORDS": line, "COMP_CWORD": "2", "_TYPER_COMPLETE_ARGS": line}
    environ |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    program = [sys.executable, "-m", "tidegate.control.cli"]
    subprocess.run(program, env=environ, check=True, capture_output=True)
    before, began = os.times(), time.monotonic()
    done = subprocess.run(program, env=environ, check=True, capture_output=True, text=True)
    after = os.times()
    took_s = after.children_user + after.children_system - before.children_user - before.children_system
    assert "echo" in done.stdout
    assert LONG not in done.stdout
    assert took_s < 0.2, f"{took_s:.2f} s of the processor, {time.monotonic() - began:.2f} s in all"


def test_bash_completes_commands_flags_and_names_by_the_script_that_is_printed(world: Deployment) -> None:
    """The script of typer, and `python -m` under the name that it completes."""
    (world.folder / "bin").mkdir()
    program = world.folder / "bin" / "tidegate"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tidegate.control.cli "$@"\n')
    program.chmod(0o755)
    lines = [("explain", "ec"), ("descr",), ("deploy", "--scale-to-z")]
    script = 'eval "$(tidegate --show-completion)"\n' + "".join(
        f"COMP_WORDS=(tidegate {' '.join(words)}); COMP_CWORD={len(words)}; _tidegate_completion tidegate\n"
        'echo "${COMPREPLY[*]}"\n'
        for words in lines
    )
    environ = os.environ | {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "TIDEGATE_STATE": str(world.state.root),
    }
    file = world.folder / "complete.sh"
    file.write_text(script)
    done = subprocess.run(["bash", str(file)], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["echo", "describe", "--scale-to-zero-after"], done.stderr


def test_several_functions_are_deleted_at_once_or_none(world: Deployment) -> None:
    refused = world.cli("delete", LONG, "ehco", code=2).stderr
    assert "did you mean `echo`?" in refused
    assert len(world.ask("list")) == 2
    assert world.ask("delete", LONG, "echo") == {"deleted": [LONG, "echo"]}
    assert world.ask("list") == []

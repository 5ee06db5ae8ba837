"""What model servers print: hostile to a terminal, or without end."""

import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from tests.support.deadline import Patience
from tests.support.live.deployment import Deployment, deployment
from tests.support.live.terminal import Terminal
from tidegate.deploy.local.logs import cut_number

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

SERVER = r"""
import http.server, os, sys, time
print("\x1b]0;owned\x07\x1b[31mred \x9b2J", flush=True)
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.do_GET()
    def do_GET(self):
        self.send_response(200)
        body = b"\x1b[2Jcleared\r\n" if self.path.startswith("/hostile") else b""
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if self.path.startswith("/count"):
            for number in range(60_000):
                os.write(1, b"%08d %b\n" % (number, b"." * 90))
                if number % 600 == 0:
                    time.sleep(0.04)
        while self.path.startswith("/flood") and not os.path.exists("enough"):
            os.write(1, b"%4095d\n" % 7 * 12)
            time.sleep(0.0002)  # 200 MB a second; at ten times as much its neighbours have no processor
    def log_message(self, *args):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
MANIFEST = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata:
  name: printer
  annotations: {tidegate.dev/min-scale: "1"}
spec:
  server: {command: [%s, server.py, "{port}"]}
"""
MIB = 1024 * 1024
FLOOD_CUTS = 10
CUTS = 3
"""Of 60,000 lines of 100 bytes: a cut for each 4 MiB, and one more for what is written meanwhile."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Deployment]:
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "printer.yaml").write_text(MANIFEST % sys.executable)
    before = os.umask(0)
    try:
        with deployment(tmp_path) as made:
            made.up()
            made.cli("deploy", str(tmp_path / "printer.yaml"))
            yield made
    finally:
        os.umask(before)


def _ask(world: Deployment, path: str) -> None:
    httpx.get(f"{world.gateway}/functions/printer/{path}", timeout=30.0, trust_env=False, verify=False)


def test_control_characters_of_a_server_reach_no_terminal(world: Deployment) -> None:
    shown = Terminal(world.command("logs", "printer"), world.folder)
    try:
        assert shown.end() == 0
        assert r"| \x1b]0;owned\x07\x1b[31mred \x9b2J" in shown.raw
        assert "\x1b" not in shown.raw
    finally:
        shown.close()
    assert "| \x1b]0;owned\x07\x1b[31mred \x9b2J" in world.cli("logs", "printer").stdout
    status = world.cli("status", "printer").stdout
    assert r"\x1b[31mred" in status
    assert "\x1b" not in status


def test_control_characters_of_an_answer_reach_no_terminal(world: Deployment) -> None:
    shown = Terminal(world.command("invoke", "printer", "--path", "/hostile"), world.folder)
    try:
        assert shown.end() == 0
        assert r"\x1b[2Jcleared" in shown.text
        assert "\x1b[2J" not in shown.raw
    finally:
        shown.close()
    assert "\x1b[2Jcleared" in world.cli("invoke", "printer", "--path", "/hostile").stdout


def test_a_server_that_prints_without_end_fills_no_disk(world: Deployment) -> None:
    (log,) = (world.state.logs / "printer").glob("*.server.log")
    _ask(world, "flood")
    largest, patience = 0, Patience(20.0)
    try:
        while cut_number(log) < FLOOD_CUTS and not patience.is_over:
            largest = max(largest, log.stat().st_size)
            time.sleep(0.01)
    finally:
        (world.folder / "enough").touch()
    assert cut_number(log) >= FLOOD_CUTS
    assert 4 * MIB < largest < 400 * MIB
    world.until(lambda: log.stat().st_size <= 4 * MIB, 5.0, "the last cut")
    assert log.with_name(f"{log.name}.1").stat().st_size <= 5 * MIB
    assert "bytes before this line are lost" in world.cli("logs", "printer", "-n", "100000").stdout


def test_a_follower_misses_no_line_at_a_cut(world: Deployment) -> None:
    (log,) = (world.state.logs / "printer").glob("*.server.log")
    with world.sdk() as tidegate:
        found: list[int] = []
        lines = tidegate.logs("printer", tail=1, follow=True)
        assert "owned" in next(lines)["line"]
        _ask(world, "count")
        for each in lines:
            assert "lost" not in each["line"]
            if whole := re.fullmatch(r"(\d{8}) \.{90}", each["line"]):
                found.append(int(whole[1]))
                if found[-1] == 59_999:
                    break
    assert log.with_name(f"{log.name}.1").exists()
    # A line that is written while the file is cut is lost or broken: there is no reader in between.
    holes = [(before, after) for before, after in pairwise(found) if after != before + 1]
    assert len(holes) <= CUTS, f"lines are missing in {len(holes)} places: {holes[:10]}"


def test_no_file_of_the_state_directory_is_open_to_others_without_a_umask(world: Deployment) -> None:
    world.deploy(world.handler(), "--wait")
    world.infer()
    for path in (world.state.root, *world.state.root.rglob("*")):
        if not path.is_symlink():
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), f"{path} has mode {mode:o}"

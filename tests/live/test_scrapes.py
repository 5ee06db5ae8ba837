"""Scrapers that stall or are slow, and targets that cannot be written: serving is unchanged, memory bounded."""

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.test_disk_full import lines, resident_kib
from tests.support.live.deployment import Deployment, deployment, places

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

READERS = 50
FUNCTIONS = 40
"""Enough for a text that no socket takes at once."""
GROWTH_KIB = 48 * 1024
RESET = struct.pack("ii", 1, 0)
"""Lingers for no time: the connection is reset when it is closed."""
MANIFEST = """
apiVersion: tidegate.dev/v1alpha1
kind: Function
metadata: {{name: f{number}, annotations: {{tidegate.dev/initial-scale: "0"}}}}
spec: {{server: {{handler: "{handler}"}}}}
---"""


@contextlib.contextmanager
def stalled(world: Deployment, count: int) -> Iterator[list[socket.socket]]:
    """So many scrapes whose readers take a few bytes of the answer and no more."""
    holder = world.state.holder()
    assert holder is not None and holder.api is not None
    host, _, port = holder.api.partition("://")[2].rpartition(":")
    token = world.state.token
    request = f"GET /metrics HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    with contextlib.ExitStack() as held:
        readers = []
        for _ in range(count):
            reader = held.enter_context(socket.socket())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.settimeout(30.0)
            reader.connect((host, int(port)))
            reader.sendall(request)
            readers.append(reader)
        for reader in readers:
            assert reader.recv(256).startswith(b"HTTP/1.1 200"), "the text has begun"
        yield readers


def test_scrapers_that_stall_or_die_change_no_answer_and_cost_bounded_memory(tmp_path: Path) -> None:
    with deployment(tmp_path, *places(tmp_path, 1)) as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        handler = world.handler(name="asleep")
        manifest = tmp_path / "many.yaml"
        manifest.write_text("".join(MANIFEST.format(number=number, handler=handler) for number in range(FUNCTIONS)))
        world.cli("deploy", str(manifest), "--no-wait")
        for _ in range(20):
            assert world.infer().is_success
        with stalled(world, 1):
            pass
        assert world.process is not None
        pid = world.process.pid
        before = resident_kib(pid)
        with stalled(world, READERS) as readers:
            for _ in range(100):
                assert world.infer().is_success
            assert b"tidegate_control_epoch" in scraped(world), "another reader has its text"
            assert world.status("echo")["ready"] == 1, "rounds and answers go on"
            assert resident_kib(pid) < before + GROWTH_KIB
            assert len(readers) == READERS
        said = world.log.read_text()
        for _ in range(READERS):
            with stalled(world, 1) as (reader,):
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        assert world.infer().is_success
        assert b"tidegate_control_epoch" in scraped(world)
        assert resident_kib(pid) < before + GROWTH_KIB
        assert world.log.read_text() == said, "scrapers that die amid the text are no news"
        assert world.status()["faults"] == []


def scraped(world: Deployment) -> bytes:
    with stalled(world, 1) as (reader,):
        text = b""
        while b"# HELP tidegate_process_uptime" not in text and b"\r\n0\r\n\r\n" not in text:
            piece = reader.recv(65536)
            assert piece
            text += piece
        return text


def test_targets_that_cannot_be_written_are_said_and_written_later(tmp_path: Path) -> None:
    with deployment(tmp_path, *places(tmp_path, 1)) as world:
        world.state.targets.mkdir(parents=True)  # a folder stands where the file would be
        (world.state.targets / "x").touch()
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        assert world.infer().is_success
        (line,) = lines(world, "Prometheus targets: ")
        assert str(world.state.targets) in line
        (world.state.targets / "x").unlink()
        world.state.targets.rmdir()
        world.until(lambda: not lines(world), 20.0, "the fault to pass")
        assert world.state.targets.is_file()

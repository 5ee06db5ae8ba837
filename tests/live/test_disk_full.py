"""No file can be written any more: requests are served, decisions go on, memory stays, and one line says so.

The limit on the size of files (RLIMIT_FSIZE) of each process stands for the full disk: it needs no right, and a write
fails the same way.
"""

import contextlib
import resource
from pathlib import Path

import pytest

from tests.support.live.deployment import Deployment, deployment, places
from tests.support.live.live_edge import children

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

REQUESTS = 200
GROWTH_KIB = 16 * 1024


def processes(world: Deployment) -> dict[str, int]:
    assert world.process is not None
    found = {"control": world.process.pid, **world.living()}
    writers = {f"{name}'s log": pid for name, worker in found.items() if "gateway" in name for pid in children(worker)}
    assert writers
    return found | writers


def fill_disk(world: Deployment, room: int) -> None:
    """Leaves ``room`` bytes to each file. With endless room also to what the control process has started meanwhile."""
    assert world.process is not None
    started = children(world.process.pid) if room == resource.RLIM_INFINITY else ()
    for pid in {*processes(world).values(), *started}:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))


def resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def lines(world: Deployment, beginning: str = "") -> list[str]:
    """The faults that the status shows."""
    return [each for each in world.status()["faults"] if each.startswith(beginning)]


def test_a_full_disk_changes_no_answer_is_said_in_one_line_and_passes(tmp_path: Path) -> None:
    flags = ("--log-access-sampling", "1", *places(tmp_path, 2))
    with deployment(tmp_path, *flags) as world:
        world.up()
        world.deploy(world.handler(), "--min-scale", "1", "--wait")
        for _ in range(REQUESTS):
            assert world.infer().is_success
        before = {name: resident_kib(pid) for name, pid in processes(world).items()}
        fill_disk(world, 0)
        for _ in range(REQUESTS):
            answer = world.infer()
            assert answer.is_success, answer.text
        refused = world.cli("deploy", world.handler(name="other"), code=1)
        assert str(world.state.database) in refused.stderr, "what cannot be written is not accepted"
        (line,) = lines(world, "store: ")
        assert str(world.state.database) in line and "\n" not in line
        assert world.ask("explain", "echo")
        for name, pid in processes(world).items():
            assert resident_kib(pid) < before[name] + GROWTH_KIB, name
        fill_disk(world, resource.RLIM_INFINITY)
        assert world.infer().is_success
        world.until(lambda: not lines(world), 60.0, "the faults to pass by themselves")
        world.deploy(world.handler(), "--min-scale", "1", "--timeout", "9s", "--wait")

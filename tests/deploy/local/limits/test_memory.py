"""Memory limits: what is written into the kernel's files, which are pretended, and what is watched without them."""

import os
from pathlib import Path

from tests.deploy.local.limits.test_cpu_quota import machine
from tidegate.deploy.local.limits.memory import MemoryLimits, above_limit, amount


def limits(folder: Path, mounts: str, own: str) -> tuple[MemoryLimits, Path]:
    """Limits whose group of the replica ``r1`` exists with the kernel's files."""
    made = MemoryLimits(folder, machine(folder, mounts, own))
    made._groups.parent, made._groups.why = folder / "groups", None
    group = made._groups.group("r1")
    assert group is not None
    group.mkdir(parents=True)
    return made, group


def test_version_2_gets_a_maximum_without_swap_and_reports_the_kill(tmp_path: Path) -> None:
    (tmp_path / "unified/slice/own").mkdir(parents=True)
    made, group = limits(tmp_path, "cgroup2 ROOT/unified cgroup2 rw 0 0\n", "0::/slice/own\n")
    assert made.hold("r1", 42, 2**30)
    assert [(group / name).read_text() for name in ("memory.max", "memory.swap.max", "cgroup.procs")] == [
        "1073741824",
        "0",
        "42",
    ]
    assert not made.was_exceeded("r1")
    (group / "memory.events").write_text("low 0\nmax 12\noom 1\noom_kill 0\n")
    assert not made.was_exceeded("r1"), "it was near its limit and lives"
    (group / "memory.events").write_text("low 0\nmax 12\noom 1\noom_kill 1\noom_group_kill 0\n")
    assert made.was_exceeded("r1")


def test_version_1_has_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    made, group = limits(tmp_path, "cgroup ROOT/memory cgroup rw,memory 0 0\n", "4:memory:/\n")
    assert made.hold("r1", 42, 2**20)
    assert (group / "memory.limit_in_bytes").read_text() == "1048576"
    (group / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert made.was_exceeded("r1")


def test_without_groups_or_a_limit_nothing_is_held_by_the_kernel(tmp_path: Path) -> None:
    nowhere = MemoryLimits(tmp_path, tmp_path / "absent")
    assert nowhere.why == "this system has no cgroups"
    assert not nowhere.hold("r1", 42, 2**30)
    assert not nowhere.was_exceeded("r1")


def test_a_session_above_its_limit_is_found_with_what_it_uses() -> None:
    mine = os.getsid(0)
    assert above_limit({mine: 2**50}) == {}
    assert above_limit({mine: 1})[mine] > 2**20
    assert above_limit({2**22 + 1: 1}) == {}, "it has ended"


def test_amounts_are_for_people() -> None:
    assert [amount(size) for size in (2**30, int(1.2 * 2**30), 300 * 2**20)] == ["1 GiB", "1.2 GiB", "300 MiB"]

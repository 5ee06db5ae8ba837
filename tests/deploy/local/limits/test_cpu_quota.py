"""Where quotas can be set, and what is written there; the kernel's files are pretended."""

from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.deploy.local.limits.cpu_quota import CpuQuotas
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind

HALF = Accelerator(name="half", kind=AcceleratorKind.CPU, count=1, memory_bytes=1, cores=1, quota=50.0)


def never(complaint: str) -> None:
    raise AssertionError(complaint)


def machine(folder: Path, mounts: str, own: str) -> Path:
    """A /proc/self whose groups lie in ``folder``."""
    proc = folder / "proc"
    proc.mkdir()
    (proc / "mounts").write_text(mounts.replace("ROOT", str(folder)))
    (proc / "cgroup").write_text(own)
    return proc


@pytest.fixture
def _kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new group has the files of its controllers at once."""
    made = Path.mkdir

    def mkdir(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        made(self, mode, parents, exist_ok)
        if self.name.startswith("tidegate-"):
            for name in ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us", "cgroup.procs"):
                (self / name).touch()

    monkeypatch.setattr(Path, "mkdir", mkdir)


@pytest.mark.usefixtures("_kernel")
def test_version_1_takes_a_quota_and_a_period(tmp_path: Path) -> None:
    (tmp_path / "cpu/mine").mkdir(parents=True)
    proc = machine(tmp_path, "cgroup ROOT/cpu cgroup rw,cpu,cpuacct 0 0\n", "4:cpu,cpuacct:/mine\n0::/\n")
    quotas = CpuQuotas(tmp_path, never, proc)
    assert quotas.why is None
    quotas.hold("echo-00001-abcde", 42, replace(HALF, cores=2, quota=25.0))
    (group,) = (tmp_path / "cpu/mine").glob("*echo-00001-abcde")
    assert [(group / name).read_text() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cgroup.procs")] == [
        "5000",
        "10000",
        "42",
    ]


@pytest.mark.usefixtures("_kernel")
def test_version_2_makes_siblings_of_the_own_group(tmp_path: Path) -> None:
    (tmp_path / "unified/slice/own").mkdir(parents=True)
    proc = machine(tmp_path, "cgroup2 ROOT/unified cgroup2 rw 0 0\n", "0::/slice/own\n")
    quotas = CpuQuotas(tmp_path, never, proc)
    quotas.hold("r1", 42, replace(HALF, quota=2.0))
    (group,) = (tmp_path / "unified/slice").glob("tidegate-*r1")
    assert (group / "cpu.max").read_text() == "1000 10000", "the kernel's least is 1 ms"


def test_where_there_is_none_it_is_said_why(tmp_path: Path) -> None:
    said: list[str] = []
    nowhere = CpuQuotas(tmp_path, said.append, tmp_path / "absent")
    for replica in ("r1", "r2"):
        nowhere.hold(replica, 42, HALF)
    nowhere.hold("r3", 42, replace(HALF, quota=100.0))
    assert said == ["replicas on half get their whole cores, not 50 % of them: this system has no cgroups"], "once"
    nowhere.sweep()
    (tmp_path / "cpu").mkdir()
    plain = CpuQuotas(tmp_path, never, machine(tmp_path, "cgroup ROOT/cpu cgroup rw,cpu 0 0\n", "1:cpu:/\n"))
    assert plain.why is not None
    assert "does not hand on" in plain.why
    assert list((tmp_path / "cpu").iterdir()) == [], "the probe is gone"


def test_empty_groups_are_swept_away_but_those_that_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proc = machine(tmp_path, "cgroup ROOT/cpu cgroup rw,cpu 0 0\n", "1:cpu:/\n")
    (tmp_path / "cpu").mkdir()
    quotas = CpuQuotas(tmp_path, never, proc)
    monkeypatch.setattr(quotas._groups, "parent", tmp_path / "cpu")
    for name in ("r1", "r2"):
        (tmp_path / "cpu" / f"{quotas._groups._prefix}{name}").mkdir()
    quotas.sweep(["r1"])
    assert [each.name for each in (tmp_path / "cpu").iterdir()] == [f"{quotas._groups._prefix}r1"]

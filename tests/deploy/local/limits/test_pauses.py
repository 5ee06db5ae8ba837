"""When memory is short: by the machine's own figures, and by the limit of a container."""

from dataclasses import replace
from pathlib import Path

from tests.deploy.local.limits.test_cpu_quota import machine
from tidegate.deploy.local.limits.cgroups import memory_bounds
from tidegate.deploy.local.limits.pauses import is_short, refusal_on
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind


def test_a_machine_is_short_of_memory_below_a_tenth() -> None:
    def meminfo(available: int) -> list[str]:
        return ["MemTotal:       1000 kB", "MemFree:          10 kB", f"MemAvailable:    {available} kB", "Odd:"]

    assert not is_short(meminfo(100)) and is_short(meminfo(99))
    assert not is_short([]), "it does not say"


def test_a_container_is_short_of_memory_near_its_own_limit() -> None:
    assert is_short([], [(1000, 901)]) and not is_short([], [(1000, 900), (2**63, 5000)])


def group(folder: Path, stale: str, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{stale} 100\n")


def test_the_limits_of_the_own_group_and_those_above_count_without_old_files(tmp_path: Path) -> None:
    group(tmp_path / "unified/slice", "inactive_file", memory__max="4000", memory__current="1500")
    group(tmp_path / "unified/slice/own", "inactive_file", memory__max="max", memory__current="700")
    proc = machine(tmp_path, "cgroup2 ROOT/unified cgroup2 rw 0 0\n", "0::/slice/own\n")
    assert memory_bounds(proc) == [(4000, 1400)]
    group(tmp_path / "unified/slice/own", "inactive_file", memory__max="1000", memory__current="700")
    assert memory_bounds(proc) == [(1000, 600), (4000, 1400)]


def test_a_container_may_see_its_own_group_as_the_root_of_version_1(tmp_path: Path) -> None:
    files = {"memory__limit_in_bytes": "1000", "memory__usage_in_bytes": "700"}
    group(tmp_path / "memory", "total_inactive_file", **files)
    proc = machine(tmp_path, "cgroup ROOT/memory cgroup rw,memory 0 0\n", "4:memory:/docker/1234\n")
    assert memory_bounds(proc) == [(1000, 600)]
    assert memory_bounds(tmp_path / "absent") == []


def test_a_replica_on_a_device_is_known_to_sleep_never() -> None:
    cpu = Accelerator(name="cpu", kind=AcceleratorKind.CPU, count=1, memory_bytes=1000, cores=1)
    assert refusal_on(cpu) is None
    assert "memory of its device" in str(refusal_on(replace(cpu, kind=AcceleratorKind.NVIDIA)))

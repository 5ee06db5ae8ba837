"""Which devices take no replicas: readings in, faults out; and the readings of a library that answers as NVML does."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_nvml
from tidegate.deploy.devices.discovered import discover, host_cpu, read_gpus
from tidegate.deploy.devices.health import APPLICATION_XIDS, DeviceHealth, NvidiaHealth, Reading

LOST = Reading(error="NVML: GPU is lost", is_lost=True)
BUSY = Reading(error="NVML: Timeout")
WELL = Reading(uncorrectable=2)


def reasons(health: DeviceHealth) -> dict[str, str]:
    return {uuid: fault.reason for uuid, fault in health.faults.items()}


@pytest.mark.parametrize(
    ("reading", "reason", "is_lost"),
    [
        (LOST, "it cannot be read: NVML: GPU is lost", True),
        (Reading(xids=(31, 79)), "XID 79: it has fallen off the bus", False),
        (Reading(xids=(999,)), "XID 999: a critical error", False),
        (Reading(uncorrectable=5), "3 uncorrectable memory errors", False),
    ],
)
def test_a_sign_of_failure_takes_one_device_out_at_once(reading: Reading, reason: str, is_lost: bool) -> None:
    health = DeviceHealth()
    health.observe({"a": WELL, "b": WELL}, 0.0)
    assert health.faults == {}
    health.observe({"a": reading, "b": WELL}, 1.0)
    fault = health.faults["a"]
    assert (fault.reason, fault.is_lost, fault.since, health.failures) == (reason, is_lost, 1.0, 1)
    assert health.faults.keys() == {"a"}


@pytest.mark.parametrize(
    "reading", [Reading(xids=tuple(APPLICATION_XIDS)), Reading(uncorrectable=2), Reading(uncorrectable=1), Reading()]
)
def test_errors_of_programs_and_counts_that_do_not_rise_are_no_failures(reading: Reading) -> None:
    health = DeviceHealth()
    health.observe({"a": WELL}, 0.0)
    health.observe({"a": reading}, 1.0)
    assert health.faults == {}


def test_errors_from_before_the_first_reading_are_no_failure() -> None:
    health = DeviceHealth()
    health.observe({"a": Reading(uncorrectable=7)}, 0.0)
    assert health.faults == {}


def test_a_driver_that_stumbles_is_asked_three_times() -> None:
    health = DeviceHealth()
    for at, reading in enumerate((BUSY, BUSY, WELL, BUSY, BUSY)):
        health.observe({"a": reading}, float(at))
    assert health.faults == {}
    health.observe({"a": BUSY}, 5.0)
    assert reasons(health) == {"a": "it cannot be read: NVML: Timeout"}
    assert not health.faults["a"].is_lost


def test_a_device_is_used_again_a_quiet_minute_later_and_after_two_the_next_time() -> None:
    health = DeviceHealth()
    health.observe({"a": LOST}, 0.0)
    health.observe({"a": LOST}, 40.0)
    health.observe({"a": WELL}, 99.9)
    assert health.faults, "the last sign was at 40 s"
    health.observe({"a": WELL}, 100.0)
    assert not health.faults
    health.observe({"a": LOST}, 200.0)
    health.observe({"a": WELL}, 319.9)
    assert health.faults
    health.observe({"a": WELL}, 320.0)
    assert (health.faults, health.failures) == ({}, 2)
    at = 320.0
    for _ in range(12):
        health.observe({"a": LOST}, at)
        health.observe({"a": WELL}, at + 3600.0)
        assert not health.faults, "an hour at most"
        at += 3600.0


def test_a_failed_device_that_is_then_lost_is_lost_since_it_failed() -> None:
    health = DeviceHealth()
    health.observe({"a": Reading(xids=(79,))}, 0.0)
    health.observe({"a": LOST}, 1.0)
    assert (health.faults["a"].is_lost, health.faults["a"].since, health.failures) == (True, 0.0, 1)


def test_a_device_that_is_no_longer_declared_is_forgotten() -> None:
    health = DeviceHealth()
    health.observe({"a": LOST}, 0.0)
    health.observe({}, 1.0)
    assert health.faults == {}


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setattr(fake_nvml, "STATE", tmp_path / "nvml.json")
    monkeypatch.setattr(fake_nvml, "_reported", 0)

    def write(events: list[Any] | None = None, **found: Any) -> None:
        (tmp_path / "nvml.json").write_text(json.dumps({"devices": found, "events": events or []}))

    return write


def test_a_reading_has_the_errors_the_events_and_the_end_of_each_device(devices: Callable[..., None]) -> None:
    nvidia = NvidiaHealth(fake_nvml)
    devices(a={"name": "Tesla T4", "ecc": 4}, b={"name": "Tesla T4"})
    assert nvidia.read(["a", "b", "x"], 0) == {
        "a": Reading(uncorrectable=4),
        "b": Reading(),
        "x": Reading(error="NVML: Not Found", is_lost=True),
    }
    devices([["a", 31], ["a", 79]], a={"name": "Tesla T4", "ecc": 4}, b={"name": "Tesla T4", "lost": True})
    assert nvidia.read(["a", "b"], 0) == {
        "a": Reading(uncorrectable=4, xids=(31, 79)),
        "b": Reading(error="NVML: GPU is lost", is_lost=True),
    }
    assert nvidia.read(["a"], 0) == {"a": Reading(uncorrectable=4)}, "an event is reported once"


def test_partitions_are_kinds_of_their_own_and_share_the_events_of_their_device(devices: Callable[..., None]) -> None:
    one = {"name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "of": "GPU-h"}
    found = {"GPU-h": {"name": "NVIDIA H100 80GB HBM3"}, "MIG-1": one, "MIG-2": one, "GPU-t": {"name": "Tesla T4"}}
    devices([["GPU-h", 95]], **found)
    said: list[str] = []
    part, t4 = discover(host_cpu(), read_gpus(fake_nvml, said.append), said.append)
    assert (part.name, part.count, part.devices, part.mig) == (
        "h100-80gb-hbm3-mig-1g-10gb",
        2,
        ("MIG-1", "MIG-2"),
        True,
    )
    assert (t4.name, t4.mig) == ("t4", False)
    assert said == ["NVIDIA H100 80GB HBM3 GPU-h is in MIG mode: its partitions are used, the whole device is not"]
    readings = NvidiaHealth(fake_nvml).read(["MIG-1", "MIG-2", "GPU-t"], 0)
    assert [each.xids for each in readings.values()] == [(95,), (95,), ()]

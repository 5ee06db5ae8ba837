"""Utilisation, power and balance by unit."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.control.watch.test_gpus import CPU, ONE, T4
from tests.deploy.devices.test_rapl import domain
from tidegate.control.watch.units import UnitMeter, cpu_units
from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.devices.rapl import Packages
from tidegate.deploy.devices.usage import DeviceUse
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.metrics import Exposition
from tidegate.records.replica_state import ReplicaState


def on_cpu(name: str, unit: int) -> ReplicaStatus:
    return replace(ONE, id=name, accelerator="cpu", unit=unit)


def test_replicas_of_a_cpu_unit_add_up_and_an_unmeasured_one_leaves_no_figure() -> None:
    replicas = [on_cpu("a", 0), on_cpu("b", 0), replace(on_cpu("c", 1), state=ReplicaState.STARTING), on_cpu("d", 9)]
    assert cpu_units(CPU, replicas, {"a": 30.0, "b": 20.0, "d": 5.0}) == {0: 50.0, 1: 0.0}
    assert cpu_units(CPU, replicas, {"a": 30.0}) == {0: None, 1: 0.0}


def test_figures_are_means_of_a_minute_and_devices_without_power_have_none(tmp_path: Path) -> None:
    meter = UnitMeter(Packages(tmp_path))
    devices = {"GPU-a": DeviceUse(80.0, 0.0, power_w=200.0), "GPU-b": DeviceUse(20.0, 0.0, power_w=100.0)}
    meter.measure([T4], [], {}, devices, 100.0)
    meter.measure([T4], [], {}, {"GPU-a": DeviceUse(40.0, 0.0, power_w=100.0)}, 110.0)
    assert meter.utilization(T4, 110.0) == (60.0, 20.0, None)
    assert meter.variation(T4, 110.0) == pytest.approx(0.5)
    assert meter.power_w(T4, 110.0) is None
    assert meter.power_unknown(T4) == "NVML reports none for at least one unit"
    two = replace(T4, count=2, devices=T4.devices[:2])
    assert meter.power_w(two, 110.0) == 250.0
    assert meter.utilization(T4, 161.0) == (40.0, None, None)
    meter.measure([], [], {}, {}, 162.0)
    assert meter.utilization(T4, 162.0) == (None, None, None), "a kind that has gone is forgotten"


def test_a_cpu_kind_has_the_power_of_the_packages(tmp_path: Path) -> None:
    meter, replicas = UnitMeter(Packages(tmp_path)), [on_cpu("a", 0)]
    domain(tmp_path, "0", "package-0", "0")
    meter.measure([CPU], replicas, {"a": 90.0}, {}, 1.0)
    assert meter.power_w(CPU, 1.0) is None
    assert meter.power_unknown(CPU) == "RAPL: not read twice yet"
    domain(tmp_path, "0", "package-0", "30000000")
    meter.measure([CPU], replicas, {"a": 90.0}, {}, 2.0)
    assert meter.power_w(CPU, 2.0) == 30.0
    exposition = Exposition()
    meter.expose(exposition, [CPU], 2.0)
    text = exposition.render().decode()
    assert 'tidegate_unit_utilization_ratio{accelerator="cpu",unit="0"} 0.9' in text
    assert 'tidegate_unit_utilization_ratio{accelerator="cpu",unit="1"} 0' in text
    assert 'tidegate_accelerator_utilization_variation{accelerator="cpu"} 1' in text
    assert 'tidegate_processor_package_power_watts{package="package-0"} 30' in text
    assert "tidegate_unit_power_watts{" not in text


def test_an_emulated_kind_has_no_figures(tmp_path: Path) -> None:
    far = Accelerator(name="far", kind=AcceleratorKind.EMULATED, count=2, memory_bytes=1)
    meter = UnitMeter(Packages(tmp_path))
    meter.measure([far], [replace(ONE, accelerator="far")], {"f-1": 50.0}, {}, 1.0)
    assert meter.utilization(far, 1.0) == (None, None)
    assert (meter.variation(far, 1.0), meter.power_w(far, 1.0), meter.power_unknown(far)) == (None, None, "emulated")

"""A failed device is reported, counted and taken out of use; a driver that is silent takes nothing out of use."""

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping

import pytest

from tidegate.clock import ManualClock
from tidegate.control.state.notices import Faults
from tidegate.control.watch import devices
from tidegate.control.watch.devices import DeviceWatch, names_of
from tidegate.deploy.devices.health import DeviceFault, Reading
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.metrics import Exposition

T4 = Accelerator(name="t4", kind=AcceleratorKind.NVIDIA, count=2, memory_bytes=1 << 34, devices=("GPU-a", "GPU-b"))
CPU = Accelerator(name="cpu-1core", kind=AcceleratorKind.CPU, count=2, memory_bytes=1 << 34, cores=1)
NAMES = names_of([T4, CPU])
LOST = Reading(error="NVML: GPU is lost", is_lost=True)


class World:
    def __init__(self, read: devices.Read | None = None) -> None:
        self.failed: list[Mapping[str, DeviceFault]] = []
        self.faults, self.clock = Faults(), ManualClock(0.0)
        self.watch = DeviceWatch(
            read, devices=lambda: (T4, CPU), failed=self.failed.append, faults=self.faults, clock=self.clock
        )


def test_the_fault_of_a_device_that_is_renamed_or_no_longer_declared_does_not_stay() -> None:
    world = World()
    world.watch.observe({"GPU-a": LOST, "GPU-b": LOST}, NAMES)
    world.watch.observe({"GPU-b": LOST}, {"GPU-b": "t4 unit 0 (GPU-b)"})
    assert [text.partition(":")[0] for text in world.faults.texts()] == ["device t4 unit 0 (GPU-b)"]
    world.watch.observe({}, {})
    assert world.faults.texts() == ()


async def until(found: Callable[[], object]) -> None:
    """Returns when ``found`` returns something."""
    while not found():  # noqa: ASYNC110 - the thread that changes it knows no event of the loop
        await asyncio.sleep(0)


def test_a_failure_is_reported_once_by_its_place_and_cleared_when_the_device_is_well() -> None:
    world = World()
    world.watch.observe({"GPU-a": LOST, "GPU-b": Reading()}, NAMES)
    world.watch.observe({"GPU-a": LOST, "GPU-b": Reading()}, NAMES)
    assert [each.keys() for each in world.failed] == [{"GPU-a"}]
    assert world.faults.texts() == (
        "device t4 unit 0 (GPU-a): it cannot be read: NVML: GPU is lost; nothing is placed on it",
    )
    exposition = Exposition()
    world.watch.expose(exposition)
    text = exposition.render().decode()
    assert 'tidegate_device_healthy{accelerator="t4",unit="0"} 0' in text
    assert 'tidegate_device_healthy{accelerator="t4",unit="1"} 1' in text
    assert "tidegate_device_failures_total 1" in text
    world.clock.advance(60.0)
    world.watch.observe({"GPU-a": Reading(), "GPU-b": Reading()}, NAMES)
    assert world.failed[1:] == [{}]
    assert world.faults.texts() == ()


def test_a_driver_that_does_not_answer_is_reported_and_takes_nothing_out_of_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "SILENT_S", 0.01)
    answer, asked = threading.Event(), threading.Event()

    def read(uuids: Collection[str], wait_ms: int) -> Mapping[str, Reading]:
        asked.set()
        answer.wait(30.0)
        return dict.fromkeys(uuids, LOST)

    world = World(read)

    async def go() -> None:
        task = asyncio.get_running_loop().create_task(world.watch.run())
        await until(world.faults.texts)
        assert asked.is_set()
        assert world.faults.texts() == ("devices: NVML has not answered for 0 s; the health of devices is not known",)
        assert world.failed == []
        answer.set()
        await until(lambda: world.failed)
        task.cancel()

    asyncio.run(go())
    assert world.failed[0].keys() == {"GPU-a", "GPU-b"}


def test_without_a_driver_nothing_is_watched() -> None:
    asyncio.run(World().watch.run())

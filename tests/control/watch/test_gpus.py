"""Which devices count for whom, and the mean of a minute."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from tests.support.worlds.control_world import ControlWorld, function, in_world
from tidegate.control.watch.gpus import Gpus, held_devices
from tidegate.deploy.backend import ReplicaStatus
from tidegate.deploy.devices.usage import DeviceUse
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.function import Scaling
from tidegate.records.replica_state import ReplicaState

T4 = Accelerator(
    name="t4", kind=AcceleratorKind.NVIDIA, count=3, memory_bytes=16 << 30, devices=("GPU-a", "GPU-b", "GPU-c")
)
CPU = Accelerator(name="cpu", kind=AcceleratorKind.CPU, count=2, memory_bytes=1 << 30, cores=1)
ONE = ReplicaStatus(
    id="f-1",
    function="f",
    revision="f-00001",
    accelerator="t4",
    state=ReplicaState.READY,
    address="",
    admin="",
    created_at=0,
)
TWO = replace(ONE, id="f-2", unit=1)


class Driver:
    def __init__(self) -> None:
        self.uses = {"GPU-a": DeviceUse(80.0, 50.0, 20.0), "GPU-b": DeviceUse(40.0, 10.0, 6.0)}
        self.asked: list[set[str]] = []

    def read(self, uuids: Collection[str]) -> Mapping[str, DeviceUse]:
        self.asked.append(set(uuids))
        return {uuid: self.uses[uuid] for uuid in uuids if uuid in self.uses}


def test_only_devices_of_ready_replicas_count() -> None:
    others = [
        replace(ONE, id="f-3", unit=2, state=ReplicaState.STARTING),
        replace(ONE, id="c", accelerator="cpu"),
        replace(ONE, id="far", unit=7),
    ]
    assert held_devices([ONE, TWO, *others], [T4, CPU]) == {("f", "f-00001", "t4"): {"GPU-a", "GPU-b"}}


def test_a_replica_is_found_by_its_device_after_its_kind_was_renamed() -> None:
    renamed = replace(T4, name="tesla-t4", devices=("GPU-b", "GPU-a", "GPU-c"))
    before = replace(ONE, devices=("GPU-a",))
    assert held_devices([before], [renamed]) == {("f", "f-00001", "t4"): {"GPU-a"}}


def test_policies_hear_the_moment_and_the_minute_is_a_mean() -> None:
    async def tell() -> None:
        driver = Driver()
        gpus = Gpus(driver.read)
        await gpus.measure([ONE, TWO], [T4], 100.0)
        assert gpus.metrics("f-00001", "t4") == {"gpu-utilization": 60.0, "gpu-memory": 30.0, "gpu-memory-busy": 13.0}
        assert driver.asked == [{"GPU-a", "GPU-b", "GPU-c"}]
        await gpus.measure([ONE], [T4], 101.0)
        assert gpus.metrics("f-00001", "t4")["gpu-utilization"] == 80.0
        assert gpus.utilization("f", 101.0) == 70.0
        assert gpus.utilization("f", 160.5) == 80.0
        await gpus.measure([], [T4], 200.0)
        assert gpus.metrics("f-00001", "t4") == {}
        assert (gpus.utilization("f", 200.0), list(gpus.functions)) == (None, [])

    asyncio.run(tell())


def test_a_device_that_cannot_be_read_is_not_known() -> None:
    async def tell() -> None:
        driver = Driver()
        driver.uses = {}
        gpus = Gpus(driver.read)
        await gpus.measure([ONE], [T4], 100.0)
        assert gpus.metrics("f-00001", "t4") == {}
        assert gpus.utilization("f", 100.0) is None

    asyncio.run(tell())


def test_without_a_driver_none_is_asked() -> None:
    async def tell() -> None:
        gpus = Gpus(None)
        await gpus.measure([ONE], [T4], 100.0)
        assert gpus.metrics("f-00001", "t4") == {}

    asyncio.run(tell())


def test_the_round_tells_policies_and_shows_the_minute(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(min_scale=1)))
        for _ in range(4):
            await world.advance(1.0)
            await asyncio.sleep(0.01)  # a reading comes back from its thread
        observed = world.loop.autoscaler.core.observation("echo-00001")
        assert observed is not None
        assert observed.groups[0].metrics == {"gpu-utilization": 80.0, "gpu-memory": 50.0, "gpu-memory-busy": 20.0}
        assert 'tidegate_function_gpu_utilization_ratio{function="echo"} 0.8\n' in world.exposition()

    in_world(tmp_path, tell, accelerator=T4, gpus=Gpus(Driver().read))

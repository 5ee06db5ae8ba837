"""Readings of devices, with a library that answers as NVML does."""

from types import SimpleNamespace
from typing import Any

from tidegate.deploy.devices.usage import DeviceUse, NvidiaUse


class FakeNvml:
    """Two devices, of which one measures its power; ``broken`` ones answer with an error, and so does everything while
    ``is_down``."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.devices = {"GPU-a": (35, 20), "GPU-b": (0, 60)}
        self.broken: set[str] = set()
        self.is_down = False
        self.opened = self.looked_up = 0

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        if self.is_down:
            raise self.NVMLError("Driver Not Loaded")
        self.opened += 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self.looked_up += 1
        if uuid not in self.devices:
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(used=self.devices[handle][1] << 30, total=80 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        if handle in self.broken:
            raise self.NVMLError("GPU is lost")
        return SimpleNamespace(gpu=self.devices[handle][0], memory=1)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        if handle == "GPU-b":
            raise self.NVMLError("Not Supported")
        return 61_250


def test_percentages_of_the_devices_asked_for() -> None:
    nvml = FakeNvml()
    use = NvidiaUse(nvml)
    first = DeviceUse(35.0, 25.0, 1.0, power_w=61.25)
    assert use.read(["GPU-a", "GPU-b"]) == {"GPU-a": first, "GPU-b": DeviceUse(0.0, 75.0, 1.0, power_w=None)}
    assert use.read(["GPU-a"]) == {"GPU-a": first}
    assert (nvml.opened, nvml.looked_up, use.fault) == (1, 2, None)


def test_a_lost_device_hides_no_other_and_is_looked_up_anew() -> None:
    nvml = FakeNvml()
    use = NvidiaUse(nvml)
    nvml.broken.add("GPU-a")
    assert use.read(["GPU-a", "GPU-b", "GPU-x"]).keys() == {"GPU-b"}
    assert use.fault == "NVML: GPU-x: Not Found"
    nvml.broken.clear()
    assert use.read(["GPU-a"]).keys() == {"GPU-a"}
    assert nvml.looked_up == 4
    assert not use.fault


def test_without_a_driver_nothing_is_known_until_there_is_one() -> None:
    nvml = FakeNvml()
    nvml.is_down = True
    use = NvidiaUse(nvml)
    assert use.read(["GPU-a"]) == {}
    assert use.fault == "NVML: Driver Not Loaded"
    nvml.is_down = False
    assert use.read(["GPU-a"]).keys() == {"GPU-a"}

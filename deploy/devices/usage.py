"""Current use of NVIDIA devices, by NVML. The calls block, so they need a thread of their own."""

import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Use of a device, in percent where nothing else is stated."""

    utilization: float
    """Share of the driver's last sampling period in which any kernel ran."""
    memory: float
    """Memory in use by all processes."""
    memory_busy: float = 0.0
    """Share of the driver's last sampling period in which the memory controller was busy (the thesis' GPU activity)."""
    power_w: float | None = None
    """Mean draw in watts over about the last second. None if the driver does not report it, as for a MIG partition."""


class NvidiaUse:
    """Reads devices by uuid and keeps the library open. ``nvml`` is the module ``pynvml`` or one like it."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles: dict[str, Any] = {}
        self._is_open = False
        self._lock = threading.Lock()
        self.fault: str | None = None
        """Reason why a device could not be read the last time. None if all were read."""

    def read(self, uuids: Collection[str]) -> dict[str, DeviceUse]:
        """Returns the devices that could be read. :attr:`fault` explains the others."""
        with self._lock:
            self.fault = None
            if not self._open():
                return {}
            found = {uuid: self._device(uuid) for uuid in uuids}
            return {uuid: use for uuid, use in found.items() if use is not None}

    def _open(self) -> bool:
        if not self._is_open:
            try:
                self._nvml.nvmlInit()
            except self._nvml.NVMLError as error:
                self.fault = f"NVML: {error}"
                return False
            self._is_open = True
        return True

    def _device(self, uuid: str) -> DeviceUse | None:
        nvml = self._nvml
        try:
            handle = self._handles.get(uuid)
            if handle is None:
                handle = self._handles[uuid] = nvml.nvmlDeviceGetHandleByUUID(uuid)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            rates = nvml.nvmlDeviceGetUtilizationRates(handle)
            held = 100.0 * memory.used / memory.total if memory.total else 0.0
            return DeviceUse(float(rates.gpu), held, float(rates.memory), self._power_w(handle))
        except nvml.NVMLError as error:
            self._handles.pop(uuid, None)  # A device that comes back has another handle.
            self.fault = f"NVML: {uuid}: {error}"
            return None

    def _power_w(self, handle: Any) -> float | None:
        try:
            return int(self._nvml.nvmlDeviceGetPowerUsage(handle)) / 1000.0  # milliwatts
        except self._nvml.NVMLError:
            return None  # Not every device measures it; its utilisation is known all the same.

    def __repr__(self) -> str:
        return f"<NvidiaUse {len(self._handles)} devices, fault {self.fault}>"


def nvml() -> Any | None:
    """Returns the module ``pynvml``. Returns None if its package is not installed (extra ``gpu``)."""
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml

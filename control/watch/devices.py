"""Watches the health of NVIDIA devices, and takes a failed one out of use.

The driver is asked in a thread of its own, one call at a time. A call waits for an event of the devices, so that a
failure is seen when it is reported, and at the latest with the next reading half a second later.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final

from tidegate import metrics
from tidegate.clock import Clock
from tidegate.control.state.notices import Faults
from tidegate.control.watch.threads import in_daemon_thread
from tidegate.deploy.devices.health import DeviceFault, DeviceHealth, Reading
from tidegate.deploy.placement.ledger import Accelerator
from tidegate.metrics import Exposition

WAIT_MS: Final = 500
"""Time that one call to the driver waits for an event."""
SILENT_S: Final = 10.0
"""Time after which a driver that does not answer is reported. Its devices stay in use: missing data means hold."""
IDLE_S: Final = 5.0
"""Interval at which accelerators are looked at while none has a device."""

Read = Callable[[Collection[str], int], Mapping[str, Reading]]


class DeviceWatch:
    """``read`` blocks. ``failed`` receives the devices that have failed, by UUID, whenever they change."""

    def __init__(
        self,
        read: Read | None,
        *,
        devices: Callable[[], Collection[Accelerator]],
        failed: Callable[[Mapping[str, DeviceFault]], None],
        faults: Faults,
        clock: Clock,
    ) -> None:
        self._read = read
        self._devices = devices
        self._failed = failed
        self._faults = faults
        self._clock = clock
        self._health = DeviceHealth()
        self._subjects: dict[str, str] = {}
        """Subject of the fault that is shown for each failed device, by UUID: its place may change meanwhile."""

    async def run(self) -> None:
        """Reads until it is cancelled."""
        while self._read is not None:
            names = names_of(self._devices())
            if not names:
                await asyncio.sleep(IDLE_S)
                continue
            text = f"NVML has not answered for {SILENT_S:.0f} s; the health of devices is not known"
            silence = asyncio.get_running_loop().call_later(SILENT_S, self._faults.set, "devices", text)
            try:
                readings = await in_daemon_thread(self._read, tuple(names), WAIT_MS)
            finally:
                silence.cancel()
            self._faults.clear("devices")
            self.observe(readings, names)

    def observe(self, readings: Mapping[str, Reading], names: Mapping[str, str]) -> None:
        """Takes one reading of all devices. ``names``: what people call each device, by UUID."""
        before = self._health.faults
        self._health.observe(readings, self._clock.now())
        after = self._health.faults
        subjects = {uuid: f"device {names[uuid]}" for uuid in after}
        for gone in set(self._subjects.values()) - set(subjects.values()):
            self._faults.clear(gone)
        for uuid, fault in after.items():
            self._faults.set(subjects[uuid], f"{fault.reason}; nothing is placed on it")
        self._subjects = subjects
        if after != before:
            self._failed(after)

    def expose(self, exposition: Exposition) -> None:
        """Adds the health of each device, and the failures so far."""
        faults = self._health.faults
        for kind in self._devices():
            for unit, uuid in enumerate(kind.devices):
                exposition.add(metrics.DEVICE_HEALTHY, (kind.name, str(unit)), int(uuid not in faults))
        exposition.add(metrics.DEVICE_FAILURES, (), self._health.failures)

    def __repr__(self) -> str:
        return f"<DeviceWatch {self._health!r}>"


def names_of(accelerators: Collection[Accelerator]) -> dict[str, str]:
    """Returns ``h100 unit 0 (GPU-5f..)`` by the UUID of each device."""
    return {
        uuid: f"{kind.name} unit {unit} ({uuid})" for kind in accelerators for unit, uuid in enumerate(kind.devices)
    }

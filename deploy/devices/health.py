"""Health of NVIDIA devices: which ones take no replicas, and why.

:class:`DeviceHealth` is the core: readings in, faults out. A device has failed if the driver has lost it, if it
reported a critical XID error, or if it counted further uncorrectable memory errors. It is used again when it can be
read and a minute has passed without a further sign. The time doubles with each failure, up to an hour (our choice: a
GPU that was reset serves again, and one that keeps failing takes little traffic with it).

:class:`NvidiaHealth` reads the devices. Its calls block, so they need a thread of their own.
"""

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

WELL_AFTER_S: Final = 60.0
"""Time without a further sign after which a device that failed once takes replicas again."""
MAX_WELL_AFTER_S: Final = 3600.0
UNREADABLE: Final = 3
"""Readings in a row that must fail before a device counts as unreadable. A lost one counts at once."""

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Errors of the program that runs on the device, not of the device (NVIDIA's XID catalogue)."""
DOUBLE_BIT: Final = 48
XIDS: Final[Mapping[int, str]] = {
    DOUBLE_BIT: "double-bit memory error",
    63: "row remapping recorded",
    64: "row remapping failed",
    74: "NVLink error",
    79: "it has fallen off the bus",
    92: "many single-bit memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "its firmware does not answer",
    120: "its firmware failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One device at one time."""

    error: str | None = None
    """Why it could not be read."""
    is_lost: bool = False
    """True if the driver reports that the device is gone."""
    uncorrectable: int | None = None
    """Uncorrectable memory errors since the driver was loaded. None if it has no ECC."""
    xids: tuple[int, ...] = ()
    """XID errors since the last reading."""


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """The reason why a device takes no replicas."""

    reason: str
    is_lost: bool
    """True if what runs on it cannot go on; False if it may end its requests."""
    since: float
    """Time at which it failed."""


@dataclass(slots=True)
class _Device:
    fault: DeviceFault | None = None
    last_sign: float = 0.0
    failures: int = 0
    unreadable: int = 0
    uncorrectable: int | None = None


class DeviceHealth:
    """The faults of the devices that are watched."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}
        self.failures = 0
        """Failures of all devices so far."""

    @property
    def faults(self) -> dict[str, DeviceFault]:
        """Present faults by UUID."""
        return {uuid: each.fault for uuid, each in self._devices.items() if each.fault is not None}

    def observe(self, readings: Mapping[str, Reading], now: float) -> None:
        """Takes the readings of one moment. A device without a reading is forgotten."""
        self._devices = {uuid: self._devices.get(uuid, _Device()) for uuid in readings}
        for uuid, reading in readings.items():
            self._observe(self._devices[uuid], reading, now)

    def _observe(self, device: _Device, reading: Reading, now: float) -> None:
        device.unreadable = 0 if reading.error is None else device.unreadable + 1
        sign = _sign(device, reading)
        if reading.uncorrectable is not None:
            device.uncorrectable = reading.uncorrectable
        if sign is not None:
            device.last_sign = now
            if device.fault is None:
                device.failures += 1
                self.failures += 1
                device.fault = DeviceFault(sign, reading.is_lost, now)
            elif reading.is_lost and not device.fault.is_lost:
                device.fault = DeviceFault(sign, True, device.fault.since)
            return
        well_after_s = min(MAX_WELL_AFTER_S, WELL_AFTER_S * 2.0 ** (device.failures - 1))
        if device.fault is not None and reading.error is None and now - device.last_sign >= well_after_s:
            device.fault = None

    def __repr__(self) -> str:
        return f"<DeviceHealth {len(self.faults)} of {len(self._devices)} failed>"


def _sign(device: _Device, reading: Reading) -> str | None:
    """Returns the sign of a failure in a reading; None if there is none."""
    if reading.is_lost or device.unreadable >= UNREADABLE:
        return f"it cannot be read: {reading.error}"
    critical = [xid for xid in reading.xids if xid not in APPLICATION_XIDS]
    if critical:
        return f"XID {critical[0]}: {XIDS.get(critical[0], 'a critical error')}"
    before, count = device.uncorrectable, reading.uncorrectable
    if before is not None and count is not None and count > before:
        return f"{count - before} uncorrectable memory errors"
    return None


@dataclass(slots=True)
class NvidiaHealth:
    """Reads the health of devices by UUID. ``nvml`` is the module ``pynvml`` or one like it."""

    nvml: Any
    _handles: dict[str, Any] = field(default_factory=dict)
    _parts: dict[str, set[str]] = field(default_factory=dict)
    """Watched devices by the device that reports their events: itself, or the one that a MIG partition is part of."""
    _events: Any = None
    _is_open: bool = False

    def read(self, uuids: Collection[str], wait_ms: int) -> dict[str, Reading]:
        """Waits up to ``wait_ms`` for an event, and returns a reading of each device."""
        nvml = self.nvml
        try:
            if not self._is_open:
                nvml.nvmlInit()
                self._is_open = True
        except nvml.NVMLError as error:
            return {uuid: Reading(error=f"NVML: {error}") for uuid in uuids}
        for uuid in uuids:
            if uuid not in self._handles:
                self._watch(uuid)
        xids = self._wait(wait_ms)
        return {uuid: self._device(uuid, tuple(xids.get(uuid, ()))) for uuid in uuids}

    def _watch(self, uuid: str) -> None:
        nvml = self.nvml
        with contextlib.suppress(nvml.NVMLError):  # The reading says what is wrong.
            handle = self._handles[uuid] = nvml.nvmlDeviceGetHandleByUUID(uuid)
            if uuid.startswith("MIG-"):
                handle = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
            self._parts.setdefault(_text(nvml.nvmlDeviceGetUUID(handle)), set()).add(uuid)
            if self._events is None:
                self._events = nvml.nvmlEventSetCreate()
            kinds = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
            nvml.nvmlDeviceRegisterEvents(handle, kinds & nvml.nvmlDeviceGetSupportedEventTypes(handle), self._events)

    def _wait(self, wait_ms: int) -> dict[str, list[int]]:
        """Returns the XIDs of all waiting events, by UUID."""
        nvml, found = self.nvml, dict[str, list[int]]()
        while self._events is not None:
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0 if found else wait_ms)
                uuid = _text(nvml.nvmlDeviceGetUUID(event.device))
            except nvml.NVMLError:
                break  # No event in time. A lost device is found by its reading.
            is_xid = event.eventType == nvml.nvmlEventTypeXidCriticalError
            for part in self._parts.get(uuid, ()):
                found.setdefault(part, []).append(int(event.eventData) if is_xid else DOUBLE_BIT)
        return found

    def _device(self, uuid: str, xids: tuple[int, ...]) -> Reading:
        nvml = self.nvml
        try:
            handle = self._handles.get(uuid) or nvml.nvmlDeviceGetHandleByUUID(uuid)
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            self._handles.pop(uuid, None)  # A device that comes back has another handle.
            is_lost = getattr(error, "value", None) in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_NOT_FOUND)
            return Reading(error=f"NVML: {error}", is_lost=is_lost, xids=xids)
        uncorrectable = None
        with contextlib.suppress(nvml.NVMLError):  # A device without ECC does not report them.
            uncorrectable = int(
                nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                )
            )
        return Reading(uncorrectable=uncorrectable, xids=xids)


def _text(value: str | bytes) -> str:
    """Decodes the bytes that older versions of the library return."""
    return value.decode() if isinstance(value, bytes) else value

"""A module like ``pynvml`` whose devices are a JSON file: for tests, and as ``pynvml.py`` on a process's path.

``{"devices": {"GPU-a": {"name": "Tesla T4", "lost": false, "ecc": 0}}, "events": [["GPU-a", 79]]}``. Each event is
reported once, in the order of the list.
"""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

STATE = Path(os.environ.get("FAKE_NVML", ""))

NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_TIMEOUT = 10
NVML_ERROR_GPU_IS_LOST = 15
NVML_DEVICE_MIG_ENABLE = 1
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_VOLATILE_ECC = 0
nvmlEventTypeXidCriticalError = 8  # noqa: N816
nvmlEventTypeDoubleBitEccError = 2  # noqa: N816

_TEXTS = {3: "Not Supported", 6: "Not Found", 10: "Timeout", 15: "GPU is lost"}
_reported = 0


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(_TEXTS[value])
        self.value = value


def _state() -> Any:
    return json.loads(STATE.read_text(encoding="utf-8"))


def _device(uuid: str) -> Any:
    devices = _state()["devices"]
    if uuid not in devices:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    if devices[uuid].get("lost"):
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)
    return devices[uuid]


def nvmlInit() -> None:  # noqa: N802 - NVML's name, as those below
    pass


def nvmlShutdown() -> None:  # noqa: N802
    pass


def nvmlDeviceGetCount() -> int:  # noqa: N802
    return sum("of" not in each for each in _state()["devices"].values())


def nvmlDeviceGetHandleByIndex(index: int) -> str:  # noqa: N802
    wholes: list[str] = [uuid for uuid, each in _state()["devices"].items() if "of" not in each]
    return wholes[index]


def nvmlDeviceGetHandleByUUID(uuid: str) -> str:  # noqa: N802
    _device(uuid)
    return uuid


def nvmlDeviceGetMaxMigDeviceCount(handle: str) -> int:  # noqa: N802
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(handle: str, index: int) -> str:  # noqa: N802
    parts: list[str] = [uuid for uuid, each in _state()["devices"].items() if each.get("of") == handle]
    if index >= len(parts):
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return parts[index]


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle: str) -> str:  # noqa: N802
    return str(_device(handle)["of"])


def nvmlDeviceGetMigMode(handle: str) -> list[int]:  # noqa: N802
    return [int(any(each.get("of") == handle for each in _state()["devices"].values())), 0]


def nvmlDeviceGetUUID(handle: str) -> str:  # noqa: N802
    return handle


def nvmlDeviceGetName(handle: str) -> str:  # noqa: N802
    return str(_device(handle)["name"])


def nvmlDeviceGetMemoryInfo(handle: str) -> Any:  # noqa: N802
    _device(handle)
    return SimpleNamespace(total=16 << 30, used=1 << 30)


def nvmlSystemGetDriverVersion() -> str:  # noqa: N802
    return "570.86.15"


def nvmlDeviceGetCudaComputeCapability(handle: str) -> list[int]:  # noqa: N802
    _device(handle)
    return [7, 5]


def nvmlDeviceGetUtilizationRates(handle: str) -> Any:  # noqa: N802
    _device(handle)
    return SimpleNamespace(gpu=50, memory=30)


def nvmlDeviceGetPowerUsage(handle: str) -> int:  # noqa: N802
    power = _device(handle).get("milliwatts", 31_500)
    if power is None:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return int(power)


def nvmlDeviceGetPowerManagementDefaultLimit(handle: str) -> int:  # noqa: N802
    return 70_000


def nvmlDeviceGetTotalEccErrors(handle: str, kind: int, counter: int) -> int:  # noqa: N802
    errors = _device(handle).get("ecc")
    if errors is None:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return int(errors)


def nvmlEventSetCreate() -> object:  # noqa: N802
    return object()


def nvmlDeviceGetSupportedEventTypes(handle: str) -> int:  # noqa: N802
    return 8 | 2 | 1


def nvmlDeviceRegisterEvents(handle: str, kinds: int, events: object) -> None:  # noqa: N802
    pass


def nvmlEventSetWait_v2(events: object, wait_ms: int) -> Any:  # noqa: N802
    global _reported
    ends = time.monotonic() + wait_ms / 1000
    while True:
        waiting = _state().get("events", [])[_reported:]
        if waiting:
            _reported += 1
            uuid, xid = waiting[0]
            return SimpleNamespace(device=uuid, eventType=nvmlEventTypeXidCriticalError, eventData=xid)
        if time.monotonic() >= ends:
            raise NVMLError(NVML_ERROR_TIMEOUT)
        time.sleep(0.02)

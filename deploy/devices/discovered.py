"""Discovery of this machine's accelerators: NVIDIA devices by NVML, else its CPU cores. Completes the operator's
file."""

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tidegate.deploy.devices.declared import Declared, parse
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.schema.yaml_nodes import Faults

CPU_NAME: Final = "cpu-1core"
_FILLERS: Final = re.compile(r"\b(nvidia|tesla|geforce|quadro|graphics|device)\b")

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCpu:
    """Cores that this process may use, and the memory of the machine."""

    cores: tuple[int, ...]
    memory_bytes: int

    @property
    def memory_per_core(self) -> int:
        return self.memory_bytes // max(1, len(self.cores))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device as NVML reports it."""

    uuid: str
    model: str
    memory_bytes: int
    tdp_w: float | None = None
    mig: bool = False
    """True if it is in MIG mode, so that only its partitions can be used, which are devices of their own."""
    driver: str | None = None
    """Version of its driver."""
    compute_capability: str | None = None
    """CUDA's number for the generation of its processors (``9.0``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Accelerators and cores on which replicas can be placed."""

    accelerators: tuple[Accelerator, ...]
    host_cores: tuple[int, ...]


def take_inventory(file: Path | None, log: Log) -> Inventory:
    """Returns the accelerators that ``file`` declares, or those that are found. Raises InvalidInputError for a faulty
    file, and OSError if it cannot be read."""
    cpu, gpus = host_cpu(), nvidia_gpus(log)
    if file is None:
        return Inventory(accelerators=discover(cpu, gpus, log), host_cores=cpu.cores)
    declared = parse(file.read_text(encoding="utf-8"), source=str(file))
    return Inventory(accelerators=complete(declared, cpu, gpus, log), host_cores=cpu.cores)


def inventory_of_cluster(file: Path) -> Inventory:
    """Returns the accelerators that ``file`` declares for a cluster: nothing is taken from this machine, which is not
    the one that replicas run on. Raises InvalidInputError for a faulty file, also for an entry without ``count`` or
    ``memory``, and OSError if it cannot be read."""
    source, found = str(file), []
    faults = Faults(source)
    for index, entry in enumerate(parse(file.read_text(encoding="utf-8"), source=source)):
        if entry.count is None or entry.memory_bytes is None:
            missing = "count" if entry.count is None else "memory"
            what = f"accelerators[{index}].{missing}"
            faults.report(what, "nothing", f"required on Kubernetes, of whose nodes no {missing} is read")
        else:
            found.append(entry.completed(entry.count, entry.memory_bytes))
    faults.raise_any()
    return Inventory(accelerators=tuple(found), host_cores=())


def host_cpu() -> HostCpu:
    """Returns the cores of this process's affinity, or all of the machine's if the system has no affinity (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        cores = tuple(sorted(os.sched_getaffinity(0)))
    else:
        cores = tuple(range(os.cpu_count() or 1))
    return HostCpu(cores=cores, memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def nvidia_gpus(log: Log) -> tuple[Gpu, ...]:
    """Returns the devices that NVML reports. Returns none, and logs a line, if there is no library, driver or
    device."""
    try:
        import pynvml
    except ImportError:
        log("NVIDIA devices are not detected: the package nvidia-ml-py is not installed (extra `gpu`)")
        return ()
    return read_gpus(pynvml, log)


def read_gpus(nvml: Any, log: Log) -> tuple[Gpu, ...]:
    """Returns the devices that the module ``nvml`` (``pynvml``, or one like it) reports."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        log(f"no NVIDIA devices: {error}")
        return ()
    try:
        found = tuple(gpu for index in range(nvml.nvmlDeviceGetCount()) for gpu in _device(nvml, index, log))
    except nvml.NVMLError as error:
        log(f"NVIDIA devices cannot be read: {error}")
        return ()
    finally:
        nvml.nvmlShutdown()
    if not found:
        log("no NVIDIA devices: the driver shows none")
    return found


def _device(nvml: Any, index: int, log: Log) -> list[Gpu]:
    """Returns a device and its MIG partitions. A lost one is left out and does not hide the others."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        return [_gpu(nvml, handle), *_partitions(nvml, handle)]
    except nvml.NVMLError as error:
        log(f"NVIDIA device {index} cannot be read: {error}; it is left out")
        return []


def _partitions(nvml: Any, handle: Any) -> list[Gpu]:
    """Returns the MIG partitions of a device; empty if it is not divided."""
    found = []
    with contextlib.suppress(nvml.NVMLError):  # Devices without MIG do not support the question.
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with contextlib.suppress(nvml.NVMLError):  # There are fewer than the most possible.
                found.append(_gpu(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)))
    return found


def _gpu(nvml: Any, handle: Any) -> Gpu:
    tdp_w, mig, driver, capability = None, False, None, None
    with contextlib.suppress(nvml.NVMLError):  # Some devices do not report it.
        tdp_w = nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle) / 1000
    with contextlib.suppress(nvml.NVMLError):
        mig = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    with contextlib.suppress(nvml.NVMLError):
        driver = _text(nvml.nvmlSystemGetDriverVersion())
    with contextlib.suppress(nvml.NVMLError):
        capability = ".".join(map(str, nvml.nvmlDeviceGetCudaComputeCapability(handle)))
    return Gpu(
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        model=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        tdp_w=tdp_w,
        mig=mig,
        driver=driver,
        compute_capability=capability,
    )


def _text(value: str | bytes) -> str:
    """Decodes the bytes that older versions of the library return."""
    return value.decode() if isinstance(value, bytes) else value


def gpu_name(model: str) -> str:
    """Returns a name for files and annotations: ``NVIDIA H100 80GB HBM3`` -> ``h100-80gb-hbm3``, ``Tesla T4`` ->
    ``t4``."""
    words = _FILLERS.sub(" ", model.lower())
    name = re.sub(r"[^a-z0-9]+", "-", words).strip("-")[:63].rstrip("-")
    return name or "gpu"


def discover(cpu: HostCpu, gpus: Sequence[Gpu], log: Log) -> tuple[Accelerator, ...]:
    """Returns one accelerator per GPU model and MIG profile, or one for the cores of a machine without GPUs."""
    if not gpus:
        return (
            Accelerator(
                name=CPU_NAME,
                kind=AcceleratorKind.CPU,
                count=len(cpu.cores),
                memory_bytes=cpu.memory_per_core,
                cores=1,
            ),
        )
    found: dict[str, Accelerator] = {}
    for gpu in gpus:
        if gpu.mig:
            log(f"{gpu.model} {gpu.uuid} is in MIG mode: its partitions are used, the whole device is not")
            continue
        name = gpu_name(gpu.model)
        known = found.get(name)
        if known is None:
            found[name] = Accelerator(
                name=name,
                kind=AcceleratorKind.NVIDIA,
                count=1,
                memory_bytes=gpu.memory_bytes,
                devices=(gpu.uuid,),
                tdp_w=gpu.tdp_w,
                mig=gpu.uuid.startswith("MIG-"),
                driver=gpu.driver,
                compute_capability=gpu.compute_capability,
            )
        else:
            found[name] = replace(
                known,
                count=known.count + 1,
                memory_bytes=min(known.memory_bytes, gpu.memory_bytes),
                devices=(*known.devices, gpu.uuid),
            )
    return tuple(found.values())


def complete(declared: Sequence[Declared], cpu: HostCpu, gpus: Sequence[Gpu], log: Log) -> tuple[Accelerator, ...]:
    """Returns the operator's entries, completed from the machine. Only declared accelerators are used.

    An ``nvidia`` entry takes the devices of its name (or of a model with that prefix: ``h100`` takes
    ``h100-80gb-hbm3``) that no earlier entry took. An entry without devices is left out with a warning.
    """
    by_name = {each.name: each for each in discover(cpu, gpus, log) if each.kind is AcceleratorKind.NVIDIA}
    completed: list[Accelerator] = []
    for entry in declared:
        if entry.kind is not AcceleratorKind.NVIDIA:
            completed.append(_complete(entry, cpu))
            continue
        match = next((name for name in by_name if name == entry.name or name.startswith(f"{entry.name}-")), None)
        if match is None:
            log(f"accelerator {entry.name} is declared, but there is no such NVIDIA device; it is left out")
            continue
        completed.append(_with_devices(entry, by_name.pop(match), log))
    _warn_of_overdraft(completed, cpu, log)
    return tuple(completed)


def _complete(entry: Declared, cpu: HostCpu) -> Accelerator:
    cores = entry.cores if entry.kind is AcceleratorKind.CPU else 1
    count, memory = entry.count, entry.memory_bytes
    if count is None:
        count = max(1, len(cpu.cores) // cores)
    if memory is None:
        memory = cpu.memory_per_core * cores
    return entry.completed(count, memory)


def _with_devices(entry: Declared, found: Accelerator, log: Log) -> Accelerator:
    count = found.count if entry.count is None else min(entry.count, found.count)
    if entry.count is not None and entry.count > found.count:
        log(f"accelerator {entry.name}: {entry.count} are declared, {found.count} are present")
    memory = found.memory_bytes if entry.memory_bytes is None else min(entry.memory_bytes, found.memory_bytes)
    return replace(
        found,
        name=entry.name,
        count=count,
        memory_bytes=memory,
        devices=found.devices[:count],
        price_per_hour=entry.price_per_hour,
        sm_count=entry.sm_count,
        bandwidth_gb_s=entry.bandwidth_gb_s,
        tdp_w=found.tdp_w if entry.tdp_w is None else entry.tdp_w,
        mps=entry.mps,
    )


def _warn_of_overdraft(accelerators: Sequence[Accelerator], cpu: HostCpu, log: Log) -> None:
    of_cpu = [each for each in accelerators if each.kind is AcceleratorKind.CPU]
    cores = sum(each.cores * each.count for each in of_cpu)
    memory = sum(each.memory_bytes * each.count for each in of_cpu)
    if cores > len(cpu.cores):
        log(f"{cores} CPU cores are declared, {len(cpu.cores)} may be used: replicas will share cores")
    if memory > cpu.memory_bytes:
        log(f"{memory >> 20} MiB are declared for CPU accelerators, the machine has {cpu.memory_bytes >> 20} MiB")

"""Facts of a machine in, accelerators out."""

from pathlib import Path

import pytest

from tidegate.deploy.devices.declared import Declared
from tidegate.deploy.devices.discovered import (
    Gpu,
    HostCpu,
    complete,
    discover,
    gpu_name,
    host_cpu,
    inventory_of_cluster,
    nvidia_gpus,
    read_gpus,
    take_inventory,
)
from tidegate.deploy.placement.ledger import AcceleratorKind, Profile
from tidegate.errors import InvalidInputError

CPU = HostCpu(cores=(0, 1, 2, 3), memory_bytes=16 << 30)
H100 = [Gpu(uuid=f"GPU-{n}", model="NVIDIA H100 80GB HBM3", memory_bytes=80 << 30, tdp_w=700.0) for n in range(2)]
T4 = Gpu(uuid="GPU-t", model="Tesla T4", memory_bytes=15 << 30, tdp_w=70.0)


def silent(message: str) -> None:
    raise AssertionError(message)


def test_a_machine_without_gpu_offers_its_cores() -> None:
    (cpu,) = discover(CPU, (), silent)
    assert (cpu.name, cpu.kind, cpu.count, cpu.cores) == ("cpu-1core", AcceleratorKind.CPU, 4, 1)
    assert cpu.memory_bytes == 4 << 30


def test_equal_gpus_are_units_of_one_accelerator() -> None:
    h100, t4 = discover(CPU, [*H100, T4], silent)
    assert (h100.name, h100.count, h100.devices) == ("h100-80gb-hbm3", 2, ("GPU-0", "GPU-1"))
    assert (t4.name, t4.memory_bytes, t4.tdp_w) == ("t4", 15 << 30, 70.0)


def test_a_gpu_in_mig_mode_is_not_used_as_a_whole() -> None:
    said: list[str] = []
    gpu = Gpu(uuid="GPU-m", model="NVIDIA A100", memory_bytes=40 << 30, mig=True)
    assert discover(CPU, [gpu], said.append) == ()
    assert "MIG" in said[0]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-80gb-hbm3"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA Graphics Device", "gpu"),
    ],
)
def test_names_fit_for_files(model: str, name: str) -> None:
    assert gpu_name(model) == name


def test_a_declared_gpu_takes_its_devices_and_keeps_its_price() -> None:
    entries = [Declared(name="h100", kind=AcceleratorKind.NVIDIA, price_per_hour=2.5, mps=True)]
    (h100,) = complete(entries, CPU, H100, silent)
    assert (h100.name, h100.count, h100.memory_bytes) == ("h100", 2, 80 << 30)
    assert (h100.price_per_hour, h100.tdp_w, h100.mps) == (2.5, 700.0, True)
    assert h100.devices == ("GPU-0", "GPU-1")


def test_fewer_may_be_declared_and_more_are_not_believed() -> None:
    said: list[str] = []
    (one,) = complete([Declared(name="h100", kind=AcceleratorKind.NVIDIA, count=1)], CPU, H100, said.append)
    assert (one.count, one.devices) == (1, ("GPU-0",))
    (two,) = complete([Declared(name="h100", kind=AcceleratorKind.NVIDIA, count=3)], CPU, H100, said.append)
    assert two.count == 2
    assert said == ["accelerator h100: 3 are declared, 2 are present"]


def test_a_declared_gpu_that_is_not_here_is_left_out_aloud() -> None:
    said: list[str] = []
    assert complete([Declared(name="v100", kind=AcceleratorKind.NVIDIA)], CPU, [T4], said.append) == ()
    assert "v100 is declared, but there is no such NVIDIA device" in said[0]


def test_an_emulated_one_is_exactly_as_declared() -> None:
    profile = Profile(base_s=0.01, per_item_s=0.005)
    entry = Declared(name="v100", kind=AcceleratorKind.EMULATED, count=4, memory_bytes=16 << 30, profile=profile)
    (v100,) = complete([entry], CPU, (), silent)
    assert v100.is_emulated
    assert (v100.count, v100.cores, v100.profile) == (4, 0, profile)


def test_a_cpu_entry_is_completed_by_the_machine() -> None:
    (cpu,) = complete([Declared(name="cpu-2core", kind=AcceleratorKind.CPU, cores=2)], CPU, (), silent)
    assert (cpu.count, cpu.memory_bytes) == (2, 8 << 30)


def test_more_than_the_machine_has_is_allowed_but_said() -> None:
    said: list[str] = []
    entry = Declared(name="cpu-1core", kind=AcceleratorKind.CPU, count=8, memory_bytes=4 << 30)
    (cpu,) = complete([entry], CPU, (), said.append)
    assert cpu.count == 8
    assert said == [
        "8 CPU cores are declared, 4 may be used: replicas will share cores",
        "32768 MiB are declared for CPU accelerators, the machine has 16384 MiB",
    ]


class FakeNvml:
    """Two devices; the second tells neither its power nor its MIG mode, and answers bytes as old libraries do."""

    class NVMLError(Exception):
        pass

    NVML_DEVICE_MIG_ENABLE = 1

    def __init__(self, fails_at: str = "") -> None:
        self.fails_at = fails_at
        self.is_open = False

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        self._check("init")
        self.is_open = True

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._check("count")
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        self._check(f"device {index}")
        return index

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: int) -> int:  # noqa: N802
        self._check("power", handle == 1)
        return 70_000

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"570.86.15"

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:  # noqa: N802
        self._check("capability", handle == 1)
        return (8, 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:  # noqa: N802
        self._check("mig", handle == 1)
        return [1, 1]

    def nvmlDeviceGetUUID(self, handle: int) -> str | bytes:  # noqa: N802
        return b"GPU-b" if handle else "GPU-a"

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:  # noqa: N802
        return b"Tesla T4" if handle else "NVIDIA A100"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> "FakeNvml":  # noqa: N802
        return self

    @property
    def total(self) -> int:
        return 1 << 34

    def _check(self, what: str, fails: bool = False) -> None:
        if fails or what == self.fails_at:
            raise self.NVMLError(f"no {what} here")


def test_devices_are_read_as_far_as_they_tell() -> None:
    nvml, driver = FakeNvml(), "570.86.15"
    assert read_gpus(nvml, silent) == (
        Gpu(
            uuid="GPU-a",
            model="NVIDIA A100",
            memory_bytes=1 << 34,
            tdp_w=70.0,
            mig=True,
            driver=driver,
            compute_capability="8.0",
        ),
        Gpu(uuid="GPU-b", model="Tesla T4", memory_bytes=1 << 34, driver=driver),
    )
    assert not nvml.is_open


def test_driver_and_capability_are_in_the_inventory_of_found_and_declared_gpus() -> None:
    gpu = Gpu(uuid="GPU-a", model="Tesla T4", memory_bytes=1 << 34, driver="570.86.15", compute_capability="7.5")
    (found,) = discover(CPU, [gpu], silent)
    (declared,) = complete([Declared(name="t4", kind=AcceleratorKind.NVIDIA, mps=True)], CPU, [gpu], silent)
    assert [(each.driver, each.compute_capability) for each in (found, declared)] == [("570.86.15", "7.5")] * 2


@pytest.mark.parametrize(
    ("fails_at", "expected"), [("init", "no NVIDIA devices: no init here"), ("count", "cannot be read")]
)
def test_a_driver_that_fails_is_reported_and_means_no_devices(fails_at: str, expected: str) -> None:
    said: list[str] = []
    assert read_gpus(FakeNvml(fails_at), said.append) == ()
    assert expected in said[0]


def test_a_device_that_cannot_be_read_does_not_hide_the_others() -> None:
    said: list[str] = []
    assert [each.uuid for each in read_gpus(FakeNvml("device 0"), said.append)] == ["GPU-b"]
    assert said == ["NVIDIA device 0 cannot be read: no device 0 here; it is left out"]


def test_this_machine_has_cores_and_memory(tmp_path: Path) -> None:
    assert host_cpu().cores
    assert host_cpu().memory_bytes > 1 << 20
    said: list[str] = []
    gpus = nvidia_gpus(said.append)
    assert gpus or said, "no devices are never found in silence"
    assert take_inventory(None, said.append).accelerators
    file = tmp_path / "accelerators.yaml"
    file.write_text("accelerators: [{name: cpu-1core, kind: cpu, count: 1}]")
    assert take_inventory(file, said.append).accelerators[0].count == 1


def test_a_clusters_accelerators_are_those_that_are_declared_and_no_machines(tmp_path: Path) -> None:
    """The machine of the control process has no GPU, and other cores than the nodes."""
    file = tmp_path / "accelerators.yaml"
    file.write_text(
        "accelerators:\n"
        "- {name: t4, kind: nvidia, count: 40, memory: 16Gi, price-per-hour: 0.5}\n"
        "- {name: cpu, kind: cpu, count: 4000, cores: 8, memory: 4Gi}\n"
    )
    found = inventory_of_cluster(file)
    t4, cpu = found.accelerators
    assert (t4.name, t4.count, t4.memory_bytes, t4.devices) == ("t4", 40, 16 << 30, ())
    assert (cpu.count, cpu.cores) == (4000, 8)
    assert found.host_cores == ()


def test_what_a_cluster_cannot_be_asked_for_must_be_declared(tmp_path: Path) -> None:
    file = tmp_path / "accelerators.yaml"
    file.write_text("accelerators: [{name: t4, kind: nvidia, memory: 16Gi}, {name: v100, kind: nvidia, count: 2}]")
    with pytest.raises(InvalidInputError) as caught:
        inventory_of_cluster(file)
    where = [each.where for each in caught.value.faults]
    assert where == ["accelerators[0].count", "accelerators[1].memory"]
    assert "required on Kubernetes" in str(caught.value)

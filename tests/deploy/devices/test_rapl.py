"""Power of processor packages, from a folder like the kernel's."""

from pathlib import Path

import pytest

from tidegate.deploy.devices.rapl import Energy, Packages, watts_between


@pytest.mark.parametrize(
    ("before", "after", "watts"),
    [
        (Energy(10.0, 1_000_000, 5_000_000), Energy(12.0, 4_000_000, 5_000_000), 1.5),
        (Energy(10.0, 4_500_000, 5_000_000), Energy(10.5, 1_000_000, 5_000_000), 3.0),  # began again at 0
        (Energy(10.0, 7, 5_000_000), Energy(11.0, 7, 5_000_000), 0.0),
        (Energy(10.0, 7, 5_000_000), Energy(10.0, 8, 5_000_000), None),
        (Energy(10.0, 7, 5_000_000), Energy(11.0, 8, 6_000_000), None),
        (Energy(10.0, 7, 5_000_000), Energy(11.0, 6_000_000, 5_000_000), None),
    ],
)
def test_power_is_the_energy_between_two_readings(before: Energy, after: Energy, watts: float | None) -> None:
    assert watts_between(before, after) == watts


def domain(root: Path, number: str, name: str, counted: str) -> Path:
    folder = root / f"intel-rapl:{number}"
    folder.mkdir(exist_ok=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{counted}\n")
    (folder / "max_energy_range_uj").write_text("100000000\n")
    return folder


def test_packages_alone_are_read_and_a_broken_one_hides_no_other(tmp_path: Path) -> None:
    packages = Packages(tmp_path)
    domain(tmp_path, "0", "package-0", "1000000")
    domain(tmp_path, "0:0", "core", "5")
    domain(tmp_path, "1", "psys", "5")
    assert packages.read(1.0) == {}
    assert not packages.fault
    domain(tmp_path, "0", "package-0", "41000000")
    broken = domain(tmp_path, "2", "package-1", "x")
    assert packages.read(2.0) == {"package-0": 40.0}
    assert str(packages.fault).startswith(f"RAPL: {broken}: ")
    (broken / "energy_uj").unlink()
    domain(tmp_path, "0", "package-0", "42000000")
    assert packages.read(3.0) == {"package-0": 1.0}
    assert packages.fault == f"RAPL: {broken}/energy_uj: No such file or directory"


def test_a_machine_without_counters_is_named(tmp_path: Path) -> None:
    packages = Packages(tmp_path / "none")
    assert packages.read(1.0) == {}
    assert packages.fault == f"RAPL: no package in {tmp_path}/none; virtual machines seldom have one"

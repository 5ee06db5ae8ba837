"""Settings and accelerators that change under a running control process."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.control.state.notices import Faults
from tidegate.control.workers.reloading import Reloading, inventory_of
from tidegate.control.workers.renewal import Reloaded, differences, reloaded
from tidegate.deploy.devices.discovered import Inventory
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind
from tidegate.errors import InvalidInputError
from tidegate.settings import Settings, read

T4 = Accelerator(name="t4", kind=AcceleratorKind.NVIDIA, count=4, memory_bytes=16, price_per_hour=0.5)
V100 = replace(T4, name="v100", price_per_hour=3.0)
FILE = "accelerators: [{name: cpu, kind: cpu, count: %d, memory: 1Gi}]\n"


def settings(text: str) -> Settings:
    return read(text, source="tidegate.toml", base="/srv")


def test_every_difference_of_accelerators_is_a_sentence() -> None:
    after = [replace(T4, count=2, price_per_hour=0.7), replace(V100, name="h100")]
    assert differences([T4, V100], after) == (
        "accelerator h100: new, 4 units",
        "accelerator t4: 0.5 -> 0.7 an hour",
        "accelerator t4: 4 -> 2 units",
        "accelerator v100: gone, its replicas drain",
    )
    assert differences([T4], [replace(T4, memory_bytes=8)]) == ("accelerator t4: changed, for replicas to come",)
    assert differences([T4, V100], [V100, T4]) == ()


def test_what_changes_is_in_force_or_it_is_said_what_it_needs() -> None:
    running = settings("")
    now = settings(
        '[log]\nlevel = "debug"\nformat = "json"\n[limits]\nbody-bytes = 2048\n[accelerators]\nfile = "a.yaml"\n'
    )
    found, outcome = reloaded(running, now)
    assert outcome == Reloaded(
        in_force=("accelerators.file: none -> /srv/a.yaml", "log.level: info -> debug"),
        needs_restart=("limits.body-bytes",),
        needs_up=("log.format",),
    )
    assert (found.log.level, found.accelerators.file) == ("debug", "/srv/a.yaml")
    assert (found.log.format, found.limits) == (running.log.format, running.limits), "not in force yet: reported again"
    assert reloaded(found, now)[1].needs_restart == ("limits.body-bytes",)
    assert reloaded(now, now) == (now, Reloaded())


class World:
    """A settings file, an accelerators file and what was put into force."""

    def __init__(self, folder: Path) -> None:
        self.config, self.file = folder / "tidegate.toml", folder / "accelerators.yaml"
        self.config.write_text(f'[accelerators]\nfile = "{self.file}"\n')
        self.file.write_text(FILE % 2)
        self.devices: tuple[Accelerator, ...] = ()
        self.faults = Faults()

    def reloading(self) -> Reloading:
        return Reloading(
            self.read(),
            reread=self.read,
            config=self.config,
            accelerators=lambda: self.devices,
            set_accelerators=self.equip,
            faults=self.faults,
        )

    def read(self) -> Settings:
        return read(self.config.read_text(), source="tidegate.toml", base="/")

    def equip(self, found: Inventory) -> None:
        self.devices = found.accelerators


def test_other_accelerators_come_into_force(tmp_path: Path) -> None:
    async def tell() -> None:
        world = World(tmp_path)
        reloading = world.reloading()
        assert (await reloading.reload()).in_force == ("accelerator cpu: new, 2 units",)
        world.file.write_text(FILE % 5)
        assert (await reloading.reload()).in_force == ("accelerator cpu: 2 -> 5 units",)
        assert [each.count for each in world.devices] == [5]
        assert (await reloading.reload()) == Reloaded()

    asyncio.run(tell())


def test_faults_of_both_files_are_reported_together_and_nothing_changes(tmp_path: Path) -> None:
    async def tell() -> None:
        world = World(tmp_path)
        reloading = world.reloading()
        await reloading.reload()
        before = (reloading.settings, world.devices)
        world.config.write_text(world.config.read_text() + '[log]\nlevel = "loud"\n[gateway]\nworkers = 0\n')
        world.file.write_text("accelerators: [{name: cpu, kind: abacus, count: 0}]\n")
        with pytest.raises(InvalidInputError) as raised:
            await reloading.reload()
        places = {fault.where for fault in raised.value.faults}
        assert places == {"log.level", "gateway.workers", "accelerators[0].kind", "accelerators[0].count"}
        world.file.write_bytes(b"\xc0\xff")
        with pytest.raises(InvalidInputError, match="no UTF-8"):
            await reloading.reload()
        world.file.unlink()
        with pytest.raises(InvalidInputError, match=r"accelerators\.file: got .* from tidegate\.toml, line 2"):
            await reloading.reload()
        assert (reloading.settings, world.devices) == before

    asyncio.run(tell())


def test_pods_have_the_accelerators_that_are_declared(tmp_path: Path) -> None:
    file = tmp_path / "accelerators.yaml"
    file.write_text("accelerators: [{name: t4, kind: nvidia, count: 3, memory: 16Gi}]")
    pods = '[kubernetes]\nimage = "tidegate:1"\n'
    (t4,) = inventory_of(settings(f'{pods}[accelerators]\nfile = "{file}"\n')).accelerators
    assert (t4.name, t4.count) == ("t4", 3)

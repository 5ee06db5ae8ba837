"""Costs of a whole control process: over restarts, and with a file that cannot be written."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from tests.control.costs.test_ledger import use, worker
from tests.support.worlds.control_world import ControlWorld, function, in_world
from tidegate.control.costs.live import Costs
from tidegate.control.costs.report import CostReport
from tidegate.control.state.notices import Faults
from tidegate.function import Scaling
from tidegate.metrics import Exposition
from tidegate.records.costs import GroupBy

T0 = 1_800_000_000.0


class Machine:
    """A machine's clocks, and its state directory."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "costs.db"
        self.faults = Faults()
        self.wall = T0
        self.monotonic = 5000.0

    def advance(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds

    def costs(self) -> Costs:
        """A control process whose own clock is the wall clock at its start."""
        return Costs(self.file, self.faults, now=self.wall, wall=lambda: self.wall, monotonic=lambda: self.monotonic)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def by_tenant(costs: Costs) -> CostReport:
    _, _, found = await costs.report(3600.0, GroupBy.TENANT)
    return found


def test_a_successor_of_a_killed_process_goes_on(machine: Machine) -> None:
    async def run() -> None:
        first = machine.costs()
        await first.open(machine.wall)
        first.gateway_seen(worker(use("acme", 2.0, 3), served=3))
        await first.flush(machine.wall)
        first.gateway_seen(worker(use("acme", 3.0, 4), served=4, sequence=2))
        assert (await by_tenant(first)).rows["acme"].time.requests == 4, "what is not stored yet counts too"
        await first._run(first._store.close)  # type: ignore[union-attr]  # kill -9: nothing more is stored
        first._thread.shutdown()  # type: ignore[union-attr]

        machine.advance(30.0)
        second = machine.costs()
        await second.open(machine.wall)
        assert (await by_tenant(second)).rows["acme"].time.requests == 3
        second.gateway_seen(worker(use("acme", 5.0, 6), served=6, sequence=40, uptime_s=90.0))
        assert (await by_tenant(second)).rows["acme"].time.requests == 6
        await second.close(machine.wall, has_ended=True)

    asyncio.run(run())


def test_a_successor_of_a_process_that_was_killed_at_once_counts_all(machine: Machine) -> None:
    async def run() -> None:
        first = machine.costs()
        await first.open(machine.wall)
        first.gateway_seen(worker(use("acme", 2.0, 3), served=3))
        await first._run(first._store.close)  # type: ignore[union-attr]  # kill -9
        first._thread.shutdown()  # type: ignore[union-attr]
        machine.advance(9.0)
        second = machine.costs()
        await second.open(machine.wall)
        second.gateway_seen(worker(use("acme", 5.0, 6), served=6, sequence=40, uptime_s=9.0))
        assert (await by_tenant(second)).rows["acme"].time.requests == 6
        await second.close(machine.wall, has_ended=True)

    asyncio.run(run())


@pytest.mark.parametrize("jump_s", [-7200.0, 7200.0])
def test_a_clock_that_is_set_changes_no_amount(machine: Machine, jump_s: float) -> None:
    async def run() -> None:
        first = machine.costs()
        await first.open(machine.wall)
        first.gateway_seen(worker(use("acme", 2.0, 3), served=3))
        await first.close(machine.wall, has_ended=False)
        machine.advance(10.0)
        machine.wall += jump_s
        second = machine.costs()
        await second.open(machine.wall)
        second.gateway_seen(worker(use("acme", 5.0, 6), served=6, sequence=40))
        _, _, found = await second.report(4 * 3600.0, GroupBy.TENANT)
        assert found.rows["acme"].time.requests == 6
        await second.close(machine.wall, has_ended=True)

    asyncio.run(run())


def test_a_machine_that_was_started_again_keeps_what_was_stored(machine: Machine) -> None:
    async def run() -> None:
        first = machine.costs()
        await first.open(machine.wall)
        first.gateway_seen(worker(use("acme", 2.0, 3), served=3))
        await first.close(machine.wall, has_ended=False)
        machine.advance(60.0)
        machine.monotonic = 10.0
        second = machine.costs()
        await second.open(machine.wall)
        assert (await by_tenant(second)).rows["acme"].time.requests == 3
        await second.close(machine.wall, has_ended=True)

    asyncio.run(run())


def test_a_file_that_cannot_be_written_is_a_fault_and_its_amounts_are_stored_later(machine: Machine) -> None:
    async def run() -> None:
        costs = machine.costs()
        await costs.open(machine.wall)
        costs.gateway_seen(worker(use("acme", 2.0, 3), served=3))
        add = costs._store.add  # type: ignore[union-attr]

        def full(*_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        costs._store.add = full  # type: ignore[union-attr,method-assign]
        await costs.flush(machine.wall)
        (text,) = machine.faults.texts()
        assert "costs: " in text
        assert "disk is full" in text
        assert (await by_tenant(costs)).rows["acme"].time.requests == 3
        costs._store.add = add  # type: ignore[union-attr,method-assign]
        costs.gateway_seen(worker(use("acme", 3.0, 4), served=4, sequence=2))
        await costs.flush(machine.wall)
        assert not machine.faults.texts()
        assert (await by_tenant(costs)).rows["acme"].time.requests == 4
        await costs.close(machine.wall, has_ended=True)

    asyncio.run(run())


def test_a_damaged_file_is_a_fault_and_counting_goes_on_in_memory(machine: Machine) -> None:
    machine.file.write_bytes(b"no database, but longer than a page of one" * 200)

    async def run() -> None:
        costs = machine.costs()
        await costs.open(machine.wall)
        assert machine.faults.texts()
        costs.gateway_seen(worker(use("acme", 2.0, 3), served=3))
        await costs.flush(machine.wall)
        assert (await by_tenant(costs)).rows["acme"].time.requests == 3
        await costs.close(machine.wall, has_ended=True)

    asyncio.run(run())


def test_the_file_is_for_its_owner_alone(machine: Machine) -> None:
    async def run() -> None:
        costs = machine.costs()
        await costs.open(machine.wall)
        await costs.close(machine.wall, has_ended=True)

    asyncio.run(run())
    assert machine.file.stat().st_mode & 0o777 == 0o600


def test_the_control_loop_counts_its_replicas(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function(scaling=Scaling(min_scale=2)))
        await world.advance(10.0)
        _, _, found = await world.loop.instruments.costs.report(3600.0, GroupBy.FUNCTION)
        time = found.rows["echo"].time
        price = world.backend.devices()[0].price_per_hour
        assert time.total_s == pytest.approx(20.0, abs=4.0)
        assert time.total_cost == pytest.approx(time.total_s * price / 3600.0)
        text = world.exposition()
        assert 'tidegate_accelerator_held_units{accelerator="cpu"} 2' in text
        assert 'tidegate_cost_device_seconds_total{function="echo",accelerator="cpu",state="starting"}' in text

    in_world(tmp_path, tell)


def test_what_tenants_used_is_exposed_with_bounded_labels() -> None:
    costs = Costs()
    costs.gateway_seen(worker(use("acme", 2.5, 3), use("", 1.0), served=4))
    exposition = Exposition()
    for _ in costs.expose(exposition):
        pass
    text = exposition.render().decode()
    assert 'tidegate_cost_tenant_slot_seconds_total{function="echo",tenant="acme"} 2.5\n' in text
    assert 'tidegate_cost_tenant_requests_total{function="echo",tenant="(none)"} 1\n' in text
    assert 'tidegate_cost_requests_total{function="echo",accelerator="gpu"} 4\n' in text

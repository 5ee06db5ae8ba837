"""A fault is logged once and shown until it ends. A watcher misses no change, whenever it happens."""

import asyncio
import logging

import pytest

from tidegate.control.state.notices import ChangeSignal, Faults


def test_a_fault_stays_until_it_is_cleared(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults()
    with caplog.at_level(logging.WARNING):
        faults.set("store", "disk full")
        faults.set("store", "disk full")
        faults.set("gateway", "died")
        assert faults.texts() == ("gateway: died", "store: disk full")
        faults.clear("store")
        faults.clear("store")
    assert faults.texts() == ("gateway: died",)
    assert [record.getMessage() for record in caplog.records] == [
        "store: disk full",
        "gateway: died",
        "store: works again",
    ]


def test_a_fault_that_is_noted_without_a_text_has_ended() -> None:
    faults = Faults()
    faults.note("store", "disk full")
    assert faults.texts() == ("store: disk full",)
    faults.note("store", None)
    assert faults.texts() == ()


def test_a_change_between_looking_and_waiting_is_not_missed() -> None:
    async def run() -> None:
        changes = ChangeSignal()
        seen = changes.count
        changes.fire()
        await asyncio.wait_for(changes.after(seen), 1.0)

    asyncio.run(run())


def test_all_waiters_are_woken_once() -> None:
    async def run() -> None:
        changes = ChangeSignal()
        woken: list[int] = []

        async def wait(number: int) -> None:
            await changes.after(changes.count)
            woken.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(wait(number))
            await asyncio.sleep(0)
            assert woken == []
            changes.fire()
        assert sorted(woken) == [0, 1, 2]

    asyncio.run(run())


def test_the_end_wakes_all_for_good() -> None:
    async def run() -> None:
        changes = ChangeSignal()
        changes.end()
        await asyncio.wait_for(changes.after(changes.count), 1.0)
        assert changes.has_ended

    asyncio.run(run())

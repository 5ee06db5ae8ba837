"""A watcher misses no change, whenever it happens."""

import asyncio

from tidegate.control.state.pulse import ChangeSignal


def test_a_change_between_looking_and_waiting_is_not_missed() -> None:
    async def run() -> None:
        pulse = ChangeSignal()
        seen = pulse.beat
        pulse.fire()
        await asyncio.wait_for(pulse.after(seen), 1.0)

    asyncio.run(run())


def test_all_waiters_are_woken_once() -> None:
    async def run() -> None:
        pulse = ChangeSignal()
        woken: list[int] = []

        async def wait(number: int) -> None:
            await pulse.after(pulse.beat)
            woken.append(number)

        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(wait(number))
            await asyncio.sleep(0)
            assert woken == []
            pulse.fire()
        assert sorted(woken) == [0, 1, 2]

    asyncio.run(run())


def test_the_end_wakes_everybody_for_good() -> None:
    async def run() -> None:
        pulse = ChangeSignal()
        pulse.end()
        await asyncio.wait_for(pulse.after(pulse.beat), 1.0)
        assert pulse.has_ended

    asyncio.run(run())

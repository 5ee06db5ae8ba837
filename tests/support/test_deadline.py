"""Limits that do not count the time in which a process waited for a processor."""

import asyncio

import pytest

from tests.support.deadline import MOST, Patience, starved_s, within


class Machine:
    now = 100.0
    starved = 7.0

    def patience(self, limit_s: float) -> Patience:
        return Patience(limit_s, clock=lambda: self.now, starved=lambda: self.starved)

    def over_at(self, patience: Patience, passed_s: float, starved_s: float) -> bool:
        self.now, self.starved = 100.0 + passed_s, 7.0 + starved_s
        return patience.is_over


def test_on_a_free_machine_a_limit_is_what_it_says() -> None:
    machine = Machine()
    patience = machine.patience(2.0)
    assert [machine.over_at(patience, passed_s, 0.0) for passed_s in (0.0, 2.0, 2.1)] == [False, False, True]
    assert str(patience) == "2 s (2.1 s by the clock)"


def test_seconds_of_a_busy_machine_do_not_count() -> None:
    machine = Machine()
    patience = machine.patience(2.0)
    assert [machine.over_at(patience, passed_s, 4.5) for passed_s in (6.0, 6.4, 6.6)] == [False, False, True]


def test_no_machine_is_busy_for_ever() -> None:
    machine = Machine()
    patience = machine.patience(2.0)
    assert [machine.over_at(patience, passed_s, passed_s) for passed_s in (2 * MOST, 2 * MOST + 0.1)] == [False, True]


def test_what_the_machine_says_never_falls() -> None:
    assert 0.0 <= starved_s() <= starved_s()


def test_what_does_not_end_is_cut_off_and_what_ends_is_not() -> None:
    async def main() -> None:
        async with within(10.0):
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with within(0.0):
                await asyncio.sleep(100)

    asyncio.run(main())

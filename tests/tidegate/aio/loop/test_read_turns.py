"""Turns of reading: how many reads a connection has in one turn of the loop."""

import asyncio

import pytest

from tidegate.aio.loop.read_turns import READS_PER_TURN, ReadTurns


@pytest.mark.parametrize("reads", [(1,) * READS_PER_TURN, (READS_PER_TURN,), (1, READS_PER_TURN)])
def test_a_connection_that_has_had_its_turn_goes_on_in_the_next(reads: tuple[int, ...]) -> None:
    async def scene() -> None:
        turns, resumed = ReadTurns(), []
        for _ in range(2):
            assert [turns.take(each, lambda: resumed.append(1)) for each in reads] == [False] * (len(reads) - 1) + [
                True
            ]
            assert (turns.is_over, resumed) == (True, [])
            await asyncio.sleep(0)
            assert (turns.is_over, resumed) == (False, [1]), "once, however many reads there were"
            resumed.clear()

    asyncio.run(scene())


def test_a_connection_that_was_not_stopped_is_not_resumed() -> None:
    async def scene() -> None:
        turns, resumed = ReadTurns(), []
        for _ in range(3):
            for _ in range(READS_PER_TURN - 1):
                assert not turns.take(1, lambda: resumed.append(1))
            assert repr(turns) == f"<ReadTurns {READS_PER_TURN - 1} of {READS_PER_TURN} reads>"
            await asyncio.sleep(0)
        assert resumed == []

    asyncio.run(scene())

"""Names of gateway workers, and what is read back from their records."""

import asyncio

import pytest

from tidegate.control.workers.seats import BACKOFF_FIRST_S, BACKOFF_LAST_S, Seat, Worker, name_of, place_of
from tidegate.deploy.local.records import ProcessKind, ProcessRecord


def record(**details: str) -> ProcessRecord:
    return ProcessRecord(
        id="gateway", kind=ProcessKind.GATEWAY, boot_id="b", epoch=1, program="p", log="l", details=details
    )


@pytest.mark.parametrize(("seat", "generation", "name"), [(0, 1, "g0"), (0, 2, "g0.2"), (12, 345, "g12.345")])
def test_a_name_tells_seat_and_life(seat: int, generation: int, name: str) -> None:
    assert name_of(seat, generation) == name
    assert place_of(record(worker=name)) == (seat, generation)


@pytest.mark.parametrize("name", ["", "g", "g0.", "gx", "g0.2.3", "../g0", "g99999"])
def test_what_is_no_name(name: str) -> None:
    assert place_of(record(worker=name)) is None
    assert place_of(record()) is None


def test_back_off_doubles_up_to_its_limit() -> None:
    async def main() -> None:
        worker = Worker("g0", 0, "/run/g0.sock")
        pauses = [worker.next_backoff_s() for _ in range(8)]
        assert pauses[:3] == [BACKOFF_FIRST_S, BACKOFF_FIRST_S * 2, BACKOFF_FIRST_S * 4]
        assert pauses[-1] == BACKOFF_LAST_S
        seat = Seat(0, worker)
        seat.close()
        assert repr(seat) == "<Seat 0: <Worker g0 down>>"
        await worker.link.close()

    asyncio.run(main())

"""A scrape: all processes asked, one text, and a file for the next control process."""

import asyncio
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.worlds.control_world import ControlWorld, function, in_world
from tidegate.control.metrics.scraping import Scrape
from tidegate.control.state.notices import Faults

REQUESTS = b"# HELP tidegate_gateway_requests_total R.\n# TYPE tidegate_gateway_requests_total counter\n%s %d\n"
SERIES = b'tidegate_gateway_requests_total{function="echo",revision="echo-00001"}'


class Others:
    """Gateway workers by run, with what they have counted."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts

    async def __call__(self) -> dict[str, bytes | None]:
        return {name: REQUESTS % (SERIES, count) for name, count in self.counts.items()}


def scrape(world: ControlWorld, others: Others, kept: Path, *, goes_on: bool, faults: Faults | None = None) -> Scrape:
    faults = faults or Faults()
    return Scrape(world.own_metrics(), others, functions=lambda: {"echo"}, kept=kept, goes_on=goes_on, faults=faults)


async def requests(scrape: Scrape) -> float:
    """As Prometheus reads it."""
    for family in text_string_to_metric_families(b"".join([piece async for piece in scrape.pieces()]).decode()):
        if family.name == "tidegate_gateway_requests":
            return family.samples[0].value
    raise AssertionError("no requests")


def test_a_deployed_function_has_zeros_until_its_first_request(
    tmp_path: Path,
) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function())
        others = Others()
        first = scrape(world, others, tmp_path / "counted.json", goes_on=False)
        assert await requests(first) == 0
        others.counts["a"] = 3
        assert await requests(first) == 3
        text = b"".join([piece async for piece in first.pieces()])
        assert (
            b'tidegate_gateway_ended_requests_total{function="echo",revision="echo-00001",outcome="failed"} 0\n' in text
        )
        assert text.count(b"# TYPE tidegate_gateway_requests_total counter") == 1

    in_world(tmp_path, tell)


def test_counters_go_on_over_ended_workers_and_control_processes(tmp_path: Path) -> None:
    kept = tmp_path / "counted.json"

    async def tell(world: ControlWorld) -> None:
        await world.deploy(function())
        others = Others(a=3, b=4)
        first = scrape(world, others, kept, goes_on=False)
        assert await requests(first) == 7
        del others.counts["a"]
        assert await requests(first) == 7
        assert await requests(scrape(world, others, kept, goes_on=True)) == 7, "workers were adopted"
        assert await requests(scrape(world, others, kept, goes_on=False)) == 4, "a new deployment begins at zero"

    in_world(tmp_path, tell)


def test_a_file_that_cannot_be_written_or_read_is_a_fault_and_stops_nothing(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function())
        others, faults = Others(a=3, b=4), Faults()
        broken = scrape(world, others, tmp_path / "no" / "counted.json", goes_on=True, faults=faults)
        await requests(broken)
        del others.counts["a"]
        assert await requests(broken) == 7
        assert "counted.json: No such file" in str(faults.texts())
        (tmp_path / "bad.json").write_text('{"a": 3}')
        assert await requests(scrape(world, others, tmp_path / "bad.json", goes_on=True)) == 4

    in_world(tmp_path, tell)


def test_readers_that_come_together_share_a_text(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function())
        asked = 0

        async def others() -> dict[str, bytes | None]:
            nonlocal asked
            asked += 1
            if asked == 2:
                raise OSError("no answer at all")
            await asyncio.sleep(0)
            return {"a": REQUESTS % (SERIES, asked)}

        shared = Scrape(
            world.own_metrics(), others, functions=lambda: {"echo"}, kept=tmp_path / "k", goes_on=False, faults=Faults()
        )
        found = await asyncio.gather(*(requests(shared) for _ in range(50)), return_exceptions=True)
        assert asked == 3, "one for the first reader, one that failed, one for all that came meanwhile"
        assert [each for each in found if not isinstance(each, OSError)] == [1.0] + [3.0] * 48
        assert await requests(shared) == 4, "a reader that comes later gets a text of its own"

    in_world(tmp_path, tell)


def test_others_have_their_turn_between_two_pieces_though_the_reader_keeps_up(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        turns = 0
        text = b"".join(b'a_total{worker="g%d"} 1\n' % number for number in range(5000))

        async def others() -> dict[str, bytes | None]:
            return {"a": b"# HELP a_total A.\n# TYPE a_total counter\n" + text}

        def turn() -> None:
            nonlocal turns
            turns += 1
            asyncio.get_running_loop().call_soon(turn)

        answer = Scrape(
            world.own_metrics(), others, functions=set, kept=tmp_path / "kept", goes_on=False, faults=Faults()
        ).pieces()
        await anext(answer)
        turn()
        pieces, began = 0, turns
        async for _ in answer:
            pieces += 1
        assert pieces > 5 and turns - began >= pieces

    in_world(tmp_path, tell)


def test_scrapes_at_the_same_time_give_the_same(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function())
        both = scrape(world, Others(a=3, b=4), tmp_path / "c.json", goes_on=False)
        assert tuple(await asyncio.gather(requests(both), requests(both))) == (7, 7)

    in_world(tmp_path, tell)

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


def test_scrapes_at_the_same_time_give_the_same(tmp_path: Path) -> None:
    async def tell(world: ControlWorld) -> None:
        await world.deploy(function())
        both = scrape(world, Others(a=3, b=4), tmp_path / "c.json", goes_on=False)
        assert tuple(await asyncio.gather(requests(both), requests(both))) == (7, 7)

    in_world(tmp_path, tell)

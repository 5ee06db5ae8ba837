"""Three gateways apart from their control process, on a real Redis: slots, quotas and rooms over all of them, and what
goes on when a gateway, Redis, the control process or the network between two of them is away."""

import asyncio
import itertools
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.support.live.deployment import Deployment, deployment
from tests.support.live.redis_server import RedisServer
from tests.support.live.remote_gateway import RemoteGateway, remote_gateways
from tests.support.live.tenants import ACME, closed_function, in_one_minute, tenants_file
from tidegate.control.remote.records import RemoteState
from tidegate.control.state.directory import StateDirectory
from tidegate.records.codec import decode, encode
from tidegate.records.route_table import RouteTable
from tidegate.store.redis_gateways import RedisGateways

pytestmark = [pytest.mark.live, pytest.mark.timeout(240), pytest.mark.needs(tool="redis")]

SLOTS = 2
BOUND = 200
QUOTA = 300
QUIET_S = 1.0
ASKED = 150
"""Requests at each gateway, of which together more arrive than may wait."""

JOURNALED = """
import http.server, os, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def note(self, what):
        os.write(JOURNAL, f"{what} {self.path[1:]} {time.monotonic_ns()}\\n".encode())
    def do_GET(self):
        if self.path != "/ready":
            self.note("begin")
            time.sleep(WORK_S)
            while not os.path.exists(GO):
                time.sleep(0.01)
            self.note("end")
        body = self.path[1:].encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
JOURNAL = os.open(FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
"""A model server without a limit of its own: how much it runs at once is for the slots alone."""


class World:
    """A control process without workers of its own, three gateways, a Redis, and a function with a journal."""

    def __init__(self, place: Deployment, redis: RedisServer, gateways: Sequence[RemoteGateway]) -> None:
        self.place = place
        self.redis = redis
        self.gateways = gateways
        self.go = place.folder / "go"
        self._number = 0

    @property
    def journal(self) -> Path:
        return self.place.folder / f"journal-{self._number}"

    def deploy(self, *, work_s: float = 0.0, min_scale: int = 1, name: str = "echo") -> None:
        """Deploys a revision with a journal of its own, and waits until each gateway gives it requests."""
        self.go.touch()
        self._number += 1
        names = {"FILE": str(self.journal), "GO": str(self.go), "WORK_S": work_s}
        head = "".join(f"{key} = {value!r}\n" for key, value in names.items())
        program = self.place.folder / f"server-{self._number}.py"
        program.write_text(head + JOURNALED)
        annotations = {"min-scale": min_scale, "max-scale": 1, "concurrency": SLOTS, "initial-scale": min_scale}
        manifest = {
            "apiVersion": "tidegate.dev/v1alpha1",
            "kind": "Function",
            "metadata": {
                "name": name,
                "annotations": {f"tidegate.dev/{key}": str(value) for key, value in annotations.items()},
            },
            "spec": {
                "protocol": "http",
                "server": {"command": [sys.executable, str(program), "{port}"]},
                "queue": {"requests": BOUND},
            },
        }
        file = self.place.folder / f"{name}.json"
        file.write_text(json.dumps(manifest))
        self.place.cli("deploy", str(file))
        for number, each in enumerate(self.gateways):
            self.place.until(partial(self._is_new, each, name, number), 30.0, f"it at {each.name}")

    def _is_new(self, gateway: RemoteGateway, name: str, number: int) -> bool:
        answer = httpx.get(f"{gateway.url}/functions/{name}/{number}", timeout=30.0, trust_env=False)
        return answer.status_code == 200 and number in self.runs()

    def rows(self) -> list[list[str]]:
        return [line.split() for line in self.journal.read_text().splitlines()] if self.journal.exists() else []

    def most_at_once(self, without: Collection[int] = ()) -> int:
        """The most requests that ran at the same moment, by the model server's journal. ``without``: requests whose
        gateway was killed: their slots are free at once, and the model server may go on with them."""
        running = most = 0
        for what, number, _ in sorted(self.rows(), key=lambda row: (int(row[2]), row[0] == "begin")):
            if int(number) in without:
                continue
            running += 1 if what == "begin" else -1
            most = max(most, running)
        return most

    def runs(self) -> Counter[int]:
        """How often each request of the load began, by its number."""
        return Counter(int(number) for what, number, _ in self.rows() if what == "begin")

    def faults(self) -> str:
        return "\n".join(self.place.status()["faults"])

    def fault_of(self, gateway: str) -> str:
        return next((each for each in self.place.status()["faults"] if each.startswith(f"gateway {gateway}:")), "")

    def metrics(self) -> str:
        holder = self.place.state.holder()
        assert holder is not None and holder.api is not None
        token = {"authorization": f"Bearer {self.place.state.token}"}
        return httpx.get(f"{holder.api}/metrics", headers=token, trust_env=False, timeout=10.0).text

    def rooms(self) -> tuple[int, int]:
        """Returns how many requests wait at all gateways, and how many of these go by their part of the bound."""
        exposed = self.metrics()
        waiting = re.findall(r"^tidegate_gateway_waiting_requests\{.*\} (\d+)$", exposed, re.MULTILINE)
        local = re.findall(r"^tidegate_gateway_rooms_local\{.*\} 1$", exposed, re.MULTILINE)
        return sum(map(int, waiting)), len(local)

    def waiting(self) -> int:
        """Returns how many requests wait at all gateways."""
        return self.rooms()[0]

    def is_each_local(self) -> bool:
        """Returns whether each gateway has missed Redis: each does at an exchange of its own."""
        return self.rooms()[1] == len(self.gateways)

    def is_none_local(self) -> bool:
        return self.rooms()[1] == 0

    def listed(self) -> str:
        return json.dumps(self.place.status()["gateways"])

    def until_whole(self) -> None:
        """Waits until all three gateways serve the newest table and no fault is left."""

        def is_whole() -> bool:
            view = self.place.status()
            names = [
                each["worker"]
                for each in view["gateways"]
                if (each["state"], each["table"]) == ("serving", view["table"])
            ]
            return sorted(names) == ["edge0.g0", "edge1.g0", "edge2.g0"] and not view["faults"]

        self.place.until(is_whole, 30.0, "all to be as before")


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("remote")
    (folder / "redis").mkdir()
    redis = RedisServer(folder / "redis")
    tenants = tenants_file(folder, f"{{requests-per-minute: {QUOTA}}}")
    flags = ("--store-url", redis.url, "--store-name", "blue", "--gateway-workers", "0")
    try:
        with deployment(folder, *flags, "--tenants-file", str(tenants)) as place:
            place.up()
            with remote_gateways(place, redis.port, 3) as gateways:
                yield World(place, redis, gateways)
    finally:
        redis.kill()


@pytest.fixture
def world(everything: World) -> World:
    """With all that a test before may have ended."""
    everything.until_whole()
    return everything


_FIRSTS = itertools.count(10_000, 10_000)


class Load:
    """Requests with numbers, each of one's own, and how each ended."""

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        self.broken: dict[int, str] = {}
        self.at: dict[int, str] = {}
        self._number = next(_FIRSTS)

    async def send(self, client: httpx.AsyncClient, gateway: RemoteGateway) -> None:
        self._number = number = self._number + 1
        self.at[number] = gateway.name
        try:
            answer = await client.get(f"{gateway.url}/functions/echo/{number}")
            self.codes[number] = answer.status_code
            assert answer.status_code != 200 or answer.text == str(number)
        except httpx.HTTPError as error:
            self.broken[number] = repr(error)

    async def keep(self, client: httpx.AsyncClient, gateway: RemoteGateway, until: asyncio.Event, each: int) -> None:
        """Keeps so many requests under way at a gateway until it is enough."""

        async def one() -> None:
            while not until.is_set():
                await self.send(client, gateway)
                if gateway.name in {self.at[number] for number in self.broken}:
                    return

        await asyncio.gather(*(one() for _ in range(each)))


def client() -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=1000, max_keepalive_connections=1000)
    return httpx.AsyncClient(limits=limits, timeout=60.0, trust_env=False)


async def settled(world: World, *loads: Load) -> bool:
    """Returns when no further answer has come for a while, and all that is unanswered waits or runs: this end is slow
    on a busy machine. Returns whether a gateway went by its part of the bound meanwhile: it does for seconds."""
    before, is_under_way, has_missed = -1, True, False
    while is_under_way or before != sum(len(each.codes) for each in loads):
        before = sum(len(each.codes) for each in loads)
        await asyncio.sleep(QUIET_S)
        waiting, local = await asyncio.to_thread(world.rooms)
        unanswered = sum(len(each.at) - len(each.codes) - len(each.broken) for each in loads)
        is_under_way = not waiting <= unanswered <= waiting + SLOTS
        has_missed |= local > 0
    return has_missed


async def fill(world: World, counts: Sequence[int]) -> tuple[int, Load]:
    """Sends so many requests to each gateway while none ends. Returns how many stayed.

    A gateway that has no answer of Redis within a quarter of a second goes by its part of the bound for some seconds.
    On a machine that is short of processors that happens although Redis is there. Then they are sent again.
    """
    while True:
        await asyncio.to_thread(world.place.until, world.is_none_local, 30.0, "all gateways to have Redis")
        stayed, load, has_missed = await _fill(world, counts)
        if not has_missed:
            return stayed, load
        sys.stdout.write(f"\nasked {counts}: {stayed - SLOTS} waited while a gateway missed Redis; once more")


async def fill_alone(world: World, counts: Sequence[int]) -> tuple[int, Load]:
    """As :func:`fill`, without Redis: each gateway goes by its part."""
    stayed, load, _ = await _fill(world, counts)
    return stayed, load


async def _fill(world: World, counts: Sequence[int]) -> tuple[int, Load, bool]:
    world.go.unlink()
    load, sent = Load(), sum(counts)
    async with client() as session, asyncio.TaskGroup() as group:
        for turn in range(max(counts)):
            for gateway, count in zip(world.gateways, counts, strict=True):
                if turn < count:
                    group.create_task(load.send(session, gateway))
        has_missed = await settled(world, load)
        stayed = sent - len(load.codes)
        world.go.touch()
    assert load.broken == {}
    assert set(load.codes.values()) <= {200, 429}, Counter(load.codes.values())
    return stayed, load, has_missed


AWAY_S = 30.0
UNEVEN = (400, 20, 20)
"""Requests by gateway: nine tenths at one of them."""


def test_redis_is_away_for_half_a_minute_while_one_gateway_has_nine_tenths_of_the_load(world: World) -> None:
    """What waits when Redis fails is never more than the bound, and the parts are those of the load. It comes first:
    what is free is divided by what waited within the last minute, and the next tests fill the gateways in turn."""
    world.deploy()
    loads: list[Load] = []

    async def main() -> None:
        await fill(world, UNEVEN)  # Gateways lease their parts by what waited at them.
        await asyncio.sleep(3.0)
        world.go.unlink()
        load, more, light = Load(), Load(), Load()
        loads.extend((load, more, light))
        async with client() as session, asyncio.TaskGroup() as group:
            for turn in range(max(UNEVEN)):
                for gateway, count in zip(world.gateways, UNEVEN, strict=True):
                    if turn < count:
                        group.create_task(load.send(session, gateway))
            await settled(world, load)
            world.redis.kill()
            began = asyncio.get_running_loop().time()
            await asyncio.sleep(7.0)
            for gateway in world.gateways:
                for _ in range(40):
                    group.create_task(more.send(session, gateway))
            await settled(world, load, more)
            waited = sum(UNEVEN) + 120 - len(load.codes) - len(more.codes) - SLOTS
            sys.stdout.write(f"\nRedis failed with a full room of {BOUND}: {waited} waited 7 s later\n")
            assert waited <= BOUND * 1.02
            world.go.touch()
        stayed, again = await fill_alone(world, tuple(2 * each for each in UNEVEN))
        loads.append(again)
        error = (stayed - SLOTS) / BOUND - 1
        parts = Counter(again.at[number] for number, code in again.codes.items() if code == 200)
        sys.stdout.write(f"without Redis, asked {UNEVEN}: {stayed - SLOTS} waited, {error:+.2%}: {dict(parts)}\n")
        assert abs(error) <= 0.02
        enough = asyncio.Event()
        async with client() as session, asyncio.TaskGroup() as group:
            for each in world.gateways:
                group.create_task(light.keep(session, each, enough, 1))
            await asyncio.sleep(max(1.0, began + AWAY_S - asyncio.get_running_loop().time()))
            world.redis.start()
            await asyncio.sleep(2.0)
            enough.set()
        assert set(light.codes.values()) == {200}
        await asyncio.to_thread(world.until_whole)
        stayed, last = await fill(world, (ASKED, ASKED, ASKED))
        loads.append(last)
        error = (stayed - SLOTS) / BOUND - 1
        sys.stdout.write(f"with Redis again: {stayed - SLOTS} waited, {error:+.2%}\n")
        assert abs(error) <= 0.01

    asyncio.run(main())
    for each in loads:
        assert each.broken == {}
        assert set(each.codes.values()) <= {200, 429}
    assert set(world.runs().values()) == {1}
    assert world.most_at_once() == SLOTS


MIXED = (120, 60, 60)
"""Requests by gateway when Redis fails."""
MORE = 10
"""Requests that come to each gateway in each second of the outage."""


def test_a_bound_holds_without_redis_although_each_gateway_filled_the_room_just_before(world: World) -> None:
    """Nothing ends in the first seconds without Redis; then all does, and the room fills again; then Redis is back."""
    world.deploy()
    loads: list[Load] = []

    async def wave(load: Load, counts: Sequence[int]) -> None:
        """Sends requests by connections of their own."""
        async with client() as session, asyncio.TaskGroup() as group:
            for gateway, count in zip(world.gateways, counts, strict=True):
                for _ in range(count):
                    group.create_task(load.send(session, gateway))

    async def sample(load: Load, group: asyncio.TaskGroup, seconds: int) -> list[int]:
        """Sends more to each gateway; returns what waits after each second, by the gateways' metrics."""
        found = []
        for _ in range(seconds):
            group.create_task(wave(load, (MORE,) * 3))
            await asyncio.sleep(1.0)
            found.append(await asyncio.to_thread(world.waiting))
        return found

    async def main() -> None:
        for number in range(3):
            counts = [BOUND + 100 if each == number else 0 for each in range(3)]
            stayed, load = await fill(world, counts)
            loads.append(load)
            sys.stdout.write(f"\nasked {counts}: {stayed - SLOTS} waited")
            await asyncio.sleep(QUIET_S)
        world.go.unlink()
        load = Load()
        loads.append(load)
        async with asyncio.TaskGroup() as group:
            group.create_task(wave(load, MIXED))
            await settled(world, load)
            await asyncio.sleep(2.0)
            world.redis.kill()
            full = await sample(load, group, 12)
            world.go.touch()
            await settled(world, load)
            world.go.unlink()
            group.create_task(wave(load, [2 * each for each in MIXED]))
            await settled(world, load)
            again = await sample(load, group, 15)
            world.redis.start()
            back = await sample(load, group, 8)
            world.go.touch()
        for what, found in (("full when Redis failed", full), ("filled again", again), ("Redis is back", back)):
            sys.stdout.write(f"\nbound {BOUND}, {what}: {found} waited, second by second")
        assert max(full + again + back) <= BOUND * 1.02
        assert min(full[-1], again[-1], back[-1]) >= BOUND * 0.98

    asyncio.run(main())
    for each in loads:
        assert each.broken == {}
        assert set(each.codes.values()) <= {200, 429}
    runs = world.runs()
    assert all(runs[number] == 1 for each in loads for number, code in each.codes.items() if code == 200)
    assert set(runs.values()) == {1}
    assert world.most_at_once() == SLOTS


def test_one_bound_and_all_slots_hold_over_three_gateways(world: World) -> None:
    world.deploy()

    async def main() -> None:
        for counts in ((ASKED, ASKED, ASKED), (BOUND + 100, 0, 0), (20, 20, 2 * BOUND)):
            stayed, _ = await fill(world, counts)
            error = (stayed - SLOTS) / BOUND - 1
            sys.stdout.write(f"\nroom of {BOUND}, asked {counts}: {stayed - SLOTS} waited, {error:+.2%}\n")
            assert abs(error) <= 0.01
        await asyncio.sleep(2.0)  # Each gateway knows that the room is empty.
        world.redis.kill()
        world.place.until(lambda: "waiting rooms: the workers of this machine" in world.faults(), 10.0, "the fault")
        world.place.until(world.is_each_local, 10.0, "each gateway to go by its part")
        await asyncio.sleep(6.0)  # Parts of gateways that have gone are given away after 5 s.
        stayed, _ = await fill_alone(world, (ASKED, ASKED, ASKED))
        error = (stayed - SLOTS) / BOUND - 1
        sys.stdout.write(f"without Redis: {stayed - SLOTS} waited, {error:+.2%}\n")
        assert abs(error) <= 0.02
        world.redis.start()

    asyncio.run(main())
    assert world.most_at_once() == SLOTS


def _refuses(gateway: RemoteGateway) -> bool:
    return gateway.infer().status_code == 401


@pytest.mark.deep
def test_one_quota_holds_over_three_gateways_without_redis(world: World) -> None:
    """Load is even: each gateway has a third of what was free, and of each new minute. It comes before the test of
    uneven load: parts follow the use of the last two minutes."""
    if world.place.ask("list"):
        world.place.cli("delete", "echo")
    closed_function(world.place, {"api-keys": True})
    for each in world.gateways:
        world.place.until(partial(_refuses, each), 20.0, f"the function at {each.name}")
    loads = [(f"{each.url}/v2/models/echo/infer", 12.0) for each in world.gateways]

    async def run() -> None:
        await in_one_minute(loads, 1.0, ACME)
        await asyncio.sleep(5.0)  # Each has leased its part.
        world.redis.kill()
        try:
            world.place.until(lambda: "quotas: the workers of this machine" in world.faults(), 10.0, "the fault")
            await asyncio.sleep(60.5 - time.time() % 60.0)  # A minute in which nothing is spent yet.
            found = await in_one_minute(loads, 15.0, ACME)
            parts = [each[200] for each in found]
            error = sum(parts) / QUOTA - 1
            sys.stdout.write(f"\nquota {QUOTA}/min over 3 gateways without Redis: {parts}, {error:+.2%}\n")
            assert abs(error) <= 0.02
        finally:
            world.redis.start()

    asyncio.run(run())
    world.until_whole()
    world.place.cli("delete", "echo")
    time.sleep(60.5 - time.time() % 60.0)  # The next test has a minute in which nothing is spent yet.


def test_one_quota_holds_over_three_gateways(world: World) -> None:
    if world.place.ask("list"):
        world.place.cli("delete", "echo")
    closed_function(world.place, {"api-keys": True})
    for each in world.gateways:
        world.place.until(partial(_refuses, each), 20.0, f"the function at {each.name}")
    urls = [f"{each.url}/v2/models/echo/infer" for each in world.gateways]

    async def run(rates: Sequence[float]) -> None:
        found = await in_one_minute(list(zip(urls, rates, strict=True)), 15.0, ACME)
        parts = [each[200] for each in found]
        error = sum(parts) / QUOTA - 1
        sys.stdout.write(f"\nquota {QUOTA}/min over 3 gateways: {parts}, {error:+.2%}\n")
        assert all(each.keys() <= {200, 429} for each in found), found
        assert -0.01 <= error <= 0

    asyncio.run(run((24.0, 8.0, 4.0)))
    world.place.cli("delete", "echo")


def test_commands_reach_a_function_through_a_remote_gateway(world: World) -> None:
    world.deploy(min_scale=1)
    assert world.place.status()["gateway"] in [each.url for each in world.gateways]
    said = world.place.cli("invoke", "echo", "--path", "/", code=1).stderr
    assert "status 501, wait;dur=" in said, "the model server has no POST"
    world.place.cli("delete", "echo")


def test_peers_without_the_token_get_nothing_and_two_of_one_name_are_a_fault(world: World) -> None:
    second = RemoteGateway(world.place, "edge0", world.redis.port)
    second.state = StateDirectory(world.place.folder / "second")
    second.log = world.place.folder / "second.log"
    second.start()
    try:
        world.place.until(lambda: "two gateways have this name" in world.faults(), 30.0, "the fault")
        assert world.listed().count("edge0.g0") == 1
        assert world.gateways[0].infer("none").status_code == 404, "the first one serves on"
        registrations = asyncio.run(_registrations(world))
        with httpx.Client(base_url=f"http://{registrations['edge1'].address}", trust_env=False) as peer:
            assert peer.get("/ready").status_code == 200
            for token in ("", "wrong", "\u00e9"):
                fields = [(b"tidegate-token", token.encode("latin-1"))]
                for path in ("/state", "/sample?g0", "/metrics?g0", "/activations", "/nothing"):
                    assert peer.get(path, headers=fields).status_code == 401
                assert peer.put("/table", headers=fields, content=b"{}").status_code == 401
    finally:
        second.stop()
        second.close()
    world.place.until(lambda: "two gateways" not in world.faults(), 30.0, "the fault to end")
    world.until_whole()


async def _registrations(world: World) -> dict[str, RemoteState]:
    redis = RedisGateways(world.redis.url, "blue")
    try:
        return {name: decode(value, RemoteState) for name, value in (await redis.meet()).gateways.items()}
    finally:
        await redis.close()


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_killed_gateway_costs_the_others_nothing(world: World, which: int) -> None:
    world.deploy(work_s=0.02)
    killed = world.gateways[which]

    async def main() -> Load:
        load, enough = Load(), asyncio.Event()
        async with client() as session, asyncio.timeout(30.0), asyncio.TaskGroup() as group:
            for each in world.gateways:
                group.create_task(load.keep(session, each, enough, 8))
            await asyncio.sleep(1.5)
            await asyncio.to_thread(killed.kill)
            await asyncio.sleep(2.0)
            enough.set()
        return load

    load = asyncio.run(main())
    world.place.until(lambda: killed.name not in world.listed(), 20.0, "the killed gateway to be forgotten")
    killed.start()
    world.until_whole()
    assert {load.at[number] for number in load.broken} == {killed.name}, "its clients see closed connections"
    assert set(load.codes.values()) == {200}
    runs = world.runs()
    assert all(runs[number] == 1 for number, code in load.codes.items() if code == 200), "nothing is lost or runs twice"
    assert all(count == 1 for count in runs.values())
    assert world.most_at_once(frozenset(load.broken)) <= SLOTS
    answered = Counter(load.at[number] for number in load.codes)
    sys.stdout.write(f"\nanswered {dict(answered)}, {len(load.broken)} connections broken at {killed.name}\n")


def test_serving_goes_on_without_redis_and_from_an_empty_one(world: World) -> None:
    world.deploy(work_s=0.01)
    restarted = world.gateways[2]

    async def main() -> Load:
        load, enough = Load(), asyncio.Event()
        async with client() as session, asyncio.TaskGroup() as group:
            for each in world.gateways[:2]:
                group.create_task(load.keep(session, each, enough, 3))
            await asyncio.sleep(0.5)
            world.redis.kill()
            for file in (world.place.folder / "redis").rglob("*.aof*"):
                file.unlink()
            await asyncio.to_thread(restarted.kill)
            before = len(restarted.text)
            restarted.start()
            found = await asyncio.to_thread(
                world.place.until, lambda: " serves " in restarted.text[before:], 20.0, "a start from the last table"
            )
            assert found and "from table" in restarted.text
            await load.send(session, restarted)
            world.redis.start()
            await asyncio.sleep(1.0)
            enough.set()
        return load

    load = asyncio.run(main())
    assert load.broken == {}
    assert set(load.codes.values()) == {200}
    assert restarted.name in load.at.values(), "it serves from its last table"
    assert "redis: serving goes on from table" in world.gateways[0].text
    world.until_whole()
    world.deploy()  # The emptied Redis has the newest table again: each gateway answers for the new revision.


def test_a_gateway_cut_off_from_redis_serves_and_wakes_functions(world: World) -> None:
    world.deploy()
    cut = world.gateways[0]
    cut.line.cut()
    try:
        world.place.until(lambda: "redis: serving goes on" in world.fault_of("edge0"), 15.0, "the fault in status")
        assert "redis: serving goes on from table" in cut.text
        world.deploy(name="woken", min_scale=0)  # Its table comes over the link, and so goes the demand.
    finally:
        cut.line.join()
    world.until_whole()
    world.place.cli("delete", "woken")


def test_gateways_serve_and_start_without_control_process_and_redis(world: World) -> None:
    world.deploy()
    world.place.kill()
    world.redis.kill()
    gateway = world.gateways[1]
    gateway.kill()
    before = len(gateway.text)
    gateway.start()
    world.place.until(lambda: " serves " in gateway.text[before:], 30.0, "a start from the last table")
    paths = [f"{each.url}/functions/echo/7" for each in world.gateways]
    assert [httpx.get(path, timeout=20.0, trust_env=False).status_code for path in paths] == [200, 200, 200]
    world.redis.start()
    world.place.up()
    world.until_whole()
    world.deploy()


def test_an_older_control_process_cannot_overwrite_the_table_and_a_new_one_is_above_it(world: World) -> None:
    """A table of a greater epoch is in Redis, as from a leader that has taken over."""
    world.deploy()

    async def main() -> None:
        redis = RedisGateways(world.redis.url, "blue")
        try:
            there = await redis.table((-1, -1))
            assert there is not None
            assert await redis.put_table((0, 10**6), b"older") != (0, 10**6)
            assert await redis.table((-1, -1)) == there
            newer = replace(decode(there, RouteTable), epoch=50, number=1)
            assert await redis.put_table(newer.version, encode(newer)) == (50, 1)
        finally:
            await redis.close()

    asyncio.run(main())
    world.place.until(lambda: "50.1 of another control process is there" in world.faults(), 15.0, "the fault")
    world.place.until(lambda: world.listed().count('"50.1"') == 3, 15.0, "all gateways to work from it")
    world.place.kill()
    world.place.up()
    world.until_whole()
    assert world.place.status()["epoch"] == 51
    world.deploy()

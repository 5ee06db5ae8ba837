"""An edge under chaos: what is done to its processes, and what its journals, logs and clients say about it.

:class:`ChaosEdge` plays the control process under fire: it puts another pair in the place of a dead replica and another
process in the place of a dead worker, on the same listening socket, as the real one does.
"""

import asyncio
import json
import random
import re
import signal
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from tests.support.deadline import Patience, within
from tests.support.live.commands import GATEWAY, MODEL_SERVER
from tests.support.live.live_edge import ENDS, Edge, Process, Replica, begin, client, infer, table
from tests.support.live.raw_clients import End, Load, Outcome
from tidegate.records.codec import encode
from tidegate.records.route_table import RouteTable

TIMEOUT_S = 10.0
"""Of the function."""
SHRINK_S = 1.0
"""After a limit was lowered, credits that were granted before may still come."""


class ChaosEdge(Edge):
    """Remembers what was done to whom and when (seconds of ``time.monotonic``)."""

    def __init__(self, directory: Path, *, journals: bool = True) -> None:
        super().__init__(directory)
        self._journals = journals
        self.is_logged = True
        self.number = 0
        self.timeout_s = TIMEOUT_S
        """Of the function in the tables that are sent from now on."""
        self.living: list[Replica] = []
        self.retired: list[Process] = []
        """Workers that were asked to end after a successor had started."""
        self.admins: list[str] = []
        self.worker_kills: list[tuple[int, float]] = []
        self.replica_kills: list[float] = []
        self.deeds: list[tuple[float, str]] = []
        """What was done, and when it began."""
        self.stops: list[tuple[float, float]] = []
        """From when to when a process stood still, or none was there."""
        self.limits_of: dict[str, list[tuple[float, int]]] = {}
        """Per replica: from when which limit was ordered."""
        self.exit_codes: Counter[str] = Counter()

    # --- processes --------------------------------------------------------------------------------------------------

    def start_model(self, upstream: str, *, delay_s: float = 0.0, declared: int = 0) -> Process:
        del delay_s, declared
        arguments = ["--listen", upstream, "--fast"]
        if self._journals:
            arguments += ["--journal", str(self.directory / f"{Path(upstream).stem}.journal")]
        return self._spawn(MODEL_SERVER, arguments)

    async def begin(self, workers: int, limits: list[int]) -> None:
        """Everything runs and serves."""
        self.start_gateway(workers, apart=True)
        self.admins = [self.gateway_admin(index) for index in range(workers)]
        await asyncio.gather(*(self.add_replica(limit) for limit in limits))
        await self.tell()

    async def add_replica(self, limit: int) -> Replica:
        replica = self.start_replica(limit=str(limit))
        self.limits_of[replica.id] = [(monotonic(), limit)]
        await self.replica_ready(replica)
        self.living.append(replica)
        return replica

    def route_table(self) -> RouteTable:
        limit_s = self.timeout_s
        return table(self.number, *self.living, workers=len(self.workers), timeout_s=limit_s, max_wait_s=limit_s)

    async def tell(self) -> None:
        """A new route table, on the disk and in every worker."""
        self.number += 1
        encoded = encode(self.route_table())
        (self.directory / "routes.json").write_bytes(encoded)
        for index, admin in enumerate(self.admins):
            await self.answered(admin, "/healthz")
            async with client(admin) as http:
                answer = await http.put("/table", content=encoded)
                assert answer.json() == {"epoch": 5, "number": self.number}, (index, answer.text)

    def succeed(self, index: int) -> Process:
        """Another process for a worker's place, on the same listening socket; the process that had it."""
        config = json.loads((self.directory / f"g{index}.json").read_text())
        admin = self.directory / f"g{index}.{len(self.logs)}.sock"
        config["admin"] = str(admin)
        file = admin.with_suffix(".json")
        file.write_text(json.dumps(config))
        self.admins[index] = f"unix:{admin}"
        before = self.workers[index]
        self.workers[index] = self._spawn(GATEWAY, ["--config", str(file)], fds=(config["listen_fd"],))
        return before

    async def ended(self, process: Process, within_s: float) -> int:
        code = await asyncio.to_thread(process.wait, within_s)
        self.exit_codes[str(code)] += 1
        return code

    # --- what is done to them ---------------------------------------------------------------------------------------

    async def kill_worker(self, index: int) -> None:
        began = monotonic()
        self.worker_kills.append((index, began))
        self.workers[index].kill()
        self.succeed(index).wait()
        await self.answered(self.admins[index], "/healthz")
        self.stops.append((began, monotonic()))

    async def retire_worker(self, index: int) -> None:
        """A successor accepts, then the worker is asked to end: it answers what it accepted, and no request is lost."""
        before = self.succeed(index)
        await self.answered(self.admins[index], "/healthz")
        before.send_signal(signal.SIGTERM)
        self.retired.append(before)

    async def stop(self, process: Process, for_s: float) -> None:
        began = monotonic()
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(for_s)
        process.send_signal(signal.SIGCONT)
        self.stops.append((began, monotonic()))

    async def kill_replica(self, replica: Replica, *, proxy: bool) -> None:
        """One process of the pair dies; the other one is ended, and another pair takes their place."""
        assert replica.model is not None
        self.replica_kills.append(monotonic())
        (replica.proxy if proxy else replica.model).kill()
        if not proxy:
            await self.reached(replica, "failed")
            replica.proxy.send_signal(signal.SIGTERM)
            await self.ended(replica.proxy, 20.0)
        replica.model.kill()
        for process in (replica.proxy, replica.model):
            await asyncio.to_thread(process.wait)
        self.living.remove(replica)
        await self.add_replica(self.limits_of[replica.id][-1][1])
        await self.tell()

    async def replace_replica(self, replica: Replica) -> None:
        """Another pair, then scale-in: drained, then ended. Nothing may be lost."""
        await self.add_replica(self.limits_of[replica.id][-1][1])
        await self.tell()
        assert (await self.order(replica, "drain", epoch=5)).status_code == 200
        await self.reached(replica, "drained")
        self.living.remove(replica)
        await self.tell()
        replica.proxy.send_signal(signal.SIGTERM)
        await self.ended(replica.proxy, 20.0)
        assert replica.model is not None
        replica.model.kill()

    async def resize(self, replica: Replica, limit: int) -> None:
        self.limits_of[replica.id].append((monotonic(), limit))
        assert (await self.order(replica, "limit", epoch=5, limit=limit)).status_code == 200

    # --- what is left -----------------------------------------------------------------------------------------------

    async def quiet(self) -> list[str]:
        """Waits until no counter says that anything is under way; the ones that still do after 10 s."""
        patience = Patience(10.0)
        while True:
            found = await self._counters()
            if not found or patience.is_over:
                return found
            await asyncio.sleep(0.05)

    async def _counters(self) -> list[str]:
        found = []
        for admin in self.admins:
            for demand in (await self.sample(admin))["demands"]:
                under_way = demand["arrivals"] - sum(demand[end] for end in ENDS)
                if under_way or demand["waiting"]:
                    found.append(f"{admin}: {under_way} under way, {demand['waiting']} waiting")
        for replica in self.living:
            sample = await self.sample(replica.admin)
            model = await self.stats(replica)
            if sample["in_flight"] or sample["queued"] or model["running"]:
                found.append(f"{replica.id}: {sample['in_flight']} in flight, {sample['queued']} queued, model {model}")
        return found

    async def all_slots_work(self) -> None:
        """No slot and no credit was lost: every worker by itself gets all slots of all replicas at once."""
        capacity = sum(self.limits_of[replica.id][-1][1] for replica in self.living)
        for index in range(len(self.workers)):
            async with self.client(index) as http, within(30.0):
                requests = [begin(infer(http, x_work_ms="2000")) for _ in range(capacity)]
                while True:
                    running = [(await self.stats(each))["running"] for each in self.living]
                    if sum(running) == capacity:
                        break
                    done = [request.result().text for request in requests if request.done()]
                    assert not done, f"g{index}: {running} of {capacity} slots, and an answer: {done[0]}"
                assert {answer.status_code for answer in await asyncio.gather(*requests)} == {200}

    async def end(self) -> None:
        """Everybody is asked to end, and does."""
        for process in (*self.workers, *(replica.proxy for replica in self.living)):
            process.send_signal(signal.SIGTERM)
        for process in (*self.workers, *self.retired, *(replica.proxy for replica in self.living)):
            await self.ended(process, 30.0)

    def close(self) -> None:
        for process in self.retired:
            if process.poll() is None:
                process.kill()
            process.wait()
        super().close()

    # --- judgement --------------------------------------------------------------------------------------------------

    def complaints(self) -> list[str]:
        """Lines of the logs that no healthy process writes."""
        found = []
        for log in self.logs:
            text = log.read_text(errors="replace")
            if re.search(r"Traceback|Error|Exception|Warning|never retrieved", text):
                found.append(f"{log.name}: {text[:2000]}")
        return found

    def journal(self) -> "Journal":
        return Journal(self.directory.glob("*.journal"), self.limits_of)


class Journal:
    """What the model servers wrote down."""

    def __init__(self, files: Iterable[Path], limits_of: Mapping[str, list[tuple[float, int]]]) -> None:
        self.starts: dict[str, list[str]] = defaultdict(list)
        """Per request: the replicas that began it."""
        self.ends: Counter[str] = Counter()
        self.over: list[str] = []
        """Beginnings above the limit."""
        self.at: dict[tuple[str, str], float] = {}
        """Seconds of ``time.monotonic`` of each line, by kind and request; ``L`` by replica."""
        self.most = 0
        for file in files:
            replica = file.stem
            for line in file.read_text().splitlines():
                kind, name, at, *more = line.split(" ")
                self.at[kind, replica if kind == "L" else name] = int(at) / 1e9
                if kind == "S":
                    self.starts[name].append(replica)
                    self._start(replica, name, int(at) / 1e9, int(more[0]), limits_of[replica])
                elif kind == "E":
                    self.ends[name] += 1

    def _start(self, replica: str, name: str, at: float, running: int, limits: list[tuple[float, int]]) -> None:
        """The limit was the largest one that was in force at any time of the last second."""
        self.most = max(self.most, running)
        in_force = [
            limit
            for number, (since, limit) in enumerate(limits)
            if since <= at and (number + 1 == len(limits) or limits[number + 1][0] > at - SHRINK_S)
        ]
        if running > max(in_force):
            self.over.append(f"{replica} began {name} at {at:.3f} as number {running} of {max(in_force)}")

    @property
    def twice(self) -> dict[str, list[str]]:
        """Requests with a name that began more than once, and where."""
        return {name: where for name, where in self.starts.items() if len(where) > 1 and name != "-"}


def faults(world: ChaosEdge, journal: Journal, load: Load) -> list[str]:
    """What no client should have seen, in words."""
    found = []
    for outcome in load.outcomes:
        if why := _fault(world, journal, outcome, load.lags.granted_s(outcome.began, outcome.ended)):
            deeds = [f"{deed} at {at:.3f}" for at, deed in world.deeds if outcome.began - 6.0 < at < outcome.ended]
            found.append(f"{outcome}: {why}; {', '.join(deeds)}")
    return found


def _fault(world: ChaosEdge, journal: Journal, outcome: Outcome, late_s: float) -> str:
    began, ended = outcome.began, outcome.ended
    stopped_s = sum(max(0.0, min(end, ended) - max(start, began)) for start, end in world.stops)
    limit_s = (TIMEOUT_S if outcome.deadline_s is None else outcome.deadline_s) + 1.0
    limit_s += stopped_s + late_s + outcome.slow_s
    worker_died = any(who == outcome.worker and began - 0.1 <= at <= ended for who, at in world.worker_kills)
    replica_died = any(began - 0.5 <= at <= ended for at in world.replica_kills)
    if outcome.took_s > limit_s or outcome.end is End.HUNG:
        return f"hung, {limit_s:.1f} s were allowed"
    if outcome.end is End.CANCELLED:
        return ""
    if outcome.end is End.CLOSED:
        if worker_died:
            return ""
        if outcome.reused and outcome.name not in journal.starts:
            return ""  # an idle connection closed, and nothing was begun: the client may send it again
        return "closed, and its worker lived"
    if outcome.end is End.BROKEN:
        return "" if worker_died or replica_died else "cut off, and nothing had died"
    if outcome.status == 200:
        if journal.ends[outcome.name] != 1:
            return "answered 200, and no replica had answered"
        return "" if outcome.is_right else f"another answer than its own: {outcome.body[:100]!r}"
    if outcome.status == 502:
        return "" if replica_died else "502, and no replica had died"
    if outcome.status == 504 and outcome.deadline_s is not None:
        return "" if outcome.took_s >= outcome.deadline_s * 0.9 else "504 before its deadline"
    return "an answer that nothing explains"


class Monkey:
    """Does random things to a :class:`ChaosEdge`, one after the other, for some seconds."""

    def __init__(self, world: ChaosEdge, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self.done: Counter[str] = Counter()

    async def rage(self, seconds: float) -> None:
        """Every kind of deed in turn, each round in another order; one round at least."""
        deeds: list[Callable[[], Awaitable[None]]] = [
            self.kill_worker,
            self.retire_worker,
            self.stop_worker,
            self.stop_proxy,
            self.stop_model,
            self.kill_model,
            self.kill_proxy,
            self.replace_replica,
            self.resize,
            self.resize,
            self.new_table,
        ]
        until, is_first = monotonic() + seconds, True
        while is_first or monotonic() < until:
            self._rng.shuffle(deeds)
            for deed in deeds:
                await asyncio.sleep(self._rng.uniform(0.1, 0.8))
                if monotonic() > until and not is_first:
                    return
                self._world.deeds.append((monotonic(), deed.__name__))
                await deed()
                self.done[deed.__name__] += 1
            is_first = False

    def _worker(self) -> int:
        return self._rng.randrange(len(self._world.workers))

    def _replica(self) -> Replica:
        return self._rng.choice(self._world.living)

    async def kill_worker(self) -> None:
        await self._world.kill_worker(self._worker())

    async def retire_worker(self) -> None:
        await self._world.retire_worker(self._worker())

    async def stop_worker(self) -> None:
        await self._world.stop(self._world.workers[self._worker()], self._rng.uniform(0.05, 0.6))

    async def stop_proxy(self) -> None:
        await self._world.stop(self._replica().proxy, self._rng.uniform(0.05, 0.4))

    async def stop_model(self) -> None:
        model = self._replica().model
        assert model is not None
        await self._world.stop(model, self._rng.uniform(0.05, 0.4))

    async def kill_model(self) -> None:
        await self._world.kill_replica(self._replica(), proxy=False)

    async def kill_proxy(self) -> None:
        await self._world.kill_replica(self._replica(), proxy=True)

    async def replace_replica(self) -> None:
        await self._world.replace_replica(self._replica())

    async def resize(self) -> None:
        await self._world.resize(self._replica(), self._rng.randint(1, 5))

    async def new_table(self) -> None:
        self._rng.shuffle(self._world.living)
        await self._world.tell()


def summary(world: ChaosEdge, monkey: Monkey, journal: Journal, outcomes: list[Outcome]) -> dict[str, Any]:
    """Figures of one run, for people."""
    return {
        "requests": len(outcomes),
        "ends": dict(Counter(f"{each.end} {each.status or ''}".strip() for each in outcomes)),
        "kinds": dict(Counter(each.kind for each in outcomes)),
        "deeds": dict(monkey.done),
        "most_at_a_model": journal.most,
        "longest_s": round(max(each.took_s for each in outcomes), 3),
        "exit_codes": dict(world.exit_codes),
    }

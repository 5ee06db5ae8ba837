"""Virtual-time simulation of conversations and the caches of their replicas: how often affinity finds a prompt there.

Users come at random, pick one of four system prompts (half of them the first), and hold conversations whose prompt
grows by each answer and question: log-normal lengths, some seven turns, pauses to read and think. A model server keeps
the blocks of 256 bytes that it has seen, the least recently used go first; what it does not have it computes before it
answers. Every minute a replica is added or taken away, its cache with it. The choice is the real waiting room's, of one
gateway worker or two, which get the requests at random and hold half of the slots each. What differs between two lines
of a load is ``hash-on`` alone:

- ``prefix``: by the index of what was sent where
- ``prompt``: consistent hashing with bounded loads by the prompt's first KB
- ``session``: the same by a name that each conversation sends
- ``none``: ``spread: most-free``, no affinity

Two more loads are of agents: instructions and tools of 20 to 40 KB that all conversations of one kind begin with. In
the last two the replicas are of two accelerators, to which the weights give half of the requests each.

Prints one JSON line per load, cache, number of workers and rule: blocks found over blocks asked for, after a warm-up;
time to the first token; the busiest replica over the mean; requests that waited; the most that an index remembered.

    python -m benchmarks.micro.affinity_sim [--seconds 1200]
"""

import argparse
import heapq
import json
import random
import zlib
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Final

from tests.support.worlds.routes import table
from tidegate.activator.commands import Link
from tidegate.activator.prefixes import BLOCK_BYTES, block_hashes
from tidegate.activator.room import WaitingRoom
from tidegate.activator.state.bind import Affinity, Bind
from tidegate.flow.messages import Grant, State, Welcome
from tidegate.function import ConcurrencyUnit
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import RouteTable, Spread

REVISION: Final = "f-00001"
RULES: Final = ("prefix", "prompt", "session", "none")
SLOTS: Final = 16
BLOCK_S: Final = 0.02
"""To compute a block of some 64 tokens: 3200 tokens per second."""
TOKEN_S: Final = 0.02
WARM: Final = 0.15
"""Share of the time at the beginning that is not counted."""
CHANGE_S: Final = 60.0
"""A replica comes or goes so often."""
SYSTEMS: Final = (6144, 2048, 1024, 4096)
AGENTS: Final = (40_000, 24_000, 20_000, 32_000)
"""Bytes of system prompts, the first one of half of the conversations."""


@dataclass(frozen=True, slots=True)
class Load:
    users_per_s: float
    """Conversations that begin."""
    cache_blocks: int
    """Cache blocks of each replica."""
    seconds: float = 1200.0
    replicas: int = 8
    workers: int = 1
    seed: int = 1
    systems: tuple[int, ...] = SYSTEMS
    groups: int = 1
    """Groups of replicas with equal weights."""


@dataclass(frozen=True, slots=True)
class Result:
    hit_rate: float
    first_token_p50_s: float
    first_token_p95_s: float
    busiest: float
    """Running requests of the busiest replica over the mean, averaged over arrivals."""
    waited: float
    """Share of the requests that found no free slot."""
    requests: int
    remembered_blocks: int


class Conversation:
    """A prompt that grows, and the chain of its blocks."""

    __slots__ = ("_point", "_rest", "blocks", "left", "name", "text")

    def __init__(self, name: int, system: bytes, turns: int) -> None:
        self.name = b"chat %d" % name
        self.text = b""
        self.blocks: list[int] = []
        """Hashes of all whole blocks; the index sees the first of them."""
        self.left = turns
        self._rest = b""
        self._point = 0
        self.say(system)

    def say(self, text: bytes) -> None:
        self.text += text
        self._rest += text
        while len(self._rest) >= BLOCK_BYTES:
            self._point = zlib.crc32(self._rest[:BLOCK_BYTES], self._point)
            self.blocks.append(self._point)
            self._rest = self._rest[BLOCK_BYTES:]


class Server:
    """A model server's cache and its work."""

    __slots__ = ("cache", "running")

    def __init__(self) -> None:
        self.cache: OrderedDict[int, None] = OrderedDict()
        self.running = 0

    def hits(self, blocks: list[int]) -> int:
        found = 0
        while found < len(blocks) and blocks[found] in self.cache:
            found += 1
        return found

    def keep(self, blocks: list[int], most: int) -> None:
        for point in reversed(blocks):
            self.cache[point] = None
            self.cache.move_to_end(point)
        while len(self.cache) > most:
            self.cache.popitem(last=False)


class Simulation:
    """One load under one rule. What users say and how long they think does not depend on the rule."""

    def __init__(self, load: Load, rule: str) -> None:
        self._load = load
        self._rule = rule
        self._rooms = [WaitingRoom(rng=random.Random(load.seed), worker_index=n) for n in range(load.workers)]
        self._door = random.Random(load.seed + 2)
        self._servers: dict[str, Server] = {}
        self._replicas: list[str] = []
        self._made = self._number = self._serial = 0
        self._now = 0.0
        self._events: list[tuple[float, int, str, object]] = []
        rng = random.Random(load.seed)
        self._systems = [rng.randbytes(size) for size in load.systems]
        self._talk = random.Random(load.seed + 1)
        self._hits = self._blocks = self._asked = self._waited = self._remembered = 0
        self._first: list[float] = []
        self._busiest: list[float] = []

    def _at(self, seconds: float, kind: str, what: object = None) -> None:
        self._serial += 1
        heapq.heappush(self._events, (self._now + seconds, self._serial, kind, what))

    def _publish(self) -> None:
        self._number += 1
        spread = Spread.MOST_FREE if self._rule == "none" else Spread.HASH
        routes: RouteTable = table(
            [(name, f"gpu-{int(name[-5:]) % self._load.groups}") for name in self._replicas],
            number=self._number,
            spread=spread,
            queue_requests=10**6,
        )
        for room in self._rooms:
            assert room.apply(routes, self._now)
            self._act(room)

    def _add(self) -> None:
        self._made += 1
        name = f"{REVISION}-{self._made:05d}"
        self._replicas.append(name)
        self._servers[name] = Server()
        self._publish()

    def _open(self, room: WaitingRoom, name: str) -> None:
        slots = SLOTS // len(self._rooms)
        room.linked(name, self._now)
        room.heard(name, Welcome(name, SLOTS, ConcurrencyUnit.REQUESTS), self._now)
        room.heard(name, State(ReplicaState.READY), self._now)
        room.heard(name, Grant(tuple((number, 1) for number in range(1, slots + 1))), self._now)

    def _act(self, room: WaitingRoom) -> None:
        while room.out or room.unsettled:
            if room.unsettled:
                room.settle(self._now)
            commands = room.out[:]
            room.out.clear()
            for command in commands:
                if type(command) is Link:
                    self._open(room, command.replica)
                elif type(command) is Bind:
                    self._run(room, command)

    def _key(self, one: Conversation) -> Affinity | None:
        match self._rule:
            case "prefix":
                return block_hashes(one.text)
            case "prompt":
                return one.text[:1024]
            case "session":
                return one.name
        return None

    def _ask(self, one: Conversation) -> None:
        running = [self._servers[name].running for name in self._replicas]
        if self._is_counted and any(running):
            self._busiest.append(max(running) * len(running) / sum(running))
        room = self._door.choice(self._rooms)
        found = room.arrive((one, self._now), REVISION, 1, 1e9, self._now, key=self._key(one))
        self._asked += self._is_counted
        if type(found) is Bind:
            self._run(room, found)
        else:
            assert found is None
            self._waited += self._is_counted
        self._act(room)

    @property
    def _is_counted(self) -> bool:
        return self._now > WARM * self._load.seconds

    def _run(self, room: WaitingRoom, bind: Bind) -> None:
        assert isinstance(bind.request, tuple)
        one, asked = bind.request
        server = self._servers[bind.replica.id]
        hits = server.hits(one.blocks)
        compute_s = (len(one.blocks) - hits + 1) * BLOCK_S
        if self._is_counted:
            self._hits += hits
            self._blocks += len(one.blocks)
            self._first.append(self._now - asked + compute_s)
        server.running += 1
        talk = random.Random(len(one.text) + zlib.crc32(one.name))  # The same answer under each rule.
        tokens = min(2000, int(talk.lognormvariate(5.0, 0.7)))
        self._at(compute_s + tokens * TOKEN_S, "end", (room, bind, server, one, talk, 4 * tokens))

    def _end(
        self, room: WaitingRoom, bind: Bind, server: Server, one: Conversation, talk: random.Random, answer: int
    ) -> None:
        server.running -= 1
        one.say(talk.randbytes(answer))
        server.keep(one.blocks, self._load.cache_blocks)
        one.left -= 1
        if one.left:
            one.say(talk.randbytes(min(16_384, int(4 * talk.lognormvariate(4.0, 1.0)))))
            self._at(talk.expovariate(1 / 12), "ask", one)
        room.answered(bind, True, self._now)
        self._act(room)
        index = room._fleet.revisions[REVISION].prefixes
        self._remembered = max(self._remembered, index.size)

    def _begin(self, number: int) -> None:
        talk = self._talk
        one = Conversation(
            number, self._systems[talk.choice((0, 0, 0, 1, 2, 3))], 1 + min(30, int(talk.expovariate(1 / 6)))
        )
        one.say(talk.randbytes(min(16_384, int(4 * talk.lognormvariate(4.5, 1.0)))))
        self._at(0.0, "ask", one)
        self._at(talk.expovariate(self._load.users_per_s), "begin", number + 1)

    def _change(self, number: int) -> None:
        """One more, one more, one less, one less; the one that goes is an old one."""
        if number % 4 < 2:
            self._add()
        else:
            self._replicas.pop(number % len(self._replicas))
            self._publish()
        self._at(CHANGE_S, "change", number + 1)

    def run(self) -> Result:
        for _ in range(self._load.replicas):
            self._add()
        for room in self._rooms:
            room.arrive("first", REVISION, 1, 1e9, 0.0)
            room.withdraw("first", 0.0)
            self._act(room)
        self._at(0.0, "begin", 1)
        self._at(CHANGE_S, "change", 0)
        while self._events[0][0] < self._load.seconds:
            self._now, _, kind, what = heapq.heappop(self._events)
            if kind == "end":
                assert isinstance(what, tuple)
                self._end(*what)
            elif kind == "ask":
                assert isinstance(what, Conversation)
                self._ask(what)
            else:
                assert isinstance(what, int)
                (self._begin if kind == "begin" else self._change)(what)
        first = sorted(self._first)
        return Result(
            hit_rate=round(self._hits / self._blocks, 4),
            first_token_p50_s=round(first[len(first) // 2], 3),
            first_token_p95_s=round(first[int(0.95 * len(first))], 3),
            busiest=round(sum(self._busiest) / len(self._busiest), 3),
            waited=round(self._waited / self._asked, 4),
            requests=self._asked,
            remembered_blocks=self._remembered,
        )


def main() -> None:
    """Prints a line per load, cache and rule."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1200.0)
    arguments = parser.parse_args()
    loads = [
        Load(users_per_s, cache_blocks, arguments.seconds, workers=workers)
        for users_per_s in (1.0, 2.0, 3.0)
        for cache_blocks, workers in ((1000, 1), (4000, 1), (4000, 2))
    ]
    loads += [Load(2.0, 4000, arguments.seconds, workers=workers, systems=AGENTS) for workers in (1, 2)]
    loads += [Load(2.0, 4000, arguments.seconds, workers=workers, groups=2) for workers in (1, 2)]
    for load in loads:
        for rule in RULES:
            line = {"benchmark": "affinity_sim", "hash_on": rule} | asdict(load)
            print(json.dumps(line | asdict(Simulation(load, rule).run())), flush=True)


if __name__ == "__main__":
    main()

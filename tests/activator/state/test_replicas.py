"""Tenants on different gateway workers: two worlds of waiting rooms and slot ledgers under virtual time."""

import heapq
import random
from collections import Counter
from collections.abc import Hashable

import pytest

from tests.support.worlds.slot_world import Action, End, Flight, Job, Replica, World
from tidegate.flow.fair_queue import TenantCharge

HOP_S = 0.0001
S_PER_TOKEN = 0.0001


class Closed:
    """Closed loops of tenants, each at one worker: (tenant, worker, tokens of its requests, loops, weight)."""

    def __init__(self, *callers: tuple[str, int, int, int, float], workers: int, slots: tuple[int, ...]) -> None:
        self._heap: list[tuple[float, int, Action]] = []
        self._last: dict[Hashable, float] = {}
        self._serial = 0
        self._rng = random.Random(1)
        self.world = World(self._post, workers=workers, limits=slots, serve=self._serve, is_checked=False)
        self.tokens: Counter[str] = Counter()
        self._callers = callers

    def _post(self, key: Hashable, action: Action) -> None:
        when = self.world.now + HOP_S * (1 + self._rng.random())
        if isinstance(key, tuple) and key[0] in ("up", "worker") and "answer" not in key:
            when = max(when, self._last.get(key, 0.0))
            self._last[key] = when
        self._at(when, action)

    def _at(self, when: float, action: Action) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (when, self._serial, action))

    def _serve(self, world: World, replica: Replica, flight: Flight) -> None:
        claim = flight.job.claim
        assert claim is not None
        self._at(world.now + claim.cost * S_PER_TOKEN, lambda: world.finish(replica, flight))

    def _ask(self, tenant: str, worker: int, tokens: int, weight: float) -> None:
        cost = tokens * self._rng.uniform(0.7, 1.3)
        job = Job(0, 1, worker, self.world.now, claim=TenantCharge(tenant, weight, cost))

        def ends(end: End) -> None:
            assert end is End.ANSWERED
            self.tokens[tenant] += int(cost)
            self._at(self.world.now + HOP_S, lambda: self._ask(tenant, worker, tokens, weight))

        job.ends = ends  # type: ignore[method-assign]  # an event, without polling
        self.world.arrive_job(self.world.workers[worker], job, timeout_s=1e9)

    def run(self, seconds: float) -> Counter[str]:
        world = self.world
        for replica in world.replicas.values():
            replica.ledger.ready(world.now)
            replica.act()
        for tenant, worker, tokens, loops, weight in self._callers:
            for _ in range(loops):
                self._ask(tenant, worker, tokens, weight)
        until = world.now + seconds
        while world.now < until:
            wakes = [replica.ledger.next_wakeup() for replica in world.replicas.values()]
            due = min((wake for wake in wakes if wake is not None), default=1e18)
            if due < self._heap[0][0]:
                world.now = max(world.now, due)
                world.wake()
            else:
                world.now, _, action = heapq.heappop(self._heap)
                action()
        return self.tokens


@pytest.mark.parametrize("slots", [(1,), (2,), (2, 2)])
def test_each_tenant_at_a_worker_of_its_own_still_has_equal_tokens(slots: tuple[int, ...]) -> None:
    """A flood of large ones at one worker, small ones at the other: arrivals alone would give them one request each."""
    tokens = Closed(("large", 0, 2000, 60, 1.0), ("small", 1, 200, 20, 1.0), workers=2, slots=slots).run(60.0)
    assert 0.9 < tokens["large"] / tokens["small"] < 1.1, tokens


def test_a_worker_counts_as_much_as_the_tenants_that_wait_there() -> None:
    tokens = Closed(
        ("a", 0, 400, 20, 1.0), ("b", 0, 900, 20, 1.0), ("c", 1, 300, 20, 1.0), ("d", 1, 300, 20, 3.0),
        workers=2, slots=(2,),
    ).run(100.0)  # fmt: skip
    unit = sum(tokens.values()) / 6
    for tenant, weight in {"a": 1, "b": 1, "c": 1, "d": 3}.items():
        assert abs(tokens[tenant] / weight / unit - 1) < 0.1, tokens

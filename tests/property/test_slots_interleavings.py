"""Slot ledgers and waiting rooms together, under every interleaving that hypothesis can think of.

Messages, requests and answers wait in mailboxes (in order per channel, in any order between them) until a rule lets one
arrive. Meanwhile clients of all priorities come and go, workers are killed and stopped, replicas crash, drain, revive,
are resized, ejected and admitted, route tables change weights, sizes and binding, and time passes. After every step the
world checks that the model runs no more than the limit, that no credit is held twice, that every request ends once and
runs where it may, and that all counters agree. At the end everything is allowed to come to rest: then every request
must have ended, and no credit may be lost.
"""

import random
from collections.abc import Hashable, Mapping

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.support.worlds.routes import table
from tests.support.worlds.slot_world import End, Flight, Job, Mailboxes, Replica, Worker, World
from tidegate.flow.fair_queue import TenantCharge
from tidegate.function import ConcurrencyUnit
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import Binding, RouteTable, Spread

TIMEOUTS_S = (0.3, 60.0)
SIZES: tuple[dict[str, tuple[int, int | None]] | None, ...] = (
    None,
    {"a": (1, 4), "b": (1, None)},
    {"a": (1, 1), "b": (2, None)},
    {"a": (2, 4), "b": (1, 1)},
)
"""Which requests the groups serve: all, overlapping, apart, not all."""
TENANTS: tuple[tuple[str | None, ...], ...] = ((None,), (None, "small", "large", "large"))
"""Of the walks with even and with odd numbers."""
REST_S = 0.05
RESTS = 60
"""The world comes to rest within 60 * 50 ms: far less than the deadline of most requests."""


class Slots(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.mail = Mailboxes()
        self.table_number = 1

    @initialize(
        workers=st.integers(1, 4),
        limits=st.lists(st.sampled_from([1, 1, 2, 4]), min_size=1, max_size=3),
        unit=st.sampled_from(list(ConcurrencyUnit)),
        ready=st.booleans(),
        spread=st.sampled_from(list(Spread)),
        queue_requests=st.sampled_from([10_000, 10_000, 12]),
    )
    def build(
        self,
        workers: int,
        limits: list[int],
        unit: ConcurrencyUnit,
        ready: bool,
        spread: Spread = Spread.MOST_FREE,
        queue_requests: int = 10_000,
    ) -> None:
        self.unit = unit
        self.spread = spread
        self.queue_requests = queue_requests
        self.kinds = [(f"r{index}", "ab"[index % 2]) for index in range(len(limits))]
        self.split_answers = False
        self.world = World(
            self.mail,
            workers=workers,
            limits=tuple(limits),
            unit=unit,
            route_table=self._table(self.kinds, 1),
            serve=self._serve,
        )
        if ready:
            for replica in self.world.replicas.values():
                replica.ledger.ready(self.world.now)
                replica.act()
            self.mail.deliver_all()

    def _table(
        self,
        replicas: list[tuple[str, str]],
        number: int,
        weights: dict[str, float] | None = None,
        sizes: Mapping[str, tuple[int, int | None]] | None = None,
        binding: Binding = Binding.LATE,
    ) -> RouteTable:
        return table(
            replicas,
            number=number,
            workers=4,
            weights=weights,
            unit_inferences=self.unit is ConcurrencyUnit.INFERENCES,
            mu_ips={"a": 10.0, "b": 100.0},
            sizes=sizes,
            binding=binding,
            spread=self.spread,
            queue_requests=self.queue_requests,
        )

    def _serve(self, world: World, replica: Replica, flight: Flight) -> None:
        """Half of the answers come whole, half with time between head and end."""
        if self.split_answers:
            world.post(("finish", world.serial()), lambda: world.answer_head(replica, flight))
        else:
            world.post_finish(replica, flight)
        self.split_answers = not self.split_answers

    def _worker(self, number: int) -> Worker:
        return self.world.workers[number % len(self.world.workers)]

    def _replica(self, number: int) -> Replica:
        return self.world.replicas[f"r{number % len(self.world.replicas)}"]

    # --- the network ---

    def _can_arrive(self) -> list[Hashable]:
        """Mailboxes whose reader is not stopped."""
        return [
            key
            for key in self.mail.boxes
            if not (isinstance(key, tuple) and key[0] == "worker" and self.world.workers[key[1]].stopped)
        ]

    @rule(choices=st.lists(st.integers(0, 1000), min_size=1, max_size=12))
    def some_arrive(self, choices: list[int]) -> None:
        for choice in choices:
            keys = self._can_arrive()
            if keys:
                self.mail.deliver(keys[choice % len(keys)])

    # --- clients ---

    @rule(
        number=st.integers(0, 3),
        sizes=st.lists(st.sampled_from([1, 2, 9]), min_size=1, max_size=4),
        patient=st.booleans(),
        priority=st.sampled_from([0, 5, 5, 9]),
        tenant=st.sampled_from(TENANTS[1]),
    )
    def clients_come(
        self, number: int, sizes: list[int], patient: bool, priority: int = 5, tenant: str | None = None
    ) -> None:
        worker = self._worker(number)
        if not worker.stopped:
            for size in sizes:
                again = len(self.world.jobs) % 2 == 0
                claim = None if tenant is None else TenantCharge(tenant, 1.0 + number, size * 10.0 ** len(tenant))
                self.world.arrive(worker, size, TIMEOUTS_S[patient], priority, again=again, claim=claim)

    @rule(number=st.integers(0, 3), size=st.sampled_from([1, 9]), avoided=st.integers(0, 2))
    def a_hedge_comes(self, number: int, size: int, avoided: int) -> None:
        worker = self._worker(number)
        if not worker.stopped and len(self.kinds) > 1:
            self.world.arrive(worker, size, TIMEOUTS_S[1], 5, self._replica(avoided).id)

    @rule(number=st.integers(0, 3), size=st.sampled_from([1, 9]))
    def a_shadow_comes(self, number: int, size: int) -> None:
        worker = self._worker(number)
        if not worker.stopped:
            self.world.arrive_spare(worker, size)

    @rule(number=st.integers(0, 3), choice=st.integers(0, 1000))
    def client_goes(self, number: int, choice: int) -> None:
        worker = self._worker(number)
        jobs = sorted(worker.jobs, key=lambda job: job.number)
        if jobs and not worker.stopped:
            self.world.cancel(worker, jobs[choice % len(jobs)])

    @rule(number=st.integers(0, 2), size=st.sampled_from([1, 2, 9]))
    def stranger_comes(self, number: int, size: int) -> None:
        self.world.visit(self._replica(number), size)

    # --- what breaks ---

    @rule(number=st.integers(0, 3))
    def worker_is_killed(self, number: int) -> None:
        self.world.kill_worker(self._worker(number))

    @rule(number=st.integers(0, 3))
    def worker_stops_or_goes_on(self, number: int) -> None:
        worker = self._worker(number)
        worker.stopped = not worker.stopped

    @rule(number=st.integers(0, 3), choice=st.integers(0, 2))
    def channel_breaks(self, number: int, choice: int) -> None:
        wires = [wire for wire in self._worker(number).wires.values() if not wire.cut]
        if wires:
            self.world.break_channel(wires[choice % len(wires)])

    @rule(number=st.integers(0, 2))
    def replica_crashes(self, number: int) -> None:
        self.world.crash_replica(self._replica(number))

    @rule(number=st.integers(0, 3), replica=st.integers(0, 2), seconds=st.sampled_from([0.04, 0.5, 1.0]))
    def replica_is_ejected(self, number: int, replica: int, seconds: float) -> None:
        worker = self._worker(number)
        if not worker.stopped:
            worker.room.eject(self._replica(replica).id, self.world.now, self.world.now + seconds)
            worker.act()

    @rule(number=st.integers(0, 3), replica=st.integers(0, 2))
    def replica_is_admitted(self, number: int, replica: int) -> None:
        worker = self._worker(number)
        if not worker.stopped:
            worker.room.readmit(self._replica(replica).id, self.world.now)
            worker.act()

    # --- control ---

    @rule(number=st.integers(0, 2))
    def replica_is_ready(self, number: int) -> None:
        replica = self._replica(number)
        if replica.ledger.state is ReplicaState.STARTING:
            replica.ledger.ready(self.world.now)
            replica.act()

    @rule(number=st.integers(0, 2))
    def replica_drains_or_revives(self, number: int) -> None:
        replica = self._replica(number)
        if replica.ledger.state is ReplicaState.READY:
            replica.ledger.drain(self.world.now)
        else:
            replica.ledger.revive(self.world.now)
        replica.act()

    @rule(number=st.integers(0, 2), limit=st.sampled_from([0, 1, 2, 3, 8]))
    def replica_is_resized(self, number: int, limit: int) -> None:
        replica = self._replica(number)
        replica.ledger.resize(limit, self.world.now)
        replica.act()

    @rule(
        listed=st.lists(st.booleans(), min_size=3, max_size=3),
        a=st.sampled_from([0.0, 0.5, 1.0]),
        sizes=st.sampled_from(SIZES),
        binding=st.sampled_from(list(Binding)),
    )
    def table_changes(
        self,
        listed: list[bool],
        a: float,
        sizes: Mapping[str, tuple[int, int | None]] | None = None,
        binding: Binding = Binding.LATE,
    ) -> None:
        self.table_number += 1
        replicas = [replica for replica, there in zip(self.kinds, listed, strict=False) if there]
        self._publish(replicas, {"a": a, "b": 1 - a}, sizes, binding)

    def _publish(
        self,
        replicas: list[tuple[str, str]],
        weights: dict[str, float],
        sizes: Mapping[str, tuple[int, int | None]] | None = None,
        binding: Binding = Binding.LATE,
    ) -> None:
        """Each worker hears of it in its own time."""
        self.world.table = routes = self._table(replicas, self.table_number, weights, sizes, binding)
        for worker in self.world.workers:

            def applies(worker: Worker = worker) -> None:
                worker.room.apply(routes, self.world.now)
                worker.act()

            self.mail(("worker", worker.index, "table"), applies)

    # --- time ---

    @rule(seconds=st.sampled_from([0.001, 0.03, 0.06, 0.11, 1.1]))
    def time_passes(self, seconds: float) -> None:
        self.world.advance(seconds)

    @precondition(lambda self: len(self.world.jobs) > 3)
    @rule()
    def credits_are_held_once(self) -> None:
        self.world.check_credits()

    # --- rest ---

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        for worker in world.workers:
            worker.stopped = False
        self.table_number += 1
        self._publish(self.kinds, {"a": 0.5, "b": 0.5})
        for replica in world.replicas.values():
            if replica.ledger.state is ReplicaState.STARTING:
                replica.ledger.ready(world.now)
            replica.ledger.revive(world.now)
            replica.act()
        for _ in range(RESTS):
            self.mail.deliver_all()
            world.check_credits()
            world.advance(REST_S)
        self.mail.deliver_all()
        unserved = [job for job in world.jobs if job.end is None]
        assert not unserved, f"{unserved} wait for ever; {list(world.replicas.values())}"
        world.check_nothing_lost()


Slots.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestInterleavings = Slots.TestCase


def walk(seed: int, steps: int) -> list[Job]:
    """One long random walk over the same rules, weighted as a busy system is."""
    rng = random.Random(seed)
    tenants = TENANTS[seed % 2]
    machine = Slots()
    machine.build(
        rng.randint(1, 4),
        [rng.choice([1, 1, 2, 4]) for _ in range(rng.randint(1, 3))],
        rng.choice(list(ConcurrencyUnit)),
        rng.random() < 0.7,
        rng.choice(list(Spread)),
        rng.choice([10_000, 12]),
    )
    for _ in range(steps):
        what = rng.random()
        if what < 0.5:
            machine.some_arrive([rng.randrange(1000) for _ in range(rng.randint(1, 4))])
        elif what < 0.72:
            sizes, priority = [rng.choice([1, 1, 2, 9])], rng.choice([0, 5, 9])
            machine.clients_come(rng.randrange(4), sizes, rng.random() < 0.8, priority, rng.choice(tenants))
        elif what < 0.78:
            machine.client_goes(rng.randrange(4), rng.randrange(1000))
        elif what < 0.90:
            machine.time_passes(rng.choice([0.001, 0.03, 0.06, 0.11]))
        elif what < 0.92:
            machine.stranger_comes(rng.randrange(3), rng.choice([1, 2, 9]))
        elif what < 0.93:
            machine.worker_stops_or_goes_on(rng.randrange(4))
        elif what < 0.94:
            machine.a_hedge_comes(rng.randrange(4), rng.choice([1, 9]), rng.randrange(3))
        elif what < 0.945:
            machine.a_shadow_comes(rng.randrange(4), rng.choice([1, 9]))
        elif what < 0.95:
            machine.replica_is_ejected(rng.randrange(4), rng.randrange(3), rng.choice([0.04, 0.5]))
        elif what < 0.955:
            machine.replica_is_admitted(rng.randrange(4), rng.randrange(3))
        elif what < 0.97:
            machine.replica_is_ready(rng.randrange(3))
        else:
            _something_breaks(machine, rng)
    machine.teardown()
    return machine.world.jobs


def _something_breaks(machine: Slots, rng: random.Random) -> None:
    match rng.randrange(6):
        case 5:
            machine.channel_breaks(rng.randrange(4), rng.randrange(3))
        case 0:
            machine.worker_is_killed(rng.randrange(4))
        case 1:
            machine.replica_crashes(rng.randrange(3))
        case 2:
            machine.replica_drains_or_revives(rng.randrange(3))
        case 3:
            machine.replica_is_resized(rng.randrange(3), rng.choice([0, 1, 2, 3, 8]))
        case _:
            listed = [rng.random() < 0.7 for _ in range(3)]
            machine.table_changes(listed, rng.choice([0.0, 0.5, 1.0]), rng.choice(SIZES), rng.choice(list(Binding)))


def calm_walk(seed: int, steps: int) -> None:
    """No process is stopped and messages take no time, in any order: then nothing may rely on time to heal.

    At each rest all that came must have ended, no credit may be lost, none was refused and none was voided.
    """
    rng = random.Random(seed)
    tenants = TENANTS[seed % 2]
    machine = Slots()
    machine.build(
        rng.randint(1, 4),
        [rng.choice([1, 1, 2, 4]) for _ in range(rng.randint(1, 2))],
        rng.choice(list(ConcurrencyUnit)),
        True,
        rng.choice(list(Spread)),
    )
    world = machine.world
    for step in range(steps):
        what = rng.random()
        if what < 0.55:
            machine.some_arrive([rng.randrange(1000) for _ in range(rng.randint(1, 4))])
        elif what < 0.85:
            sizes, priority = [rng.choice([1, 1, 2, 9])], rng.choice([0, 5, 9])
            machine.clients_come(rng.randrange(4), sizes, True, priority, rng.choice(tenants))
        elif what < 0.95:
            machine.client_goes(rng.randrange(4), rng.randrange(1000))
        elif what < 0.97:
            machine.stranger_comes(rng.randrange(3), rng.choice([1, 2]))
        elif what < 0.98:
            machine.worker_is_killed(rng.randrange(4))
        elif what < 0.99:
            machine.replica_drains_or_revives(rng.randrange(3))
        if step % 50 == 49:
            _rest_calmly(machine)
            world.advance(rng.choice([0.0, 0.05, 2.0]))


def _rest_calmly(machine: Slots) -> None:
    world = machine.world
    for replica in world.replicas.values():
        replica.ledger.revive(world.now)
        replica.act()
    machine.mail.deliver_all()
    unserved = [job for job in world.jobs if job.end is None]
    assert not unserved, f"{unserved} wait although all is at rest; {list(world.replicas.values())}"
    world.check_credits()
    world.check_nothing_lost()
    assert world.refusals == 0, "a credit was used that was not outstanding"
    assert world.voids == 0, "a credit was given up although its worker was heard"


@pytest.mark.parametrize("seed", range(60))
def test_calm_walks_need_no_time_to_heal(seed: int) -> None:
    calm_walk(seed, 300)


@pytest.mark.parametrize("seed", range(40))
def test_random_walks(seed: int) -> None:
    jobs = walk(seed, 250)
    assert all(job.end is not None for job in jobs)


def test_walks_reach_every_end() -> None:
    """The walks would prove little if everything broke: most requests are answered, and some meet each other end."""
    ends = [job.end for seed in range(40, 60) for job in walk(seed, 250)]
    assert ends.count(End.ANSWERED) > len(ends) / 3
    assert set(ends) == set(End)


@pytest.mark.deep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("block", range(20))
def test_many_long_walks(block: int) -> None:
    for seed in range(10_000 + block * 500, 10_500 + block * 500):
        walk(seed, 400)
        calm_walk(seed, 400)

"""One bound over all workers of a machine: several rooms that read each other's figures."""

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.support.worlds.routes import function, table
from tests.support.worlds.waiting_room import Lobby
from tidegate.flow.fair_queue import TenantCharge
from tidegate.flow.quota import Pool
from tidegate.flow.rooms.figures import Others
from tidegate.flow.rooms.leases import RoomLeases


class Machine:
    """The figures of all rooms, by worker."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, int, float]] = {}
        self.ended: set[int] = set()


class FakeBoard:
    """One worker's view of the machine."""

    def __init__(self, machine: Machine, worker: int) -> None:
        self.machine = machine
        self.worker = worker

    def of(self, function: str) -> "FakeBoard":
        return self

    def resize(self, requests: int, size: int, longest_s: float) -> None:
        pass

    def publish(self, requests: int, size: int, load: float) -> None:
        self.machine.rows[self.worker] = (requests, size, load)

    def others(self) -> Others:
        rows = [row for worker, row in self.machine.rows.items() if worker != self.worker]
        return Others(
            sum(row[0] for row in rows), sum(row[1] for row in rows), max((row[2] for row in rows), default=0.0)
        )

    def drop_ended(self) -> bool:
        dropped = [self.machine.rows.pop(worker) for worker in self.machine.ended if worker in self.machine.rows]
        return bool(dropped)


def lobbies(count: int, bound: int, machine: Machine | None = None) -> list[Lobby]:
    routes = table(workers=count, functions=[function([("r0", "cpu")], queue_requests=bound, queue_bytes=1000)])
    shared = machine or Machine()
    return [Lobby(routes, worker, board=FakeBoard(shared, worker)) for worker in range(count)]


def test_one_worker_may_have_the_whole_room() -> None:
    one, other = lobbies(2, 4)
    assert [one.arrive(name) for name in "abcde"] == ["waits"] * 4 + ["refuse e: queue_full"]
    assert other.arrive("x") == "refuse x: queue_full"
    assert one.room.withdraw("a", 1.0)
    assert other.arrive("y") == "waits"
    assert one.arrive("f") == "refuse f: queue_full"


def test_the_bound_in_bytes_holds_over_all_workers() -> None:
    one, other = lobbies(2, 100)
    assert one.arrive("a", size=900) == "waits"
    assert other.arrive("b", size=200) == "refuse b: queue_full"
    assert other.arrive("c", size=100) == "waits"


def test_a_worker_that_was_killed_takes_no_place() -> None:
    machine = Machine()
    one, other = lobbies(2, 4, machine)
    for name in "abcd":
        one.arrive(name)
    assert other.arrive("x") == "refuse x: queue_full"
    machine.ended.add(0)
    assert [other.arrive(name) for name in "pqrst"] == ["waits"] * 4 + ["refuse t: queue_full"]


def test_a_tenant_that_fills_the_room_at_one_worker_makes_place_for_another_one_elsewhere() -> None:
    one, other = lobbies(2, 8)
    for number in range(8):
        assert one.arrive(f"hog{number}", claim=TenantCharge("hog", 1.0, 1.0)) == "waits"
    assert other.arrive("small0", claim=TenantCharge("small", 1.0, 1.0)) == "waits", "beyond the bound for a moment"
    assert one.arrive("hog8", claim=TenantCharge("hog", 1.0, 1.0)) == "refuse hog8: queue_full"
    assert "refuse hog7: queue_full" in one.did()
    taken = [other.arrive(f"small{number}", claim=TenantCharge("small", 1.0, 1.0)) for number in range(1, 9)]
    assert taken.count("waits") == 3, "no more than this worker's part"


def test_requests_without_a_tenant_are_not_let_in_beyond_the_bound() -> None:
    one, other = lobbies(2, 4)
    for name in "abcd":
        one.arrive(name)
    assert other.arrive("x") == "refuse x: queue_full"


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=80), st.integers(1, 12))
def test_never_beyond_the_bound_and_never_refused_below_it(steps: list[tuple[int, bool]], bound: int) -> None:
    rooms, waiting, rng = lobbies(3, bound), dict[str, int](), random.Random(1)
    for number, (worker, arrives) in enumerate(steps):
        if arrives:
            said = rooms[worker].arrive(f"q{number}")
            assert (said == "waits") == (len(waiting) < bound)
            if said == "waits":
                waiting[f"q{number}"] = worker
        elif waiting:
            name = rng.choice(sorted(waiting))
            assert rooms[waiting.pop(name)].room.withdraw(name, 1.0)


def leased() -> tuple[Pool, list[RoomLeases], list[Lobby]]:
    """Two workers that lease the bound of four from one pool, and their rooms."""
    leases = [RoomLeases(members=2, wake=lambda: None) for _ in range(2)]
    routes = table(workers=2, functions=[function([("r0", "cpu")], queue_requests=4, queue_bytes=1000)])
    return Pool(), leases, [Lobby(routes, worker, board=leases[worker]) for worker in range(2)]


def exchange(pool: Pool, worker: int, leases: RoomLeases, lobby: Lobby, now: float) -> None:
    for name in leases.answer(pool.exchange(f"g{worker}", leases.take(now), now)):
        lobby.room.cut_back(name, now)


def test_requests_wait_on_approval_and_the_youngest_leave_if_the_bound_is_spent() -> None:
    pool, leases, lobbies_ = leased()
    one, other = lobbies_
    assert [one.arrive(name) for name in "abc"] == ["waits"] * 3
    exchange(pool, 0, leases[0], one, 1.0)
    assert [other.arrive(name) for name in "vwxyz"] == ["waits"] * 4 + ["refuse z: queue_full"]
    exchange(pool, 1, leases[1], other, 1.0)
    assert [said for said in other.did() if said.startswith("refuse")] == [
        "refuse y: queue_full",
        "refuse x: queue_full",
        "refuse w: queue_full",
    ]
    assert other.arrive("q") == "refuse q: queue_full", "known to be spent"
    assert one.room.withdraw("a", 1.0)
    exchange(pool, 0, leases[0], one, 1.1)
    exchange(pool, 1, leases[1], other, 1.2)
    assert other.arrive("r") == "waits"
    exchange(pool, 1, leases[1], other, 1.3)
    assert not [said for said in other.did() if said.startswith("refuse")]


def test_of_requests_on_approval_those_of_the_tenant_with_most_leave() -> None:
    pool, leases, lobbies_ = leased()
    one, other = lobbies_
    assert one.arrive("a") == "waits"
    exchange(pool, 0, leases[0], one, 1.0)
    for number in range(3):
        assert other.arrive(f"hog{number}", claim=TenantCharge("hog", 1.0, 1.0)) == "waits"
    assert other.arrive("small", claim=TenantCharge("small", 1.0, 1.0)) == "waits"
    exchange(pool, 1, leases[1], other, 1.0)
    assert [said for said in other.did() if said.startswith("refuse")] == ["refuse hog2: queue_full"]


def test_a_new_bound_is_leased_anew() -> None:
    pool, leases, lobbies_ = leased()
    one, _ = lobbies_
    assert [one.arrive(name) for name in "abcd"] == ["waits"] * 4
    exchange(pool, 0, leases[0], one, 1.0)
    smaller = table(workers=2, functions=[function([("r0", "cpu")], queue_requests=2, queue_bytes=1000)], number=2)
    assert one.room.apply(smaller, 1.0)
    exchange(pool, 0, leases[0], one, 1.1)
    assert one.arrive("e") == "refuse e: queue_full", "what waits stays"

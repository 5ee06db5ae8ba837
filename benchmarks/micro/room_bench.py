"""Cost of one request in the waiting room and in the slot ledger, without sockets.

Prints one JSON line: microseconds per request for the pair arrive + answered on a kept credit (the steady state), with
one and with eight replicas, by the hash of a key and by the prefix of a prompt of 4 KB, with two groups, for a tenant's
request, for a request that waits, alone, among those of eight tenants and with a bound that two workers share, and for
the ledger's start + keeps + ended.

    python -m benchmarks.micro.room_bench
"""

import json
import platform
import random
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import perf_counter

from tests.support.worlds.routes import table
from tidegate.activator.prefixes import block_hashes
from tidegate.activator.room import WaitingRoom
from tidegate.activator.state.bind import Affinity, Bind
from tidegate.aio.waiting_board import WaitingBoard
from tidegate.flow.fair_queue import TenantCharge
from tidegate.flow.messages import Grant, State, Welcome
from tidegate.flow.slots import SlotLedger
from tidegate.function import ConcurrencyUnit
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import Spread

ROUNDS = 5
REQUESTS = 20_000
REVISION = "f-00001"


def room_with(
    replicas: int,
    kinds: int = 1,
    credits: int = 4,  # noqa: A002 - the domain's word
    spread: Spread = Spread.MOST_FREE,
    board: WaitingBoard | None = None,
) -> WaitingRoom:
    """A room whose replicas are linked, ready, and have granted so many credits each."""
    room = WaitingRoom(rng=random.Random(1), board=board)
    room.apply(table([(f"r{index}", f"kind{index % kinds}") for index in range(replicas)], spread=spread), 0.0)
    room.arrive("first", REVISION, 1, 1e9, 0.0)
    room.withdraw("first", 0.0)
    for index in range(replicas):
        name = f"r{index}"
        room.linked(name, 0.0)
        room.heard(name, Welcome(name, credits, ConcurrencyUnit.REQUESTS), 0.0)
        room.heard(name, State(ReplicaState.READY), 0.0)
        room.heard(name, Grant(tuple((number, 1) for number in range(1, credits + 1))), 0.0)
    room.settle(0.0)
    room.out.clear()
    return room


def best_us(run: Callable[[], None], requests: int = REQUESTS) -> float:
    """Microseconds per request, the best of some rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = perf_counter()
        run()
        best = min(best, perf_counter() - began)
    return best / requests * 1e6


def bound_at_once(room: WaitingRoom, key: Affinity | None = None, tenants: int = 0) -> Callable[[], None]:
    """Each request finds a free slot."""
    claims = claims_of(tenants)

    def run() -> None:
        arrive, answered = room.arrive, room.answered
        for number in range(REQUESTS):
            bind = arrive(number, REVISION, 1, 1e9, 1.0, 0, 5, key, claim=claims(number))
            assert type(bind) is Bind
            answered(bind, True, 1.0)

    return run


def claims_of(tenants: int) -> Callable[[int], TenantCharge | None]:
    """Claims of requests by their number; none without tenants."""
    if not tenants:
        return lambda number: None
    return lambda number: TenantCharge(f"tenant {number % tenants}", 1.0, 100.0)


def waited(room: WaitingRoom, tenants: int = 0) -> Callable[[], None]:
    """Each request waits for the one four places before it: the room is never empty."""
    claims = claims_of(tenants)
    state = room.state  # As hosts read it.

    def run() -> None:
        running: list[Bind] = []
        for number in range(REQUESTS + 4):
            bind = room.arrive(number, REVISION, 1, 1e9, 1.0, claim=claims(number))
            if type(bind) is Bind:
                running.append(bind)
            else:
                room.answered(running.pop(0), True, 1.0)
                running.extend(command for command in room.out if type(command) is Bind)
                room.out.clear()
            if state.unsettled:
                room.settle(1.0)
        while running:
            room.answered(running.pop(), True, 1.0)
            running.extend(command for command in room.out if type(command) is Bind)
            room.out.clear()

    return run


def ledger_steady() -> Callable[[], None]:
    """A kept credit carries one request after the other."""
    ledger = SlotLedger(incarnation="one", limit=1, state=ReplicaState.STARTING)
    channel = ledger.opened("g0", 0.0)
    ledger.ready(0.0)
    number = next(iter(channel.idle))

    def run() -> None:
        start, keeps, ended = ledger.start, ledger.keeps, ledger.ended
        for _ in range(REQUESTS):
            credit = start(number, 1, None, 1.0)
            assert credit is not None
            keeps(credit, 1.0)
            ended(credit, 1.0)

    return run


def main() -> None:
    """Prints the line."""
    prompt = block_hashes(b"x" * 4096)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "waiting")
        with closing(WaitingBoard(path)), closing(WaitingBoard(path)) as board:
            shared_us = best_us(waited(room_with(1, board=board)))
    figures = {
        "arrive_answered_1_replica_us": best_us(bound_at_once(room_with(1))),
        "arrive_answered_8_replicas_us": best_us(bound_at_once(room_with(8))),
        "arrive_answered_8_hashed_us": best_us(bound_at_once(room_with(8, spread=Spread.HASH), b"user")),
        "arrive_answered_8_prefix_us": best_us(bound_at_once(room_with(8, spread=Spread.HASH), prompt)),
        "arrive_answered_2_groups_us": best_us(bound_at_once(room_with(4, kinds=2))),
        "arrive_answered_tenant_us": best_us(bound_at_once(room_with(1), tenants=8)),
        "waited_us": best_us(waited(room_with(1))),
        "waited_8_tenants_us": best_us(waited(room_with(1), tenants=8)),
        "waited_2_workers_us": shared_us,
        "ledger_steady_us": best_us(ledger_steady()),
    }
    line = {"benchmark": "room_bench", "python": platform.python_version()}
    print(json.dumps(line | {name: round(value, 2) for name, value in figures.items()}))


if __name__ == "__main__":
    main()

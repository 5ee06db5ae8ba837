"""Affinity through the whole waiting room: replicas that come, go and restart; waiting requests take what is free."""

import random

import pytest

from tests.support.worlds.routes import table
from tests.support.worlds.waiting_room import F, Lobby, lobby
from tidegate.activator.prefixes import BLOCK_BYTES, block_hashes
from tidegate.flow.messages import Grant, State, Welcome
from tidegate.function import ConcurrencyUnit
from tidegate.records.replica_state import ReplicaState
from tidegate.records.route_table import Spread

TALK = block_hashes(b"a" * 5 * BLOCK_BYTES)
LONGER = block_hashes(b"a" * 5 * BLOCK_BYTES + b"b" * 3 * BLOCK_BYTES)
NAMES = ("r1", "r2", "r3", "r4")


def opened(*names: str, limit: int = 4) -> Lobby:
    one = lobby(*names, spread=Spread.HASH)
    for name in names:
        one.ready(name, *range(1, limit + 1), limit=limit)
    return one


def where(outcome: str) -> str:
    """The replica that a request was bound to."""
    return outcome.partition(" -> ")[2].split(" ")[0]


def ask(one: Lobby, name: str, hashes: list[int]) -> str:
    """Where one request runs, alone."""
    taken = where(one.arrive(name, key=hashes))
    one.answer(name)
    return taken


def test_a_conversation_stays_where_it_began() -> None:
    one = opened(*NAMES)
    home = ask(one, "turn 1", TALK)
    assert {ask(one, f"turn {number}", LONGER) for number in range(2, 9)} == {home}
    homes = {ask(one, f"other {number}", block_hashes(bytes([number]) * 900)) for number in range(40)}
    assert homes == set(NAMES), "others are elsewhere"


def test_without_the_spread_nothing_is_remembered() -> None:
    one = lobby("r1", "r2")
    one.ready("r1", 1), one.ready("r2", 1)
    assert one.arrive("x", key=TALK).startswith("x -> ")
    assert one.room._fleet.revisions[F].prefixes.size == 0


def test_who_had_to_wait_takes_the_first_slot_that_frees() -> None:
    one = opened("r1", "r2", limit=1)
    home = where(one.arrive("turn 1", key=TALK))
    other = "r2" if home == "r1" else "r1"
    assert where(one.arrive("x", key=block_hashes(b"x"))) == other
    assert one.arrive("turn 2", key=LONGER) == "waits"
    one.did()
    assert one.answer("x")[0].startswith(f"turn 2 -> {other}")
    one.answer("turn 1")
    one.answer("turn 2")
    assert ask(one, "turn 3", LONGER) == other, "where most of it is now"


def test_a_replica_that_left_or_began_anew_is_forgotten() -> None:
    one = opened(*NAMES)
    home = ask(one, "turn 1", TALK)
    index = one.room._fleet.revisions[F].prefixes
    assert index.size == len(TALK)
    one.room.unlinked(home, 1.0)
    one.ready(home, 9)
    assert index.size == len(TALK), "the channel broke, the same process is there"
    one.room.linked(home, 2.0)
    fresh = Welcome("i2", 4, ConcurrencyUnit.REQUESTS)
    one.hear(home, fresh, State(ReplicaState.READY), Grant(((11, 1),)))
    assert index.size == 0
    assert ask(one, "turn 2", TALK) == home and index.size == len(TALK), "the hash has not changed"
    rest = [name for name in NAMES if name != home]
    assert one.room.apply(table([(name, "cpu") for name in rest], number=2, spread=Spread.HASH), 3.0)
    assert index.size == 0
    assert ask(one, "turn 3", TALK) in rest


def two_groups(weights: dict[str, float], mu_ips: dict[str, float] | None = None) -> Lobby:
    """Two replicas of each of two accelerators."""
    kinds = [("r1", "cpu"), ("r2", "cpu"), ("r3", "gpu"), ("r4", "gpu")]
    one = Lobby(table(kinds, weights=weights, mu_ips=mu_ips, spread=Spread.HASH))
    one.arrive("first")
    one.room.withdraw("first", 0.0)
    one.did()
    for name in NAMES:
        one.ready(name, 1, 2, 3, 4, limit=4)
    return one


def test_conversations_keep_to_their_group_and_the_weights_hold() -> None:
    one = two_groups({"cpu": 1.0, "gpu": 3.0})
    talks = [b"%d" % number * 5 * BLOCK_BYTES for number in range(12)]
    rng = random.Random(5)
    taken = {"cpu": 0, "gpu": 0}
    moves = turns = 0
    homes: dict[int, str] = {}
    for turn in range(600):
        number = rng.randrange(len(talks))
        if rng.random() < 0.15:
            talks[number] = rng.randbytes(5 * BLOCK_BYTES)  # It is over, and somebody begins another one.
            homes.pop(number, None)
        talks[number] += rng.randbytes(BLOCK_BYTES)
        found = ask(one, f"turn {turn}", block_hashes(talks[number]))
        kind = "cpu" if found in ("r1", "r2") else "gpu"
        taken[kind] += 1
        assert abs(taken["gpu"] - 3 * taken["cpu"]) <= 16, "never far from the weights"
        if number in homes:
            turns += 1
            moves += homes[number] != found
        homes[number] = found
    assert moves < turns / 5
    assert abs(taken["cpu"] - 150) <= 4


def test_sessions_keep_to_their_group_and_the_weights_hold() -> None:
    one = two_groups({"cpu": 1.0, "gpu": 3.0})
    rng = random.Random(3)
    taken: dict[str, list[str]] = {}
    cpu = 0
    for turn in range(800):
        name = rng.randrange(24)
        found = where(one.arrive(f"turn {turn}", key=b"session %d" % name))
        one.answer(f"turn {turn}")
        taken.setdefault(str(name), []).append("cpu" if found in ("r1", "r2") else "gpu")
        cpu += found in ("r1", "r2")
        assert abs(turn + 1 - 4 * cpu) <= 16
    mostly = sum(max(each.count("cpu"), each.count("gpu")) for each in taken.values())
    assert mostly > 0.85 * 800
    assert {max(each, key=each.count) for each in taken.values()} == {"cpu", "gpu"}


@pytest.mark.parametrize("kind", ["alike", "all different", "some talks", "bytes"])
@pytest.mark.parametrize("seed", range(4))
def test_none_waits_while_a_slot_is_free(kind: str, seed: int) -> None:
    one = two_groups({"cpu": 1.0, "gpu": 2.0})
    room = one.room._fleet.revisions[F]
    replicas = [replica for group in room.groups for replica in group.replicas]
    rng = random.Random(seed)
    running: list[str] = []
    waiting: list[str] = []
    most = 0
    for number in range(400):
        if running and rng.random() < 0.49:
            for outcome in one.answer(running.pop(rng.randrange(len(running)))):
                if " -> " in outcome:
                    waiting.remove(outcome.partition(" -> ")[0])
                    running.append(outcome.partition(" -> ")[0])
        else:
            text = {"alike": b"x", "all different": b"%d" % number}.get(kind, b"%d" % rng.randrange(8)) * 2000
            outcome = one.arrive(f"q{number}", key=text[:9] if kind == "bytes" else block_hashes(text))
            (running if " -> " in outcome else waiting).append(f"q{number}")
        assert room.waiting == len(waiting)
        assert not waiting or not any(replica.free for replica in replicas)
        assert max(replica.in_flight for replica in replicas) <= 4
        most = max(most, len(waiting))
    assert most > 0


def test_a_deadline_decides_before_a_prompt_does() -> None:
    one = two_groups({"cpu": 1.0, "gpu": 1.0}, mu_ips={"cpu": 1.0, "gpu": 100.0})
    slow = {ask(one, "turn 1", TALK), ask(one, "turn 2", LONGER)}
    assert len(slow) == 1 and slow < {"r1", "r2"}, "the other group is owed more, and does not know it"
    assert where(one.arrive("turn 3", key=LONGER, deadline=1.0)) in ("r3", "r4")


def test_a_model_keeps_to_the_replicas_that_have_it() -> None:
    one = opened(*NAMES)
    home = ask(one, "first", [77])
    assert {ask(one, f"again {number}", [77]) for number in range(6)} == {home}
    assert {where(one.arrive(f"r{number}", key=[77])) for number in range(3)} == {home}
    spilled = where(one.arrive("r3", key=[77]))
    assert spilled != home, "more than its part of the load"
    for number in range(4):
        one.answer(f"r{number}")
    assert {ask(one, f"later {number}", [77]) for number in range(6)} <= {home, spilled}

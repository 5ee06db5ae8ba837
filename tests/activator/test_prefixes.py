"""The prefix index: what it remembers and forgets, the replica that it chooses; and a day of conversations,
compared."""

import heapq
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tidegate.activator.choice import place_of, preferred
from tidegate.activator.prefixes import (
    BLOCK_BYTES,
    FINE_BYTES,
    MAX_BLOCKS,
    PROMPT_BYTES,
    REPLICA_BLOCKS,
    REPLICA_MODELS,
    PrefixIndex,
    block_hashes,
    blocks_per_replica,
)


@dataclass(eq=False)
class Server:
    """A replica as the index sees it."""

    id: str
    free: int = 100
    in_flight: int = 0
    ready: bool = True
    cache: "OrderedDict[int, None]" = field(default_factory=OrderedDict)
    """The real cache of its model server."""

    def __post_init__(self) -> None:
        self.place = place_of(self.id)

    def fits(self, inferences: int) -> bool:
        return True


def servers(count: int) -> list[Server]:
    return [Server(f"f-00001-{index:05d}") for index in range(count)]


def prompt(blocks: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(blocks * BLOCK_BYTES)


def test_a_chain_grows_with_the_prompt() -> None:
    short, long = block_hashes(prompt(3)), block_hashes(prompt(3) + b"more" * 100)
    assert len(short) == 3 and long[:3] == short and len(long) == 4
    other = block_hashes(b"x" + prompt(3)[1:])
    assert not set(other) & set(short), "a block stands for all before it"
    assert block_hashes(prompt(3), b"adapter")[0] != short[0]
    assert len(block_hashes(bytes(PROMPT_BYTES))) == len(block_hashes(bytes(2 * PROMPT_BYTES))) == MAX_BLOCKS
    assert block_hashes(b"short") != block_hashes(b"other") and len(block_hashes(b"")) == 1


def test_what_follows_a_long_beginning_is_distinguished_in_larger_blocks() -> None:
    """Agents share tens of KB of instructions and tools."""
    shared = prompt(40_000 // BLOCK_BYTES)
    one, other = (block_hashes(shared + prompt(16, seed=seed)) for seed in (1, 2))
    same = [a for a, b in zip(one, other, strict=True) if a == b]
    assert len(same) == (FINE_BYTES + (len(shared) - FINE_BYTES) // 8) // BLOCK_BYTES
    assert len(one) > len(same)
    index: PrefixIndex[Server] = PrefixIndex()
    group = servers(4)
    index.record(group[1], one)
    index.record(group[2], other)
    assert index.choose(group, one, 1) is group[1] and index.choose(group, other, 1) is group[2]


def test_the_beginning_that_was_sent_is_known() -> None:
    index: PrefixIndex[Server] = PrefixIndex()
    one, other = servers(2)
    index.record(one, block_hashes(prompt(5)))
    for blocks in range(1, 6):
        assert index.match(one, block_hashes(prompt(5)[: blocks * BLOCK_BYTES] + prompt(3, seed=1))) == blocks
    assert index.match(one, block_hashes(prompt(9, seed=2))) == index.match(other, block_hashes(prompt(5))) == 0
    index.forget(one.id)
    assert index.match(one, block_hashes(prompt(5))) == 0


def test_what_was_not_used_for_longest_is_forgotten_from_its_end() -> None:
    index: PrefixIndex[Server] = PrefixIndex(replica_blocks=8)
    (one,) = servers(1)
    index.record(one, block_hashes(prompt(4)))
    index.record(one, block_hashes(prompt(4, seed=1)))
    index.record(one, block_hashes(prompt(1)))
    index.record(one, block_hashes(prompt(2, seed=2)))
    assert index.match(one, block_hashes(prompt(4))) == 2
    assert index.match(one, block_hashes(prompt(4, seed=1))) == 4
    assert len(index._sent[one.id]) == 8


def test_bisection_is_right_whatever_was_forgotten() -> None:
    rng = random.Random(3)
    index: PrefixIndex[Server] = PrefixIndex(replica_blocks=40)
    (one,) = servers(1)
    chains = [
        block_hashes(prompt(2, seed=1000 + number % 3) + prompt(rng.randrange(1, 20), seed=number))
        for number in range(20)
    ]
    for _ in range(400):
        hashes = rng.choice(chains)
        hashes = hashes[: rng.randrange(1, len(hashes) + 1)]
        index.record(one, hashes)
        for hashes in chains:
            known = [point in index._sent[one.id] for point in hashes]
            assert index.match(one, hashes) == sum(known)
            assert sorted(known, reverse=True) == known, "a beginning, without holes"


def test_the_replica_that_knows_most_is_chosen_while_it_has_no_more_than_its_part() -> None:
    index: PrefixIndex[Server] = PrefixIndex()
    group = servers(4)
    index.record(group[2], block_hashes(prompt(6)))
    index.record(group[1], block_hashes(prompt(3)))
    assert index.choose(group, block_hashes(prompt(8)), 1) is group[2]
    group[2].in_flight = 9
    assert index.choose(group, block_hashes(prompt(8)), 1) is group[1]
    for server in group:
        server.in_flight = 9
    assert index.choose(group, block_hashes(prompt(8)), 1) is group[2]
    group[2].free = 0
    assert index.choose(group, block_hashes(prompt(8)), 1) is group[1]
    for server in group:
        server.free = 0
    assert index.choose(group, block_hashes(prompt(8)), 1) is None


def test_the_more_a_replica_knows_the_more_it_may_run() -> None:
    index: PrefixIndex[Server] = PrefixIndex()
    group = servers(2)
    index.record(group[0], block_hashes(prompt(8)))
    group[0].in_flight, group[1].in_flight = 14, 6
    # The mean is 10.5: 1.25 times are 13.1; 1.5 times and one more are 16.75, a quarter of the way is 14.03.
    assert index.choose(group, block_hashes(prompt(8) + prompt(24, seed=1)), 1) is group[0]
    group[0].in_flight, group[1].in_flight = 16, 4
    assert index.choose(group, block_hashes(prompt(8) + prompt(24, seed=1)), 1) is group[1]
    assert index.choose(group, block_hashes(prompt(8)), 1) is group[0]
    group[0].in_flight, group[1].in_flight = 17, 3
    assert index.choose(group, block_hashes(prompt(8)), 1) is group[1]


def test_where_adapters_share_replicas_the_one_that_has_it_loaded_takes_what_is_new() -> None:
    index: PrefixIndex[Server] = PrefixIndex()
    group = servers(6)
    index.record(group[3], block_hashes(prompt(2), b"adapter"))
    for seed in range(1, 20):
        assert index.choose(group, block_hashes(prompt(2, seed=seed), b"adapter"), 1) is group[3]
    others = {index.choose(group, block_hashes(prompt(2, seed=seed), b"other"), 1) for seed in range(40)}
    assert len(others) == 1, "no replica has it: one replica loads it"


def test_of_models_few_are_remembered() -> None:
    index: PrefixIndex[Server] = PrefixIndex(blocks_per_replica("model"))
    group = servers(3)
    for number in range(30):
        index.record(group[0], [number])
        assert index.size <= REPLICA_MODELS
    assert index.match(group[0], [29]) == 1 and index.match(group[0], [21]) == 0
    assert blocks_per_replica("prefix") == REPLICA_BLOCKS


def test_only_one_with_a_free_slot_takes_it_though_it_has_more_than_its_part() -> None:
    index: PrefixIndex[Server] = PrefixIndex()
    group = servers(3)
    group[0].in_flight = 50
    group[1].free = group[2].free = 0
    assert index.choose(group, block_hashes(prompt(2)), 1) is group[0]


def test_conversations_with_one_beginning_spread_and_workers_agree() -> None:
    """Both workers know the system prompt on all replicas, and neither the conversation."""
    group = servers(4)
    workers: list[PrefixIndex[Server]] = [PrefixIndex(), PrefixIndex()]
    for worker in workers:
        for server in group:
            worker.record(server, block_hashes(prompt(8)))
    taken = set()
    for number in range(40):
        hashes = block_hashes(prompt(8) + prompt(2, seed=number + 1))
        one, other = (worker.choose(group, hashes, 1) for worker in workers)
        assert one is other and one is not None
        taken.add(one.id)
    assert len(taken) == 4


# --- a simulation ---------------------------------------------------------------------------------------------------

Choose = Callable[[list[Server], list[int], bytes, bytes], Server | None]


def by_prefix(group: list[Server], hashes: list[int], text: bytes, session: bytes) -> Server | None:
    """Bounded-load hashing of the prompt's beginning."""
    return preferred(group, text[:256], 1)


def by_session(group: list[Server], hashes: list[int], text: bytes, session: bytes) -> Server | None:
    """Bounded-load hashing of a key that the client would have to send."""
    return preferred(group, session, 1)


def simulate(choose: Choose, seed: int, slots: int = 8, cache_blocks: int = 4000) -> tuple[float, float]:
    """(hit rate in blocks, requests that the busiest replica has above the mean) of multi-turn conversations.

    Eight replicas; four system prompts of 2 KB, the first of them half of the traffic; turns of 0.5 to 3 KB, a
    thinking client between them; what is not in the cache takes time. Caches are smaller than the index believes.
    """
    rng = random.Random(seed)
    group = servers(8)
    systems = [rng.randbytes(2048) for _ in range(4)]
    events: list[tuple[float, int, str, int]] = []
    texts: list[bytes] = []
    for number in range(300):
        system = systems[rng.choice((0, 0, 0, 1, 2, 3))]
        texts.append(system + rng.randbytes(rng.randrange(512, 3072)))
        events.append((rng.uniform(0, 120), number, "ask", rng.randrange(2, 9)))
    heapq.heapify(events)
    running: dict[int, Server] = {}
    hits = blocks = 0
    skew: list[float] = []
    while events:
        now, number, kind, left = heapq.heappop(events)
        if kind == "end":
            server = running.pop(number)
            server.in_flight -= 1
            server.free += 1
            texts[number] += rng.randbytes(rng.randrange(512, 3072))
            if left > 1:
                heapq.heappush(events, (now + rng.expovariate(1 / 4), number, "ask", left - 1))
            continue
        for server in group:
            server.free = slots - server.in_flight
        hashes = block_hashes(texts[number])
        taken = choose(group, hashes, texts[number], b"%d" % number)
        if taken is None:
            heapq.heappush(events, (now + 0.05, number, "ask", left))
            continue
        hit = 0
        while hit < len(hashes) and hashes[hit] in taken.cache:
            hit += 1
        hits += hit
        blocks += len(hashes)
        for point in reversed(hashes):
            taken.cache[point] = None
            taken.cache.move_to_end(point)
        while len(taken.cache) > cache_blocks:
            taken.cache.popitem(last=False)
        taken.in_flight += 1
        running[number] = taken
        loads = [server.in_flight for server in group]
        skew.append(max(loads) - sum(loads) / len(loads))
        heapq.heappush(events, (now + 0.5 + 0.03 * (len(hashes) - hit), number, "end", left))
    return hits / blocks, sum(skew) / len(skew)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("cache_blocks", [300, 4000])
def test_the_index_hits_at_least_as_often_as_bounded_hashing(seed: int, cache_blocks: int) -> None:
    index: PrefixIndex[Server] = PrefixIndex(replica_blocks=2000)

    def by_index(group: list[Server], hashes: list[int], text: bytes, session: bytes) -> Server | None:
        server = index.choose(group, hashes, 1)
        if server is not None:
            index.record(server, hashes)
        return server

    ours, our_skew = simulate(by_index, seed, cache_blocks=cache_blocks)
    theirs, their_skew = simulate(by_prefix, seed, cache_blocks=cache_blocks)
    keyed, _ = simulate(by_session, seed, cache_blocks=cache_blocks)
    assert ours >= theirs
    assert ours >= keyed
    assert our_skew <= their_skew + 1.0, "a replica that knows the prompt may run one more"

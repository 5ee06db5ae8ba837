"""Choice of group and replica: shares in inferences, deficits that stay bounded, the spreads."""

import random
import zlib
from collections import Counter
from dataclasses import dataclass
from math import ceil

import pytest

from tidegate.activator.choice import (
    DEFICIT_LIMIT,
    LOAD_BOUND,
    Pick,
    distance,
    earliest_finish,
    expected_s,
    largest_deficit,
    place_of,
    preferred,
    replica_pick,
    update_deficits,
)
from tidegate.records.route_table import Spread


@dataclass(eq=False)
class Slots:
    """A replica with so many free slots, of so many units at most."""

    name: str
    free: int
    largest: int = 10**6

    def fits(self, inferences: int) -> bool:
        return inferences <= self.largest


@dataclass(eq=False)
class Server:
    """A replica as the hash sees it."""

    name: str
    free: int = 100
    in_flight: int = 0
    ready: bool = True

    def __post_init__(self) -> None:
        self.place = place_of(self.name)

    def fits(self, inferences: int) -> bool:
        return True


def servers(count: int) -> list[Server]:
    return [Server(f"f-00001-{index:05d}") for index in range(count)]


@dataclass(eq=False)
class Share:
    name: str
    share: float
    deficit: float = 0.0
    ready: int = 1


@dataclass(eq=False)
class Line:
    """A replica without a limit."""

    in_flight: int = 0


def lines(*in_flight: int) -> list[Line]:
    return [Line(count) for count in in_flight]


def taken(groups: list[Share], sizes: list[int], free: list[list[Share]] | None = None) -> Counter[str]:
    """Inferences per group when requests of these sizes are bound one after the other."""
    total = sum(group.share for group in groups)
    counts: Counter[str] = Counter()
    for number, size in enumerate(sizes):
        able = groups if free is None else free[number]
        group = largest_deficit(able, total, size)
        update_deficits(groups, group, total, size, DEFICIT_LIMIT * size)
        counts[group.name] += size
    return counts


def test_shares_are_exact_and_smooth() -> None:
    groups = [Share("a", 0.5), Share("b", 0.3), Share("c", 0.2)]
    assert taken(groups, [1] * 10) == {"a": 5, "b": 3, "c": 2}
    order = []
    for _ in range(10):
        group = largest_deficit(groups, 1.0, 1)
        update_deficits(groups, group, 1.0, 1, DEFICIT_LIMIT)
        order.append(group.name)
    assert "aaa" not in "".join(order), "spread out, not in blocks"


def test_shares_count_inferences_not_requests() -> None:
    rng = random.Random(7)
    groups = [Share("a", 3), Share("b", 1)]
    counts = taken(groups, [rng.choice([1, 32]) for _ in range(4000)])
    assert counts["a"] / counts.total() == pytest.approx(0.75, abs=0.01)


def in_line(groups: list[Share], mu: list[float], requests: int, utilisation: float, seed: int) -> Counter[str]:
    """Requests per group where each stands in line at its group, one replica each."""
    rng = random.Random(seed)
    total = sum(group.share for group in groups)
    ends: list[list[float]] = [[] for _ in groups]
    counts: Counter[str] = Counter()
    now = 0.0
    for _ in range(requests):
        now += rng.expovariate(utilisation * sum(mu))
        for line in ends:
            line[:] = [end for end in line if end > now]
        index = earliest_finish(groups, lines(*(len(line) for line in ends)), 1.0, 1)
        update_deficits(groups, groups[index], total, 1, DEFICIT_LIMIT)
        ends[index].append((ends[index][-1] if ends[index] else now) + 1.0 / mu[index])
        counts[groups[index].name] += 1
    return counts


@pytest.mark.parametrize("utilisation", [0.1, 0.5, 0.9])
def test_where_requests_stand_in_line_the_shares_hold_whatever_the_lines(utilisation: float) -> None:
    groups = [Share("a10", 1.0), Share("l4", 0.6), Share("h100", 3.2)]
    counts = in_line(groups, [1.0, 0.6, 3.2], 4800, utilisation, 1)
    assert [counts[name] for name in ("a10", "l4", "h100")] == pytest.approx([1000, 600, 3200], abs=DEFICIT_LIMIT)


def test_shares_that_are_no_rates_hold_as_well() -> None:
    """An operator gives the slow group half of the traffic."""
    counts = in_line([Share("slow", 0.5), Share("fast", 0.5)], [1.0, 9.0], 2000, 0.15, 2)
    assert counts["slow"] == pytest.approx(1000, abs=DEFICIT_LIMIT)


def test_an_idle_quick_group_comes_first_and_a_long_line_is_left_to_others() -> None:
    slow, fast = groups = [Share("slow", 1.0), Share("fast", 4.0)]
    assert earliest_finish(groups, lines(0, 0), 1.0, 1) == 1
    assert earliest_finish(groups, lines(0, 2), 1.0, 1) == 1
    assert earliest_finish(groups, lines(0, 4), 1.0, 1) == 0, "one at a fifth of the rate, or five at four fifths"
    assert earliest_finish(groups, lines(0, 1), 4.0, 1) == 0, "three other workers have as many in line"
    assert earliest_finish(groups, lines(0, 1), 4.0, 64) == 1, "next to so much of its own that line is nothing"
    fast.ready = 4
    assert earliest_finish(groups, lines(0, 1), 1.0, 1) == 0, "four replicas share the rate: each has a quarter"
    slow.deficit = 5.0
    assert earliest_finish(groups, lines(0, 0), 1.0, 1) == 0, "it has fallen behind"


def test_an_old_debt_never_becomes_a_burst() -> None:
    """b has no free slot for a thousand requests; when it has, it catches up sixteen of them, not five hundred."""
    a, b = Share("a", 1), Share("b", 1)
    taken([a, b], [1] * 1000, [[a]] * 1000)
    assert b.deficit == DEFICIT_LIMIT
    assert taken([a, b], [1] * 100) == {"a": 50 - DEFICIT_LIMIT, "b": 50 + DEFICIT_LIMIT}


def test_expected_time_follows_from_limit_and_rate() -> None:
    assert expected_s(8, 4, counts_inferences=False, replica_ips=64.0) == 0.5
    assert expected_s(8, 32, counts_inferences=True, replica_ips=64.0) == 0.5
    assert expected_s(64, 32, counts_inferences=True, replica_ips=64.0) == 1.0


def test_equal_keys_prefer_one_replica_and_different_keys_all() -> None:
    replicas = servers(8)
    first = [preferred(replicas, b"user %d" % number, 1) for number in range(4000)]
    assert first == [preferred(replicas, b"user %d" % number, 1) for number in range(4000)]
    counts = Counter(replica.name for replica in first if replica is not None)
    expected = 4000 / 8
    assert sum((counts[replica.name] - expected) ** 2 / expected for replica in replicas) < 24.32, "99.9 % of 7 degrees"


@pytest.mark.parametrize("count", [2, 8, 50])
def test_one_more_replica_takes_its_part_of_the_keys_and_moves_no_other(count: int) -> None:
    """About 1/(n+1) of the keys move, all of them to the new one; and back when it goes."""
    before, after = servers(count), servers(count + 1)
    moved = 0
    for number in range(4000):
        key = b"user %d" % number
        old, new = preferred(before, key, 1), preferred(after, key, 1)
        assert old is not None and new is not None
        if old.name != new.name:
            moved += 1
            assert new is after[-1]
    share = 4000 / (count + 1)
    assert moved == pytest.approx(share, abs=5 * share**0.5)


def test_the_load_of_a_preferred_replica_is_bounded() -> None:
    """All requests have one key: no replica runs more than 1.25 times the mean, rounded up."""
    replicas = servers(8)
    for number in range(1, 401):
        replica = preferred(replicas, b"the same", 1)
        assert replica is not None
        replica.in_flight += 1
        assert max(one.in_flight for one in replicas) <= ceil(LOAD_BOUND * number / 8)
    assert max(one.in_flight for one in replicas) > 400 / 8, "the preferred one has more than its part"


def test_a_preference_never_makes_a_request_wait() -> None:
    replicas = servers(4)
    favourite = preferred(replicas, b"k", 1)
    assert favourite is not None
    favourite.free = 0
    second = preferred(replicas, b"k", 1)
    assert second is not None and second is not favourite
    for replica in replicas:
        replica.free = 0
        replica.in_flight = 5
    replicas[3].free, replicas[3].in_flight = 1, 50
    assert preferred(replicas, b"k", 1) is replicas[3], "far above the bound, and the only one with a free slot"
    replicas[3].free = 0
    assert preferred(replicas, b"k", 1) is None


def picks(spread: Spread, replicas: list[Slots], times: int, inferences: int = 1) -> Counter[str]:
    rng = random.Random(3)
    pick: Pick[Slots] = replica_pick(spread)
    counts: Counter[str] = Counter()
    turn = 0
    for _ in range(times):
        replica = pick(replicas, turn, inferences, rng)
        assert replica is not None
        turn = replicas.index(replica) + 1
        counts[replica.name] += 1
    return counts


@pytest.mark.parametrize("spread", list(Spread))
@pytest.mark.parametrize("count", [1, 3, 40])
def test_only_free_replicas_that_fit_are_chosen(spread: Spread, count: int) -> None:
    replicas = [Slots(f"r{index}", free=0) for index in range(count)]
    pick: Pick[Slots] = replica_pick(spread)
    rng = random.Random(1)
    assert pick(replicas, 0, 1, rng) is None
    replicas[-1].free = 2
    replicas[-1].largest = 4
    for turn in range(count + 1):
        assert pick(replicas, turn, 4, rng) is replicas[-1]
        assert pick(replicas, turn, 5, rng) is None


def test_most_free_and_ties_rotate() -> None:
    replicas = [Slots("a", 1), Slots("b", 3), Slots("c", 3), Slots("d", 2)]
    assert picks(Spread.MOST_FREE, replicas, 10) == {"b": 5, "c": 5}


def test_most_free_takes_two_random_picks_among_many() -> None:
    replicas = [Slots(f"r{index}", 1 if index else 5) for index in range(40)]
    counts = picks(Spread.MOST_FREE, replicas, 4000)
    assert 100 < counts["r0"] < 300, "1 - (39/40)^2 of 4000 is 197"


def test_first_available_packs() -> None:
    assert picks(Spread.FIRST_AVAILABLE, [Slots("a", 0), Slots("b", 1), Slots("c", 9)], 5) == {"b": 5}


def test_round_robin_skips_the_busy_evenly() -> None:
    assert picks(Spread.ROUND_ROBIN, [Slots("a", 1), Slots("b", 0), Slots("c", 9)], 10) == {"a": 5, "c": 5}


def chi_square(counts: Counter[str], cells: int) -> float:
    """Sum over the cells of (seen - expected)^2 / expected, all cells being equally likely."""
    expected = counts.total() / cells
    return sum((counts[f"r{index}"] - expected) ** 2 / expected for index in range(cells))


@pytest.mark.parametrize(("count", "limit"), [(2, 10.83), (5, 18.47), (16, 37.70), (40, 72.05)])
def test_random_is_uniform(count: int, limit: float) -> None:
    """Chi-square over 10,000 requests, below the 99.9 % quantile of ``count - 1`` degrees of freedom."""
    replicas = [Slots(f"r{index}", 1 + index % 7) for index in range(count)]
    assert chi_square(picks(Spread.RANDOM, replicas, 10_000), count) < limit


def test_power_of_two_prefers_the_freer() -> None:
    counts = picks(Spread.POWER_OF_TWO, [Slots("a", 1), Slots("b", 9)], 2000)
    assert counts["b"] == pytest.approx(1500, abs=100)


def test_each_place_is_nearest_to_its_share_of_the_keys() -> None:
    def nearest(point: int, shares: dict[str, float]) -> str:
        return min(shares, key=lambda name: distance(point, place_of(name), shares[name]))

    points = [zlib.crc32(b"key %d" % number) for number in range(4000)]
    before = [nearest(point, {"cpu": 1.0, "gpu": 3.0, "tpu": 4.0}) for point in points]
    assert [before.count(name) / 4000 for name in ("cpu", "gpu", "tpu")] == pytest.approx([0.125, 0.375, 0.5], abs=0.03)
    after = [nearest(point, {"cpu": 1.0, "gpu": 3.0, "tpu": 2.0}) for point in points]
    moved = {(old, new) for old, new in zip(before, after, strict=True) if old != new}
    assert moved == {("tpu", "cpu"), ("tpu", "gpu")}, "only what the third gives away"

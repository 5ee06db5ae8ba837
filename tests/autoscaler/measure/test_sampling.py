"""Some replicas of a large group speak for all of it: how many, in which turns, and what if they differ."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from tests.autoscaler.test_live import Status, gives
from tests.support.worlds.autoscaling import T0, codes, demand, gateway_sample, replica_sample, revision
from tidegate.autoscaler.autoscaler import StandaloneContext
from tidegate.autoscaler.live import LiveAutoscaler
from tidegate.autoscaler.measure.observation import AcceleratorRoom, Observation
from tidegate.autoscaler.measure.sampling import round_robin, sample_size, to_sample
from tidegate.clock import ManualClock
from tidegate.records.decision import Decision
from tidegate.records.replica_state import ReplicaState


@pytest.mark.parametrize(("count", "size"), [(0, 0), (1, 1), (3, 3), (4, 4), (10, 7), (100, 14), (1000, 16)])
def test_as_many_as_a_mean_at_95_percent_needs(count: int, size: int) -> None:
    assert sample_size(count) == size
    assert len(round_robin([str(each) for each in range(count)], 5)) == size


def test_everybody_has_a_turn_and_is_asked_in_the_second_before_too() -> None:
    names = [str(each) for each in range(100)]
    seen = Counter(name for tick in range(100) for name in round_robin(names, tick))
    assert set(seen) == set(names)
    assert max(seen.values()) - min(seen.values()) <= 1
    assert all(set(round_robin(names, tick + 1)) <= to_sample(names, tick) for tick in range(50))


class Crowd:
    """Fifty replicas of one group under the real shell; each runs two requests at a time, ten a second."""

    def __init__(self, count: int = 50) -> None:
        self.clock = ManualClock(T0)
        self.at = LiveAutoscaler(self.clock, StandaloneContext())
        self.at.core.apply(revision(), fresh=False, ready=count)
        self.names = [f"resnet-00001-{index:05d}" for index in range(count)]
        self.slow: set[str] = set()
        self.to_sample: Counter[str] = Counter()
        self.second = 0

    def next(self) -> tuple[Observation, Decision]:
        self.second += 1
        self.clock.advance(1.0)
        room = {"resnet-00001": (AcceleratorRoom(accelerator="cpu", room=9),)}
        self.at.core.fleet.put([Status(name, ReplicaState.READY) for name in self.names], room)
        gateway = gateway_sample(demand(), sequence=self.second, uptime_s=float(self.second))
        self.at.sources({"g0": gives(gateway)}, {name: self._tells(name) for name in self.names})
        asyncio.run(self.at.sample())
        (decision,) = self.at.core.decide(self.clock.now())
        seen = self.at.core.observation("resnet-00001")
        assert seen is not None
        return seen, decision

    def _tells(self, name: str) -> Callable[[], Awaitable[bytes]]:
        pace = 0.2 if name in self.slow else 1.0
        sample = replica_sample(
            name,
            sequence=self.second,
            uptime_s=100.0 + self.second,
            requests=int(10 * pace * self.second),
            inferences=int(10 * pace * self.second),
            busy_s=1.0 * self.second,
            in_flight=2,
            in_flight_request_s=2.0 * self.second,
            in_flight_inference_s=2.0 * self.second,
            limit=2,
        )

        async def fetch() -> bytes:
            self.to_sample[name] += 1
            return await gives(sample)()

        return fetch


def test_some_are_asked_each_second_and_speak_for_all_that_are_ready() -> None:
    crowd = Crowd()
    for _ in range(4):
        seen, _ = crowd.next()
    before = sum(crowd.to_sample.values())
    for _ in range(20):
        seen, _ = crowd.next()
        (group,) = seen.groups
        assert (group.ready, group.sampled) == (50, sample_size(50))
        assert group.concurrency == pytest.approx(100.0)
        assert seen.concurrency == pytest.approx(100.0)
        assert group.ips == pytest.approx(500.0)
        assert (seen.complete, seen.age_s) == (True, 0.0)
    assert sum(crowd.to_sample.values()) - before == 20 * 2 * sample_size(50)
    assert set(crowd.to_sample) == set(crowd.names)


def test_a_small_group_is_asked_whole() -> None:
    crowd = Crowd(3)
    for _ in range(3):
        crowd.next()
    assert set(crowd.to_sample.values()) == {3}


def test_samples_that_differ_by_more_than_two_are_an_alarm() -> None:
    crowd = Crowd()
    calm = [codes(crowd.next()[1]) for _ in range(20)]
    assert not any("uneven_group" in each for each in calm)
    crowd.slow = set(crowd.names[:20])
    crowd.second += 100
    reasons = [codes(crowd.next()[1]) for _ in range(20)]
    assert any("uneven_group" in each for each in reasons)

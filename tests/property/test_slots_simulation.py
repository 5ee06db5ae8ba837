"""One replica with one slot and four workers, in virtual time: throughput, shares, order, a stopped worker.

The figures that the rules must hold; ``python -m benchmarks.micro.slots_sim`` prints them.
"""

import random
from collections.abc import Hashable

import pytest

from benchmarks.micro.slots_sim import HOP_S, SERVICE_S, Outcome, Simulation, outcome, overtaken_s
from tests.support.worlds.slot_world import Action, End, Flight, Job, Replica, Worker, World
from tidegate.activator.state.replicas import RECALLED_SPARE


@pytest.fixture(scope="module")
def alone() -> Outcome:
    return outcome("one worker alone", [16])


@pytest.mark.parametrize("clients", [[16, 0, 0, 0], [12, 2, 1, 1], [4, 4, 4, 4], [1, 0, 0, 1]])
def test_four_workers_reach_95_percent_of_one(alone: Outcome, clients: list[int]) -> None:
    result = outcome(str(clients), clients)
    # With two clients in all the slot idles while an answer and the next request travel, for any holder of it.
    reference = alone if sum(clients) == 16 else outcome("two clients alone", [2])
    assert result.answered_per_s >= 0.95 * reference.answered_per_s
    assert result.refusals == 0


def test_all_load_on_one_of_four_costs_no_message(alone: Outcome) -> None:
    assert outcome("one of four", [16, 0, 0, 0]).messages_per_request < 0.01


@pytest.mark.parametrize("each", [2, 4, 50])
def test_equal_load_gets_equal_shares_in_arrival_order(each: int) -> None:
    result = outcome("equal", [each] * 4)
    assert result.share_spread <= 0.10
    assert result.overtaken_service_times <= 2.0
    assert result.messages_per_request <= 4.0
    assert result.refusals == 0


@pytest.mark.parametrize("seed", range(5))
def test_order_holds_for_uneven_work_too(seed: int) -> None:
    rng = random.Random(seed)
    simulation = Simulation([6, 3, 2, 1], seed=seed, service_s=lambda: rng.expovariate(1 / SERVICE_S))
    simulation.start()
    simulation.run(3.0)
    assert overtaken_s(simulation.world.jobs) <= 2 * SERVICE_S


@pytest.mark.parametrize("seed", range(8))
def test_a_stopped_worker_costs_the_others_less_than_200_ms(seed: int) -> None:
    """SIGSTOP in the midst of work, whatever it holds: the model is idle for less than 200 ms, and once."""
    simulation = Simulation([4, 4, 4, 4], seed=seed, service_s=lambda: SERVICE_S)
    simulation.start()
    simulation.run(0.5 + seed * 0.0021)
    simulation.longest_idle_s = 0.0
    simulation.stop(simulation.world.workers[seed % 4])
    began = len(simulation.ended)
    simulation.run(2.0)
    assert simulation.longest_idle_s < 0.2
    busy_s = (len(simulation.ended) - began) * (SERVICE_S + 3 * HOP_S)
    assert busy_s > 2.0 - 0.3, "the rest of the time is work"
    stopped = simulation.world.workers[seed % 4]
    simulation.resume(stopped)
    simulation.run(1.0)
    assert all(job.end is not None for job in simulation.world.jobs if job.arrived < 1002.0)


def test_a_thousand_waiting_on_one_new_replica_run_in_order_and_never_above_the_limit() -> None:
    simulation = Simulation([250, 250, 250, 250], seed=3, service_s=lambda: SERVICE_S, limit=4)
    simulation.start(ready=False)
    simulation.run(0.5)
    assert sum(worker.room.waiting for worker in simulation.world.workers) == 1000
    ready_at = simulation.world.now
    simulation.ready()
    simulation.run(2.0)
    first = [job for job in simulation.world.jobs[:1000] if job.started]
    assert min(job.started[0] for job in first) - ready_at < 0.020, "model ready to the first at the model"
    assert len(first) == 1000
    assert simulation.replica.peak == 4
    assert overtaken_s(first) <= 2 * SERVICE_S
    assert not [job for job in simulation.world.jobs if job.end not in (None, End.ANSWERED)]


class Crossing(Simulation):
    """Messages of the channels take 30 ms and more, so that they cross requests and each other; each worker has a
    stream that never ends, and clients that think between two requests."""

    def __init__(self, seed: int) -> None:
        super().__init__([4, 4, 4, 4], seed=seed, service_s=lambda: self.rng.expovariate(1 / SERVICE_S), limit=8)
        self.world.is_checked = False
        self.world.post = self._post
        self._streams: set[Worker] = set()

    def _post(self, key: Hashable, action: Action) -> None:
        assert isinstance(key, tuple)
        if key[0] == "up" or "down" in key:
            when = max(self.timeline.now + 0.03 * (1 + self.rng.random()), self.timeline.last.get(key, 0.0))
            self.timeline.last[key] = when
            self.timeline.at(when, action)
        else:
            self.timeline(key, action)

    def _serve(self, world: World, replica: Replica, flight: Flight) -> None:
        if flight.worker in self._streams:
            super()._serve(world, replica, flight)
        else:
            self._streams.add(flight.worker)

    def _ended(self, worker: Worker, job: Job, end: End) -> None:
        job.end = end
        self.ended.append((self.world.now, job))
        self.timeline.at(self.world.now + self.rng.expovariate(50.0), lambda: self._send(worker))


@pytest.mark.parametrize("seed", range(2))
def test_numbers_of_recalled_credits_do_not_pile_up_at_a_worker_that_never_rests(seed: int) -> None:
    simulation = Crossing(seed)
    simulation.start()
    most = 0
    for _ in range(60):
        simulation.run(1.0)
        simulation.world.jobs.clear()
        for worker in simulation.world.workers:
            view = worker.room._fleet.replicas["r0"]
            assert view.in_flight, "it never rests"
            most = max(most, len(view.noted))
    assert 8 < most <= RECALLED_SPARE + 8, "as many as may be busy, and some to spare"
    assert len(simulation.ended) > 5000
    assert all(job.end is End.ANSWERED for _, job in simulation.ended)
    assert simulation.replica.peak == 8

"""What is learnt of groups: sent to replicas, kept over a restart, handed to the next revision."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.worlds.autoscaling import T0, replica_sample
from tidegate.autoscaler.autoscaler import StandaloneContext
from tidegate.autoscaler.live import LiveAutoscaler
from tidegate.autoscaler.measure.rates import LearntCell
from tidegate.autoscaler.profiles.admission import Source
from tidegate.autoscaler.profiles.interference import LearntPair
from tidegate.clock import ManualClock
from tidegate.control.predictor.link import PredictorHere
from tidegate.control.predictor.predictions import Predictions
from tidegate.control.state.notices import Faults
from tidegate.control.watch.profiles import KEPT_EVERY_S, LearnedProfiles
from tidegate.deploy.fake import FakeBackend
from tidegate.deploy.placement.ledger import Accelerator, AcceleratorKind, Profile
from tidegate.function import Batching, Function, GpuNeeds, Revision, Server, ServerKind, Sla
from tidegate.records.codec import decode
from tidegate.records.profile_point import ProfileCell, ProfilePoint
from tidegate.records.replica_sample import ReplicaSample
from tidegate.records.replica_state import ColdStartPhases
from tidegate.store.embedded import EmbeddedStore

T4 = Accelerator(
    name="t4",
    kind=AcceleratorKind.EMULATED,
    count=4,
    memory_bytes=1,
    profile=Profile(base_s=0.01, per_item_s=0.0),
)
CELL = LearntCell(size=0, occupancy=-1, batch=1.0, seconds_per_request=0.02, execution_s=0.02, requests=50.0)


def revision(number: int = 1, **values: Any) -> Revision:
    function = Function(name="echo", server=Server(kind=ServerKind.HANDLER, target="/echo.py:Echo"))
    return Revision(replace(function, **values), number)


class Desk:
    """One life of a control process over a store."""

    def __init__(self, store: EmbeddedStore, now: float = T0) -> None:
        self.clock = ManualClock(now)
        self.autoscaler = LiveAutoscaler(self.clock, StandaloneContext()).core
        self.backend = FakeBackend([T4], self.clock, Random(1))
        self.learning = LearnedProfiles(
            autoscaler=self.autoscaler,
            backend=self.backend,
            predictions=Predictions(PredictorHere(), Faults()),
            clock=self.clock,
            store=store,
            epoch=7,
        )
        self.sent: list[tuple[str, Any]] = []
        self._work = 0

    def track(self, wanted: Revision) -> None:
        self.autoscaler.apply(wanted)
        self.learning.track(wanted)

    async def post(self, path: str, body: bytes = b"") -> bytes:
        self.sent.append((path, decode(body, dict)))
        return b"{}"

    async def full_second(self, wanted: Revision, limit: int, per_second: int) -> None:
        """A second in which one replica has every slot taken and ends ``per_second`` requests."""
        before = self.sample(wanted, limit)
        self.clock.advance(1.0)
        self._work += per_second
        after = self.sample(wanted, limit)
        self.learning.measured(before, after, "t4")
        await self.learning.review(self.clock.now(), {wanted.id: 5})

    def sample(self, wanted: Revision, limit: int) -> ReplicaSample:
        seconds = self.clock.now() - T0
        return replica_sample(
            "r1",
            revision=wanted.id,
            group="t4",
            uptime_s=seconds + 10.0,
            limit=limit,
            requests=self._work,
            inferences=self._work,
            busy_s=seconds,
            in_flight_request_s=limit * seconds,
            in_flight_inference_s=limit * seconds,
        )


def at_desk(folder: Path, tell: Callable[[Callable[[], Coroutine[Any, Any, Desk]]], Coroutine[Any, Any, None]]) -> None:
    """Runs a story that may begin several lives of the control process."""

    async def story() -> None:
        store = await EmbeddedStore.open(folder / "state.db")

        async def begin() -> Desk:
            desk = Desk(store)
            await desk.learning.load()
            return desk

        try:
            await tell(begin)
        finally:
            await store.close()

    asyncio.run(story())


def test_a_limit_that_brings_nothing_goes_and_replicas_are_reported(tmp_path: Path) -> None:
    async def tell(begin: Callable[[], Coroutine[Any, Any, Desk]]) -> None:
        desk, wanted = await begin(), revision(sla=Sla(latency_s=1.0))
        desk.track(wanted)
        status = await desk.backend.create("echo-00001-aaaaa", wanted, "t4", replica_sample("r1").phases)
        desk.learning.measured(None, desk.sample(wanted, 4), "t4")
        assert desk.learning.orders([replace(status, limit=4)], {}) == []
        limit = 4
        for _ in range(120):
            await desk.full_second(wanted, limit, per_second=50)
            found = desk.learning.limit(wanted.id, "t4")
            assert found is not None
            limit = found.limit
        assert limit == 1, "the server does one thing at a time"
        ((replica, order),) = desk.learning.orders([replace(status, limit=4)], {})
        await desk.learning.order(desk, order)
        assert (replica.id, desk.sent) == (status.id, [("/limit", {"limit": 1, "epoch": 7})])
        assert desk.learning.orders([replace(status, limit=1)], {}) == []

    at_desk(tmp_path, tell)


def test_a_move_is_written_down_at_once(tmp_path: Path) -> None:
    async def tell(begin: Callable[[], Coroutine[Any, Any, Desk]]) -> None:
        desk, wanted = await begin(), revision(sla=Sla(latency_s=1.0))
        desk.track(wanted)
        desk.learning.measured(None, desk.sample(wanted, 4), "t4")
        for _ in range(20):
            await desk.full_second(wanted, 4, per_second=50)
        later = await begin()
        later.track(wanted)
        later.learning.measured(None, later.sample(wanted, 4), "t4")
        now, again = (each.learning.limit(wanted.id, "t4") for each in (desk, later))
        assert now is not None
        assert again is not None
        assert (again.limit, again.most) == (now.limit, now.most) == (3, 4)

    at_desk(tmp_path, tell)


def test_a_limit_that_the_function_gives_is_not_touched(tmp_path: Path) -> None:
    async def tell(begin: Callable[[], Coroutine[Any, Any, Desk]]) -> None:
        desk, wanted = await begin(), revision(concurrency=4)
        desk.track(wanted)
        for _ in range(60):
            await desk.full_second(wanted, 4, per_second=50)
        assert desk.learning.limit(wanted.id, "t4") is None

    at_desk(tmp_path, tell)


def test_rates_outlive_the_process_and_are_a_prior_for_another_model(tmp_path: Path) -> None:
    async def tell(begin: Callable[[], Coroutine[Any, Any, Desk]]) -> None:
        desk, wanted = await begin(), revision()
        desk.track(wanted)
        desk.autoscaler.collector.teach(wanted.id, "t4", [CELL], 1.0)
        for _ in range(int(KEPT_EVERY_S) + 1):
            desk.clock.advance(1.0)
            await desk.learning.review(desk.clock.now(), {})

        later = await begin()
        later.track(wanted)
        assert later.learning.mu_ips(wanted.id, "t4") == 50.0
        assert later.learning.prior_ips(wanted.id, "t4") is None
        same, other = revision(2, sla=Sla(latency_s=0.5)), revision(3, batching=Batching(max_size=8))
        later.track(same)
        later.track(other)
        assert later.autoscaler.mu_ips(same.id, "t4") == 50.0, "the same model under another promise"
        assert later.autoscaler.mu_ips(other.id, "t4") is None
        assert later.learning.mu_ips(other.id, "t4") == later.learning.prior_ips(other.id, "t4") == 50.0

        (kind,) = later.learning.kinds(revision(4, batching=Batching(max_size=16)))
        assert (kind.mu_ips, kind.one_s, kind.is_own) == (50.0, 0.02, False)

    at_desk(tmp_path, tell)


def test_learnt_interference_does_not_hide_the_figures_of_the_revision_before(tmp_path: Path) -> None:
    async def tell(begin: Callable[[], Coroutine[Any, Any, Desk]]) -> None:
        desk, shared = await begin(), GpuNeeds(mps=True, core_percentage=50)
        first, second = revision(gpu=shared), revision(2, gpu=shared, env={"MODE": "other"})
        desk.track(first)
        desk.autoscaler.collector.teach(first.id, "t4", [CELL], 1.0)
        pair = LearntPair(beside="bert", increase=0.2, requests=100.0)
        desk.learning._interference.restore("t4", "echo", [pair])
        for _ in range(2):
            desk.track(second)
            assert desk.learning.beside(second.id, "t4") == (pair,)
            assert desk.learning.prior_ips(second.id, "t4") == 50.0
            given = desk.learning.given(second.id, "t4")
            assert given is not None
            assert given.source is Source.EARLIER

    at_desk(tmp_path, tell)


def test_what_was_learnt_of_a_deleted_function_goes(tmp_path: Path) -> None:
    async def tell(begin: Callable[[], Coroutine[Any, Any, Desk]]) -> None:
        desk, wanted = await begin(), revision()
        desk.track(wanted)
        desk.autoscaler.collector.teach(wanted.id, "t4", [CELL], 1.0)
        await desk.learning.close()
        desk.learning.forget(wanted.id)
        desk.learning.drop("echo")
        await desk.learning.review(desk.clock.now(), {})
        later = await begin()
        later.track(wanted)
        assert later.learning.mu_ips(wanted.id, "t4") is None

    at_desk(tmp_path, tell)


def point(batch: int = 1, cores: int = 0, accelerator: str = "t4", rate_ips: float = 50.0) -> ProfilePoint:
    return ProfilePoint(
        cell=ProfileCell(accelerator=accelerator, cores=cores, batch=batch),
        execution_s=0.012,
        p50_s=0.013,
        p95_s=0.014,
        p99_s=0.015,
        slots=2,
        full_execution_s=0.04,
        rate_ips=rate_ips,
        requests=200,
    )


def test_measured_points_are_what_first_decisions_go_by(tmp_path: Path) -> None:
    async def run() -> None:
        store = await EmbeddedStore.open(tmp_path / "state.db")
        desk, wanted = Desk(store), revision()
        assert desk.learning.give(wanted.function, [point(), point(8, rate_ips=90.0), point(accelerator="v100")]) == (
            "t4",
        )
        (kind,) = desk.learning.kinds(wanted)
        assert (kind.mu_ips, kind.one_s, kind.is_own) == (50.0, 0.012, True)
        desk.track(wanted)
        assert desk.learning.mu_ips(wanted.id, "t4") == 50.0
        await desk.learning.close()
        again = Desk(store)
        await again.learning.load()
        (kind,) = again.learning.kinds(wanted)
        assert kind.mu_ips == 50.0, "kept over a restart"
        await store.close()

    asyncio.run(run())


def test_what_was_learnt_of_the_same_model_counts_more_than_a_profile(tmp_path: Path) -> None:
    async def run() -> None:
        store = await EmbeddedStore.open(tmp_path / "state.db")
        desk, wanted = Desk(store), revision()
        assert desk.learning.give(wanted.function, [point()]) == ("t4",)
        assert desk.learning.give(wanted.function, [point(rate_ips=1000.0)]) == ()
        (kind,) = desk.learning.kinds(wanted)
        assert kind.mu_ips == 50.0
        assert desk.learning.give(replace(wanted.function, env={"A": "1"}), [point(rate_ips=70.0)]) == ("t4",)
        await store.close()

    asyncio.run(run())


def test_interference_is_learnt_between_replicas_on_one_device_and_kept_with_the_profile(tmp_path: Path) -> None:
    async def tell(begin: Callable[[], Coroutine[Any, Any, Desk]]) -> None:
        desk = await begin()
        shared = GpuNeeds(mps=True, core_percentage=50)
        echo = revision(concurrency=1, gpu=shared)
        bert = revision(concurrency=1, gpu=shared, name="bert")
        for wanted in (echo, bert):
            desk.track(wanted)
            await desk.backend.create(f"{wanted.id}-aaaaa", wanted, "t4", ColdStartPhases())
        done = {wanted.id: (0, 0.0) for wanted in (echo, bert)}

        def sampled(revision_id: str) -> ReplicaSample:
            requests, busy_s = done[revision_id]
            return replica_sample(
                f"{revision_id}-aaaaa",
                revision=revision_id,
                group="t4",
                uptime_s=desk.clock.now() - T0 + 10.0,
                requests=requests,
                inferences=requests,
                busy_s=busy_s,
                in_flight_request_s=busy_s,
                execution_s=busy_s,
            )

        async def second(busy: float) -> None:
            """Bert is at work for a part of it, and 20 requests of echo take longer for that."""
            before = {name: sampled(name) for name in done}
            desk.clock.advance(1.0)
            for name, requests, more_s in ((echo.id, 20, 0.4 * (1.0 + 0.25 * busy)), (bert.id, 10, busy)):
                done[name] = (done[name][0] + requests, done[name][1] + more_s)
                desk.learning.measured(before[name], sampled(name), "t4")
            await desk.learning.review(desk.clock.now(), {})

        for number in range(60):
            await second(0.9 if number % 2 else 0.1)
        desk.autoscaler.collector.teach(echo.id, "t4", [CELL], 1.0)
        (pair,) = desk.learning.beside(echo.id, "t4")
        assert pair.beside == "bert"
        assert pair.increase == pytest.approx(0.25, abs=0.02)
        await desk.learning.close()
        later = await begin()
        later.track(echo)
        assert later.learning.beside(echo.id, "t4") == (pair,)
        changed, other = await begin(), revision(concurrency=1, gpu=shared, env={"MODE": "other"})
        changed.track(other)
        assert changed.learning.beside(other.id, "t4") == (), "it is kept for the model that it was learnt of"

    at_desk(tmp_path, tell)
